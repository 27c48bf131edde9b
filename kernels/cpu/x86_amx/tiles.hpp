// The tiles of AMX: eight registers of 16 rows of 64 bytes, and the product of two of them.
#pragma once
#include <stdint.h>

#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

constexpr int kTileRegisters = 8, kTileRows16 = 16, kTileRowBytes = 64;

// By the instructions. A thread that lives configures registers and gives them back: afterwards the
// system saves none of them.
struct AmxTiles {
    // All are whole but those of factors, x in registers 6 and 7 and w in 2 to 5, where a product
    // has kColumns bytes of a row instead of 64.
    template <int kColumns>
    class SessionOf {
      public:
        SessionOf() {
            struct alignas(64) {
                uint8_t palette, start_row, reserved[14];
                uint16_t row_bytes[16];
                uint8_t rows[16];
            } config = {};
            config.palette = 1;
            for (int i = 0; i < kTileRegisters; ++i) {
                config.row_bytes[i] = i >= 6 ? kColumns : kTileRowBytes;
                config.rows[i] = i >= 2 && i < 6 ? kColumns / 4 : kTileRows16;
            }
            asm volatile("ldtilecfg %0" : : "m"(config));
        }
        ~SessionOf() { asm volatile("tilerelease"); }
        SessionOf(const SessionOf &) = delete;
        SessionOf &operator=(const SessionOf &) = delete;
    };
    using Session = SessionOf<kTileRowBytes>;

    template <int tile>
    QK_INLINE void zero() {
        asm volatile("tilezero %%tmm%c0" : : "i"(tile));
    }
    template <int tile>
    QK_INLINE void load(const void *from, int64_t stride) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(tile), "r"(from), "r"(stride)
                     : "memory");
    }
    // The same of what passes by: it pushes nothing out of the first cache.
    template <int tile>
    QK_INLINE void load_passing(const void *from, int64_t stride) {
        asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(tile), "r"(from), "r"(stride)
                     : "memory");
    }
    template <int tile>
    QK_INLINE void store(void *to, int64_t stride) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(tile), "r"(to), "r"(stride)
                     : "memory");
    }
    // sum[i][j] += the products of the bytes of row i of `a` and of
    // column j of `b`, whose rows hold four bytes of a column side by side.
    template <int sum, int a, int b>
    QK_INLINE void add_products() {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
    // The same of bf16 in pairs; numbers below 2^-126 are zero. Products of even and of odd columns
    // are two chains of f32, which are added, and then to the sum.
    template <int sum, int a, int b>
    QK_INLINE void add_bf16_products() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
};

// Two tiles of an operand: their rows `stride` bytes apart, the second tile `second` bytes on.
struct TilePair {
    const void *from;
    int64_t stride, second;

    const char *operator[](int i) const { return static_cast<const char *>(from) + i * second; }
};

// Sums 2 i + j take up the products of tile i of w and tile j of x, of which there are kTiles:
// add.operator()<sum, w, x>() is a product. A load waits for the products that read its register
// before: so x's tiles change places from one step to the next, and what the last product reads is
// loaded last. Registers 4 and 5: w, which stays in the first cache; 6, 7: x, which passes by.
template <int kTiles, int odd, class Tiles, class Add>
QK_INLINE inline void multiply_pairs(Tiles &tiles, const TilePair &w, const TilePair &x,
                                     const Add &add) {
    constexpr int one = odd * (kTiles - 1), other = 1 - one;  // tiles of x
    tiles.template load<4>(w[0], w.stride);
    tiles.template load_passing<6 + odd>(x[one], x.stride);
    add.template operator()<one, 4, 6 + odd>();
    if constexpr (kTiles == 2) {
        tiles.template load_passing<7 - odd>(x[other], x.stride);
        add.template operator()<other, 4, 7 - odd>();
    }
    tiles.template load<5>(w[1], w.stride);
    if constexpr (kTiles == 2) add.template operator()<2 + other, 5, 7 - odd>();
    add.template operator()<2 + one, 5, 6 + odd>();
}

}  // namespace
}  // namespace qk::cpu

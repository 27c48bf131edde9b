// The tiles of AMX: eight registers of 16 rows of 64 bytes, and the product of two of them.
#pragma once
#include <stdint.h>

#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

constexpr int kTileRegisters = 8, kTileRows16 = 16, kTileRowBytes = 64;

// By the instructions. A thread that lives configures all registers alike and gives them back:
// afterwards the system saves none of them.
struct AmxTiles {
    class Session {
      public:
        Session() {
            struct alignas(64) {
                uint8_t palette, start_row, reserved[14];
                uint16_t row_bytes[16];
                uint8_t rows[16];
            } config = {};
            config.palette = 1;
            for (int i = 0; i < kTileRegisters; ++i) {
                config.row_bytes[i] = kTileRowBytes;
                config.rows[i] = kTileRows16;
            }
            asm volatile("ldtilecfg %0" : : "m"(config));
        }
        ~Session() { asm volatile("tilerelease"); }
        Session(const Session &) = delete;
        Session &operator=(const Session &) = delete;
    };

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
    template <int tile>
    QK_INLINE void store(void *to, int64_t stride) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(tile), "r"(to), "r"(stride)
                     : "memory");
    }
    // sum[i][j] += the products of the signed bytes of row i of `a` and the unsigned bytes of
    // column j of `b`, whose rows hold four bytes of a column side by side.
    template <int sum, int a, int b>
    QK_INLINE void add_products() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
};

}  // namespace
}  // namespace qk::cpu

// AMX's tiles as arrays: what Intel's manual says of the instructions (SDM volume 2, TILELOADD,
// TDPBSSD, TDPBF16PS).
#pragma once
#include <math.h>
#include <string.h>

#include <atomic>

#include "base/half.hpp"
#include "cpu/x86_amx/tiles.hpp"

namespace {  // each object has its own, compiled for what it may run on

class PlainTiles {
  public:
    static inline std::atomic<int> sessions;

    // As AmxTiles has it: products of kColumns bytes of a row of x, which registers 6 and 7 hold.
    template <int kColumns>
    struct SessionOf {
        SessionOf() {
            ++sessions;
            columns_ = kColumns;
        }
        ~SessionOf() { columns_ = kBytes; }
    };
    using Session = SessionOf<qk::cpu::kTileRowBytes>;

    template <int tile>
    void zero() {
        memset(tile_[tile], 0, sizeof(tile_[tile]));
    }
    template <int tile>
    void load(const void *from, int64_t stride) {
        const int rows = tile >= 2 && tile < 6 ? columns_ / 4 : kRows;
        const int bytes = tile >= 6 ? columns_ : kBytes;
        for (int row = 0; row < rows; ++row) {
            memcpy(tile_[tile][row], static_cast<const char *>(from) + row * stride, size_t(bytes));
        }
    }
    template <int tile>
    void load_passing(const void *from, int64_t stride) {
        load<tile>(from, stride);
    }
    template <int tile>
    void store(void *to, int64_t stride) const {
        for (int row = 0; row < kRows; ++row) {
            memcpy(static_cast<char *>(to) + row * stride, tile_[tile][row], kBytes);
        }
    }
    template <int sum, int a, int b>
    void add_products() {
        for_each<int32_t>(sum, [&](int i, int j, int32_t total) {
            for (int k = 0; k < columns_; ++k) {
                total += int8_t(tile_[a][i][k]) * int8_t(tile_[b][k / 4][4 * j + k % 4]);
            }
            return total;
        });
    }
    template <int sum, int a, int b>
    void add_bf16_products() {
        for_each<float>(sum, [&](int i, int j, float total) {
            float of[2] = {};  // even and odd columns
            for (int k = 0; k < kBytes / 2; ++k) {
                const float left = number(a, i, k), right = number(b, k / 2, 2 * j + k % 2);
                of[k % 2] = flushed(fmaf(left, right, of[k % 2]));
            }
            return flushed(flushed(total) + flushed(of[0] + of[1]));
        });
    }

  private:
    static constexpr int kRows = qk::cpu::kTileRows16, kBytes = qk::cpu::kTileRowBytes;

    template <class T, class Body>
    void for_each(int sum, const Body &body) {
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kBytes / 4; ++j) {
                T total;
                memcpy(&total, tile_[sum][i] + 4 * j, 4);
                total = body(i, j, total);
                memcpy(tile_[sum][i] + 4 * j, &total, 4);
            }
        }
    }
    float number(int tile, int row, int index) const {
        uint16_t bits;
        memcpy(&bits, tile_[tile][row] + 2 * index, 2);
        return flushed(qk::f32_from_bf16(bits));
    }
    static float flushed(float value) {
        return fabsf(value) < 0x1p-126f ? copysignf(0.0f, value) : value;
    }

    // Registers and what they are configured for belong to a thread.
    static inline thread_local int columns_ = kBytes;
    static inline thread_local uint8_t tile_[qk::cpu::kTileRegisters][kRows][kBytes];
};

}  // namespace

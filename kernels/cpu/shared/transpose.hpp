// Rows to columns: 4 x 4 dwords at a time, in 128-bit registers, which every instruction set has.
#pragma once
#include <stdint.h>
#include <string.h>

namespace qk::cpu {
namespace {

typedef uint32_t Quad __attribute__((vector_size(16)));

// to[i * to_stride][j] = from[j * from_stride][i], strides in bytes.
inline __attribute__((always_inline)) void transpose_4x4(const void *from, int64_t from_stride,
                                                         void *to, int64_t to_stride) {
    const char *const in = static_cast<const char *>(from);
    char *const out = static_cast<char *>(to);
    Quad a, b, c, d;
    memcpy(&a, in, 16);
    memcpy(&b, in + from_stride, 16);
    memcpy(&c, in + 2 * from_stride, 16);
    memcpy(&d, in + 3 * from_stride, 16);
    const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
    memcpy(out, &a, 16);
    memcpy(out + to_stride, &b, 16);
    memcpy(out + 2 * to_stride, &c, 16);
    memcpy(out + 3 * to_stride, &d, 16);
}

// The same for 16 x 16.
inline void transpose_in_memory(const void *from, int64_t from_stride, void *to,
                                int64_t to_stride) {
    const char *const in = static_cast<const char *>(from);
    char *const out = static_cast<char *>(to);
    for (int64_t i = 0; i < 16; i += 4) {
        for (int64_t j = 0; j < 16; j += 4) {
            transpose_4x4(in + j * from_stride + i * 4, from_stride, out + i * to_stride + j * 4,
                          to_stride);
        }
    }
}

// transposed[j], dword r: dword j of row r; `low` has rows 0..7, `high` rows 8..15, 64 bytes each.
inline void transpose_rows(const uint8_t *low, const uint8_t *high, uint8_t (&transposed)[16][64]) {
    for (int64_t i = 0; i < 4; ++i) {
        for (int64_t rows = 0; rows < 8; rows += 4) {
            transpose_4x4(low + 64 * rows + 16 * i, 64, transposed[4 * i] + 4 * rows, 64);
            transpose_4x4(high + 64 * rows + 16 * i, 64, transposed[4 * i] + 4 * rows + 32, 64);
        }
    }
}

}  // namespace
}  // namespace qk::cpu

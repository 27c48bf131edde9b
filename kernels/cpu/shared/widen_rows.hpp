// Scales of 8 rows that are numbers, row by row, as f32 [group][row].
#pragma once
#include "cpu/isa.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {
namespace {

// to[i]: word i of each of 8 rows.
QK_INLINE inline void transpose_8x8_halves(const char *from, int64_t stride, uint16_t (&to)[8][8]) {
    typedef uint16_t Words __attribute__((vector_size(16)));
    Words rows[8], turned[8];
    QK_UNROLL
    for (int i = 0; i < 8; ++i) memcpy(&rows[i], from + i * stride, 16);
    QK_UNROLL
    for (int round = 0; round < 3; ++round) {  // rows i and i + 4 in turn, three times
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            const Words a = rows[i], b = rows[i + 4];
            turned[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            turned[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        }
        QK_UNROLL
        for (int i = 0; i < 8; ++i) rows[i] = turned[i];
    }
    memcpy(to, rows, sizeof(rows));
}

template <class Isa>
void widen_half(qk_format format, const uint16_t (&from)[8], float (&to)[8]) {
    const char *const bytes = reinterpret_cast<const char *>(from);
    format == QK_FORMAT_F16 ? Isa::widen_f16(bytes, to) : Isa::widen_bf16(bytes, to);
}

// Rows are `pitch` bytes apart; `count` groups of each, read and stored in whole runs of 8.
template <class Isa>
QK_NOINLINE void widen_rows(qk_format format, const char *from, int64_t pitch, int64_t count,
                            float (*to)[8]) {
    if (format == QK_FORMAT_F32) {
        for (int64_t i = 0; i < count; i += 4, from += 16) {
            transpose_4x4(from, pitch, to[i], 32);
            transpose_4x4(from + 4 * pitch, pitch, to[i] + 4, 32);
        }
        return;
    }
    for (int64_t i = 0; i < count; i += 8, from += 16) {
        alignas(16) uint16_t eight[8][8];
        transpose_8x8_halves(from, pitch, eight);
        for (int64_t g = 0; g < 8; ++g) widen_half<Isa>(format, eight[g], to[i + g]);
    }
}

}  // namespace
}  // namespace qk::cpu

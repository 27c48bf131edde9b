// Weights of 16 bits: exact for every code of 16 bits, whatever the weights. A code is two planes of
// words, its high byte and its low byte less 128, so a product stays below 2^23 and 32 bits hold the
// sums of a run of columns; runs meet in 64 bits, where derive() has proven that all fits. Included
// after dot() and dot_words().
#pragma once
#include "cpu/vector/gru_rows.hpp"

namespace qk::cpu {
namespace {

// Pairs of columns in a run: 2 * 252 * 2^15 * 2^7 < 2^31. A multiple of what dot_words unrolls.
constexpr int64_t kWordGroups = 252;

// Rules 7 and 8 in 64 bits. |sum| < 2^62, so 2^62 more is positive and a logical shift will do: not
// every instruction set has the other.
inline void rescale_words(const GruRows &rows, int64_t block, int64_t units,
                          const int64_t (*total)[kGruUnits], int32_t *to) {
    constexpr uint64_t lift = uint64_t{1} << 62;
    for (int gate = 0; gate < 3; ++gate) {
        const int64_t at = (block * 3 + gate) * kGruUnits;
        alignas(64) int32_t code[kGruUnits];
        for (int64_t lane = 0; lane < kGruUnits; ++lane) {
            const uint64_t shift = rows.shift[at + lane], lifted_zero = lift >> shift;
            const uint64_t sum = uint64_t(total[gate][lane] + rows.word_offset[at + lane]) + lift;
            const uint64_t odd = ((sum >> shift) - lifted_zero) & 1;
            const uint64_t half = (uint64_t{1} << (shift - 1)) - 1;
            const int64_t value = int64_t(((sum + half + odd) >> shift) - lifted_zero);
            const int64_t above = value < rows.min ? rows.min : value;
            code[lane] = int32_t(above > rows.max ? rows.max : above);
        }
        store(to + gate * units + block * kGruUnits, Round(rows.to_gate[gate])(load(code)));
    }
}

inline void add_words(int planes, const int32_t (*sums)[3][kGruUnits],
                      int64_t (*total)[kGruUnits]) {
    for (int gate = 0; gate < 3; ++gate) {
        for (int64_t lane = 0; lane < kGruUnits; ++lane) {
            const int64_t high = sums[0][gate][lane];
            total[gate][lane] += planes == 2 ? 256 * high + sums[1][gate][lane] : high;
        }
    }
}

__attribute__((noinline)) void run_word_rows(const GruRows &rows, int64_t blocks,
                                             const RowTask *tasks, int64_t count, int planes,
                                             int64_t plane_stride, bool backward) {
    constexpr int64_t group_bytes = 3 * kGruUnits * 4;
    const uint8_t *codes[8];
    alignas(64) int32_t sums[8][3][kGruUnits];
    alignas(64) int64_t totals[8][3][kGruUnits];
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t block = backward ? blocks - 1 - i : i;
        const int8_t *const weights = rows.weights + block * rows.groups * group_bytes;
        memset(totals, 0, size_t(count / planes) * sizeof(totals[0]));
        for (int64_t first = 0; first < rows.groups; first += kWordGroups) {
            for (int64_t row = 0; row < count; ++row)
                codes[row] = tasks[row / planes].codes + row % planes * plane_stride + 4 * first;
            dot_tile<true>(count, weights + first * group_bytes,
                           min64(kWordGroups, rows.groups - first), codes, sums);
            for (int64_t task = 0; task < count / planes; ++task)
                add_words(planes, sums + task * planes, totals[task]);
        }
        for (int64_t task = 0; task < count / planes; ++task)
            rescale_words(rows, block, blocks * kGruUnits, totals[task], tasks[task].to);
    }
}

QK_GRU_INLINE inline void run_linear(const GruRows &rows, int64_t blocks, const RowTask *tasks,
                                     int64_t count, int planes, int64_t plane_stride,
                                     bool backward) {
    if (rows.has_words())
        run_word_rows(rows, blocks, tasks, count, planes, plane_stride, backward);
    else
        run_rows(rows, blocks, tasks, count, planes, plane_stride, backward);
}

}  // namespace
}  // namespace qk::cpu

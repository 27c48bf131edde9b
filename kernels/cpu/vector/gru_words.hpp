// Weights of 16 bits: exact for every code of 16 bits, whatever the weights. A code is two planes
// of words, its high byte and its low byte less 128, so a product stays below 2^23 and 32 bits hold
// the sums of a run of columns; runs meet in 64 bits, where derive() has proven that all fits.
// Included after dot() and dot_words().
#pragma once
#include "cpu/vector/gru_rows.hpp"

namespace qk::cpu {
namespace {

// Pairs of columns in a run: 2 * 252 * 2^15 * 2^7 < 2^31. A multiple of what dot_words unrolls.
constexpr int64_t kWordGroups = 252;

inline Longs joined(int planes, const int32_t (*sums)[3][kGruUnits], int gate) {
    const Ints one = splat(1), high = load(sums[0][gate]);
    if (planes == 1) return products(high, one);
    return add(products(high, splat(256)), products(load(sums[1][gate]), one));
}

// Rules 7 and 8.
inline void rescale_words(const GruRows &rows, int64_t block, int64_t units, const Longs *total,
                          int32_t *to) {
    for (int gate = 0; gate < 3; ++gate) {
        const int64_t at = (block * 3 + gate) * kGruUnits;
        const int32_t *const offset = rows.word_offset + 2 * at;
        const Longs high = products(load(offset), splat(1 << kWordOffsetBits));
        const Longs low = products(load(offset + kGruUnits), splat(1));
        const Longs sum = add(total[gate], add(high, low));
        const Ints code = round_lanes(sum, load_bytes(rows.shift + at), rows.min, rows.max);
        store(to + gate * units + block * kGruUnits, Round(rows.to_gate[gate])(code));
    }
}

__attribute__((noinline)) void run_word_rows(const GruRows &rows, int64_t blocks,
                                             const RowTask *tasks, int64_t count, int planes,
                                             int64_t plane_stride, bool backward) {
    constexpr int64_t group_bytes = 3 * kGruUnits * 4;
    const uint8_t *codes[8];
    alignas(64) int32_t sums[8][3][kGruUnits];
    Longs totals[8][3];
    const int64_t last_plane = planes - 1;  // 0 or 1: also the shift from rows to tasks
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t block = backward ? blocks - 1 - i : i;
        const int8_t *const weights = rows.weights + block * rows.groups * group_bytes;
        for (int64_t first = 0; first < rows.groups; first += kWordGroups) {
            for (int64_t row = 0; row < count; ++row)
                codes[row] =
                    tasks[row >> last_plane].codes + (row & last_plane) * plane_stride + 4 * first;
            dot_tile<true>(count, weights + first * group_bytes,
                           min64(kWordGroups, rows.groups - first), codes, sums);
            for (int64_t task = 0; task < count >> last_plane; ++task) {
                for (int gate = 0; gate < 3; ++gate) {
                    const Longs run = joined(planes, sums + (task << last_plane), gate);
                    totals[task][gate] = first == 0 ? run : add(totals[task][gate], run);
                }
            }
        }
        for (int64_t task = 0; task < count >> last_plane; ++task)
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

// The same for weights of 16 bits: exact for every code of 16 bits. A code is two planes of words,
// its high byte and its low byte less 128, so a product stays below 2^23 and 32 bits hold the sums
// of kWordGroups groups of columns; these are added up in 64 bits, where derive() has proven that
// all fits.
#pragma once
#include "cpu/gru/rows.hpp"

namespace qk::cpu {

// Pairs of columns: 2 * 252 * 2^15 * 2^7 < 2^31. A multiple of what dot_words unrolls.
constexpr int64_t kWordGroups = 252;

template <class Isa>
inline Longs<Isa> joined(int planes, const int32_t (*sums)[3][kGruUnits], int gate) {
    using Ints = typename Isa::Ints;
    const Ints one = Ints::splat(1), high = Ints::load(sums[0][gate]);
    if (planes == 1) return Isa::products(high, one);
    return Isa::products(high, Ints::splat(256)) + Isa::products(Ints::load(sums[1][gate]), one);
}

// Rules 7 and 8.
template <class Isa>
inline void rescale_words(const GruRows &rows, int64_t panel, int64_t units,
                          const Longs<Isa> *total, int32_t *to) {
    using Ints = typename Isa::Ints;
    using Longs = typename Isa::Longs;
    for (int gate = 0; gate < 3; ++gate) {
        const int64_t at = (panel * 3 + gate) * kGruUnits;
        const int32_t *const offset = rows.word_offset + 2 * at;
        const Longs high = Isa::products(Ints::load(offset), Ints::splat(1 << kWordOffsetBits));
        const Longs low = Isa::products(Ints::load(offset + kGruUnits), Ints::splat(1));
        const Longs sum = total[gate] + (high + low);
        const Ints code =
            Isa::round_lanes(sum, Isa::load_bytes(rows.shift + at), rows.min, rows.max);
        const Round<Isa> round(rows.to_gate[gate]);
        round(code).store(to + gate * units + panel * kGruUnits);
    }
}

template <class Isa>
QK_NOINLINE void run_word_rows(const GruRows &rows, int64_t panels, const RowTask *tasks,
                               int64_t count, int planes, int64_t plane_stride, bool backward) {
    using Longs = typename Isa::Longs;
    constexpr int64_t group_bytes = 3 * kGruUnits * 4;
    const uint8_t *codes[kGruMostRows];
    alignas(64) int32_t sums[kGruMostRows][3][kGruUnits];
    Longs totals[kGruMostRows][3];
    const int64_t last_plane = planes - 1;  // 0 or 1: also the shift from rows to tasks
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t panel = backward ? panels - 1 - i : i;
        const int8_t *const weights = rows.weights + panel * rows.groups * group_bytes;
        for (int64_t first = 0; first < rows.groups; first += kWordGroups) {
            for (int64_t row = 0; row < count; ++row)
                codes[row] =
                    tasks[row >> last_plane].codes + (row & last_plane) * plane_stride + 4 * first;
            dot_tile<Isa, true>(count, weights + first * group_bytes,
                                min64(kWordGroups, rows.groups - first), codes, sums);
            for (int64_t task = 0; task < count >> last_plane; ++task) {
                for (int gate = 0; gate < 3; ++gate) {
                    const Longs sum = joined<Isa>(planes, sums + (task << last_plane), gate);
                    totals[task][gate] = first == 0 ? sum : totals[task][gate] + sum;
                }
            }
        }
        for (int64_t task = 0; task < count >> last_plane; ++task)
            rescale_words<Isa>(rows, panel, panels * kGruUnits, totals[task], tasks[task].to);
    }
}

template <class Isa>
QK_INLINE inline void run_linear(const GruRows &rows, int64_t panels, const RowTask *tasks,
                                 int64_t count, int planes, int64_t plane_stride, bool backward) {
    if (rows.has_words())
        run_word_rows<Isa>(rows, panels, tasks, count, planes, plane_stride, backward);
    else
        run_rows<Isa>(rows, panels, tasks, count, planes, plane_stride, backward);
}

}  // namespace qk::cpu

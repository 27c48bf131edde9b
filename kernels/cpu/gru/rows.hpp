// W x + bw and R h + br for up to 8 inputs: exact sums, then rule 7's shift and clamp.
//
// Weights of 8 bits: sums in 32 bits, which may wrap on the way (the total is proven to fit).
//
// Weights of 16 bits: exact for every code of 16 bits. A code is two planes of words, its high byte
// and its low byte less 128, so a product stays below 2^23 and 32 bits hold the sums of kWordGroups
// groups of columns; these are added up in 64 bits, where derive() has proven that all fits. Or
// else a product of two codes is added to 64 bits at once (DotsOfLongs).
#pragma once
#include "cpu/gru/gates.hpp"

namespace qk::cpu {

constexpr int kGruMostRows = 8;

// One input as rows of codes, and where its 3h results go.
struct RowTask {
    const uint8_t *codes;
    int32_t *to;  // [gate][units]
};

enum class GruDot { kBytes, kPairs, kWords };

// Where the instruction set adds two products in 16 bits (GruRows::in_pairs) sooner than one.
template <class Isa>
concept DotsOfPairs = requires {
    Isa::template dot_pairs<1>;
};

template <class Isa, int rows, GruDot kind>
inline void dot_rows(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                     GruSums sums) {
    if constexpr (kind == GruDot::kWords)
        Isa::template dot_words<rows>(weights, groups, codes, sums);
    else if constexpr (kind == GruDot::kPairs)
        Isa::template dot_pairs<rows>(weights, groups, codes, sums);
    else
        Isa::template dot<rows>(weights, groups, codes, sums);
}

// `count` rows of codes, as many at a time as the registers hold.
template <class Isa, GruDot kind>
inline void dot_tile(int64_t count, const int8_t *weights, int64_t groups,
                     const uint8_t *const *codes, GruSums sums) {
    while (count > 0) {
        int64_t done = 1;
        if (Isa::kRows >= 8 && count >= 8) {
            dot_rows<Isa, Isa::kRows >= 8 ? 8 : 1, kind>(weights, groups, codes, sums);
            done = 8;
        } else if (Isa::kRows >= 4 && count >= 4) {
            dot_rows<Isa, Isa::kRows >= 4 ? 4 : 1, kind>(weights, groups, codes, sums);
            done = 4;
        } else if (Isa::kRows >= 2 && count >= 2) {
            dot_rows<Isa, Isa::kRows >= 2 ? 2 : 1, kind>(weights, groups, codes, sums);
            done = 2;
        } else {
            dot_rows<Isa, 1, kind>(weights, groups, codes, sums);
        }
        count -= done;
        codes += done;
        sums += done;
    }
}

template <class Isa>
inline void dot_bytes(const GruRows &rows, const int8_t *weights, int64_t count,
                      const uint8_t *const *codes, GruSums sums) {
    if constexpr (DotsOfPairs<Isa>) {
        if (rows.in_pairs)
            return dot_tile<Isa, GruDot::kPairs>(count, weights, rows.groups, codes, sums);
    }
    dot_tile<Isa, GruDot::kBytes>(count, weights, rows.groups, codes, sums);
}

// The sums of one panel for one input, planes joined, become what the gates add.
template <class Isa>
QK_INLINE inline void rescale(const GruRows &rows, int64_t panel, int64_t units, int planes,
                              const int32_t (*sums)[3][kGruUnits], int32_t *to) {
    using Ints = typename Isa::Ints;
    constexpr int kLanes = int(lanes_of<Isa>());
    const int64_t first = panel * 3 * kGruUnits;
    const int32_t *offset = (Isa::kInPlanes ? rows.plane_offset : rows.offset) + first;
    const int32_t *half = rows.half + first;
    const uint8_t *shifts = rows.shift + first;
    const int32_t *from = sums[0][0];
    const Ints low = Ints::splat(rows.min), high = Ints::splat(rows.max);
    const Ints lift = Ints::splat(rows.lift);
    to += panel * kGruUnits;
    for (int gate = 0; gate < 3; ++gate, to += units) {
        const Round<Isa> round(rows.to_gate[gate]);
        for (int unit = 0; unit < kGruUnits; unit += kLanes) {
            Ints sum = Ints::load(from);
            if (planes == 2) sum = (sum << Ints::splat(8)) + Ints::load(from + 3 * kGruUnits);
            sum = (sum << lift) + Ints::load(offset);
            const Ints code = round_each<Isa>(sum, Isa::load_bytes(shifts), half);
            round(clamp(code, low, high)).store(to + unit);
            from += kLanes, offset += kLanes, half += kLanes, shifts += kLanes;
        }
    }
}

// Up to 8 inputs; panels forward or backward, so that what the caches still hold of the weights
// from the last time is used before it is replaced.
template <class Isa>
QK_NOINLINE void run_rows(const GruRows &rows, int64_t panels, const RowTask *tasks, int64_t count,
                          int planes, int64_t plane_stride, bool backward) {
    const uint8_t *codes[kGruMostRows];
    alignas(64) int32_t sums[kGruMostRows][3][kGruUnits];
    const int64_t last_plane = planes - 1;  // 0 or 1: also the shift from rows to tasks
    for (int64_t i = 0; i < count; ++i)
        codes[i] = tasks[i >> last_plane].codes + (i & last_plane) * plane_stride;
    const int64_t panel_bytes = rows.groups * 3 * kGruUnits * 4;
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t panel = backward ? panels - 1 - i : i;
        dot_bytes<Isa>(rows, rows.weights + panel * panel_bytes, count, codes, sums);
        for (int64_t task = 0; task < count >> last_plane; ++task)
            rescale<Isa>(rows, panel, panels * kGruUnits, planes, sums + (task << last_plane),
                         tasks[task].to);
    }
}

// Pairs of columns: 2 * 252 * 2^15 * 2^7 < 2^31. A multiple of what dot_words unrolls.
constexpr int64_t kWordGroups = 252;
constexpr int64_t kWordGroupBytes = 3 * kGruUnits * 4;

// In as many parts as 16 lanes take.
template <class Isa>
constexpr int64_t kParts = kGruUnits / lanes_of<Isa>();

template <class Isa>
inline Longs<Isa> joined(int planes, const int32_t (*sums)[3][kGruUnits], int gate, int64_t part) {
    using Ints = typename Isa::Ints;
    const int64_t at = part * lanes_of<Isa>();
    const Ints one = Ints::splat(1), high = Ints::load(sums[0][gate] + at);
    if (planes == 1) return Isa::products(high, one);
    return Isa::products(high, Ints::splat(256)) +
           Isa::products(Ints::load(sums[1][gate] + at), one);
}

// Rules 7 and 8.
template <class Isa>
inline void rescale_words(const GruRows &rows, int64_t panel, int64_t units,
                          const Longs<Isa> (*total)[kParts<Isa>], int32_t *to) {
    using Ints = typename Isa::Ints;
    using Longs = typename Isa::Longs;
    for (int gate = 0; gate < 3; ++gate) {
        const int64_t at = (panel * 3 + gate) * kGruUnits;
        const Round<Isa> round(rows.to_gate[gate]);
        for (int64_t part = 0; part < kParts<Isa>; ++part) {
            const int64_t unit = part * lanes_of<Isa>();
            const int32_t *const offset = rows.word_offset + 2 * at + unit;
            const Longs high = Isa::products(Ints::load(offset), Ints::splat(1 << kWordOffsetBits));
            const Longs low = Isa::products(Ints::load(offset + kGruUnits), Ints::splat(1));
            const Longs sum = total[gate][part] + (high + low);
            const Ints shift = Isa::load_bytes(rows.shift + at + unit);
            const Ints code = Isa::round_lanes(sum, shift, rows.min, rows.max);
            round(code).store(to + gate * units + panel * kGruUnits + unit);
        }
    }
}

// The sums of one panel of weights for every task.
template <class Isa>
QK_INLINE inline void sum_words(const GruRows &rows, const int8_t *weights, const RowTask *tasks,
                                int64_t count, int planes, int64_t plane_stride,
                                Longs<Isa> (*totals)[3][kParts<Isa>]) {
    const uint8_t *codes[kGruMostRows];
    alignas(64) int32_t sums[kGruMostRows][3][kGruUnits];
    const int64_t last_plane = planes - 1;  // 0 or 1: also the shift from rows to tasks
    for (int64_t first = 0; first < rows.groups; first += kWordGroups) {
        for (int64_t row = 0; row < count; ++row)
            codes[row] =
                tasks[row >> last_plane].codes + (row & last_plane) * plane_stride + 4 * first;
        dot_tile<Isa, GruDot::kWords>(count, weights + first * kWordGroupBytes,
                                      min64(kWordGroups, rows.groups - first), codes, sums);
        for (int64_t task = 0; task < count >> last_plane; ++task) {
            for (int64_t i = 0; i < 3 * kParts<Isa>; ++i) {
                const int64_t gate = i / kParts<Isa>, part = i % kParts<Isa>;
                const Longs<Isa> sum =
                    joined<Isa>(planes, sums + (task << last_plane), int(gate), part);
                Longs<Isa> &total = totals[task][gate][part];
                total = first == 0 ? sum : total + sum;
            }
        }
    }
}

template <class Isa>
QK_NOINLINE void run_word_rows(const GruRows &rows, int64_t panels, const RowTask *tasks,
                               int64_t count, int planes, int64_t plane_stride, bool backward) {
    Longs<Isa> totals[kGruMostRows][3][kParts<Isa>];
    const int64_t task_count = count >> (planes - 1);
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t panel = backward ? panels - 1 - i : i;
        const int8_t *const weights = rows.weights + panel * rows.groups * kWordGroupBytes;
        if constexpr (DotsOfLongs<Isa>) {
            for (int64_t task = 0; task < task_count; ++task)
                Isa::dot_longs(weights, rows.groups, tasks[task].codes, totals[task]);
        } else {
            sum_words<Isa>(rows, weights, tasks, count, planes, plane_stride, totals);
        }
        for (int64_t task = 0; task < task_count; ++task)
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

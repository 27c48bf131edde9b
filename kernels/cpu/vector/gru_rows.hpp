// W x + bw and R h + br for a tile of inputs: exact sums in 32 bits, which may wrap on the way (the
// total is proven to fit), then rule 7's shift and clamp. Included after gru_gates.hpp and dot().
#pragma once
#include "cpu/vector/gru_gates.hpp"

namespace qk::cpu {
namespace {

// One input as rows of codes, and where its 3h results go.
struct RowTask {
    const uint8_t *codes;
    int32_t *to;  // [gate][units]
};

// dot<rows>(weights, groups, codes, sums): one block of 48 weight rows times `rows` rows of codes.
// dot_words<rows>: the same, of weights of 16 bits.
template <int rows, bool words>
inline void dot_rows(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                     int32_t (*sums)[3][kGruUnits]) {
    if constexpr (words)
        dot_words<rows>(weights, groups, codes, sums);
    else
        dot<rows>(weights, groups, codes, sums);
}

template <bool words>
inline void dot_tile(int64_t count, const int8_t *weights, int64_t groups,
                     const uint8_t *const *codes, int32_t (*sums)[3][kGruUnits]) {
    while (count > 0) {
        int64_t done = 1;
        if (kGruTile >= 8 && count >= 8) {
            dot_rows<kGruTile >= 8 ? 8 : 1, words>(weights, groups, codes, sums);
            done = 8;
        } else if (kGruTile >= 4 && count >= 4) {
            dot_rows<kGruTile >= 4 ? 4 : 1, words>(weights, groups, codes, sums);
            done = 4;
        } else if (kGruTile >= 2 && count >= 2) {
            dot_rows<kGruTile >= 2 ? 2 : 1, words>(weights, groups, codes, sums);
            done = 2;
        } else {
            dot_rows<1, words>(weights, groups, codes, sums);
        }
        count -= done;
        codes += done;
        sums += done;
    }
}

// The sums of one block for one input, planes joined, to what the gates add.
QK_GRU_INLINE inline void rescale(const GruRows &rows, int64_t block, int64_t units, int planes,
                                  const int32_t (*sums)[3][kGruUnits], int32_t *to) {
    const int32_t *const offset = kInPlanes ? rows.plane_offset : rows.offset;
    const Ints one = splat(1);
    for (int gate = 0; gate < 3; ++gate) {
        const int64_t at = (block * 3 + gate) * kGruUnits;
        Ints sum = load(sums[0][gate]);
        if (planes == 2) sum = add(shift_left(sum, splat(8)), load(sums[1][gate]));
        sum = add(sum, load(offset + at));
        const Ints shift = load_bytes(rows.shift + at);
        const Ints odd = both(shift_right(sum, shift), one);
        const Ints code = shift_right(add(add(sum, load(rows.half + at)), odd), shift);
        store(to + gate * units + block * kGruUnits,
              Round(rows.to_gate[gate])(clamp(code, rows.min, rows.max)));
    }
}

// Up to 8 inputs; blocks in one order or the other, so that what the caches still hold of the
// weights from the last time is used before it is replaced.
__attribute__((noinline)) void run_rows(const GruRows &rows, int64_t blocks, const RowTask *tasks,
                                        int64_t count, int planes, int64_t plane_stride,
                                        bool backward) {
    const uint8_t *codes[8];
    alignas(64) int32_t sums[8][3][kGruUnits];
    for (int64_t i = 0; i < count; ++i)
        codes[i] = tasks[i / planes].codes + i % planes * plane_stride;
    const int64_t block_bytes = rows.groups * 3 * kGruUnits * 4;
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t block = backward ? blocks - 1 - i : i;
        dot_tile<false>(count, rows.weights + block * block_bytes, rows.groups, codes, sums);
        for (int64_t task = 0; task < count / planes; ++task)
            rescale(rows, block, blocks * kGruUnits, planes, sums + task * planes, tasks[task].to);
    }
}

}  // namespace
}  // namespace qk::cpu

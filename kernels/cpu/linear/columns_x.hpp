// One row of x for kernels that walk across the rows of w (columns.hpp). Where a word of codes has
// columns side by side, x is permuted as they are once words are transposed into bytes.
#pragma once
#include "cpu/linear/row_of_x.hpp"
#include "cpu/linear/x_bytes.hpp"

namespace qk::cpu {
namespace {

// Of 16 columns: 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
template <bool quads, class T>
inline void place_columns(const T *from, T *to) {
    for (int i = 0; i < 16; ++i) to[i] = from[quads ? (i & 8) + 2 * (i & 3) + (i >> 2 & 1) : i];
}

// A block as integers, and sums of lanes as the instruction set multiplies them.
template <class Isa, bool quads>
struct ColumnBytes : XBytes {
    void place(const int32_t *q) {
        XBytes natural;
        natural.place(q);
        for (int i = 0; i < 3; ++i) {
            place_columns<quads>(natural.low[i], low[i]);
            place_columns<quads>(natural.high[i], high[i]);
        }
        for (uint32_t &lane : natural.sum) lane = Isa::sum_operand(lane);
        place_columns<quads>(natural.sum, sum);
    }
};

// A block as floats.
template <bool quads>
struct ColumnFloats {
    alignas(64) float x[kBlock];
    alignas(64) uint32_t mask[16];  // columns of the last step, where it is cut
    int64_t steps, cut;             // of 16 columns; the one that is cut, or none

    void place(const char *from, int64_t count) {
        alignas(64) float natural[kBlock] = {};
        uint32_t there[16];
        memcpy(natural, from, size_t(count) * 4);
        for (int64_t i = 0; i < kBlock; i += 16) place_columns<quads>(natural + i, x + i);
        steps = ceil_div(count, 16);
        cut = count % 16 == 0 ? -1 : steps - 1;
        for (int64_t i = 0; i < 16; ++i) there[i] = i < count % 16 ? ~0u : 0u;
        place_columns<quads>(there, mask);
    }
};

}  // namespace
}  // namespace qk::cpu

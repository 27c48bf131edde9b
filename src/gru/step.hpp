// A whole time step in plain loops: the portable CPU kernel and the Cortex-M build run this.
// Three rows of a unit (u, r, n) are walked together so that each x and h is loaded once.
#pragma once
#include <stdint.h>

#include "gru/cell.hpp"

namespace qk::gru {

template <class Weight, class Code, class Sum>
static inline void dot_three(const Weight *row, int64_t gate_stride, const Code *vector,
                             int32_t count, Sum sums[3]) {
    const Weight *u = row, *r = row + gate_stride, *n = row + 2 * gate_stride;
    Sum sum_u = 0, sum_r = 0, sum_n = 0;
#if !defined(__CUDACC__)
#pragma GCC unroll 8  // a microcontroller pays for every branch
#endif
    for (int32_t k = 0; k < count; ++k) {
        Sum value = vector[k];
        sum_u += value * u[k];
        sum_r += value * r[k];
        sum_n += value * n[k];
    }
    sums[kUpdate] = sum_u;
    sums[kReset] = sum_r;
    sums[kNew] = sum_n;
}

template <class Sum>
static inline void dot_three(int32_t weight_bytes, int32_t code_bytes, const void *weights,
                             int64_t unit, int64_t gate_stride, const void *vector, int32_t count,
                             Sum sums[3]) {
    int64_t first = unit * count;
    const int8_t *w8 = static_cast<const int8_t *>(weights) + first;
    const int16_t *w16 = static_cast<const int16_t *>(weights) + first;
    const int8_t *v8 = static_cast<const int8_t *>(vector);
    const int16_t *v16 = static_cast<const int16_t *>(vector);
    if (weight_bytes == 1 && code_bytes == 1) dot_three(w8, gate_stride, v8, count, sums);
    if (weight_bytes == 1 && code_bytes == 2) dot_three(w8, gate_stride, v16, count, sums);
    if (weight_bytes == 2 && code_bytes == 1) dot_three(w16, gate_stride, v8, count, sums);
    if (weight_bytes == 2 && code_bytes == 2) dot_three(w16, gate_stride, v16, count, sums);
}

QK_HD static inline int32_t load_code(const void *codes, int32_t bytes, int64_t index) {
    return bytes == 1 ? static_cast<const int8_t *>(codes)[index]
                      : static_cast<const int16_t *>(codes)[index];
}

QK_HD static inline void store_code(void *codes, int32_t bytes, int64_t index, int32_t value) {
    if (bytes == 1)
        static_cast<int8_t *>(codes)[index] = int8_t(value);
    else
        static_cast<int16_t *>(codes)[index] = int16_t(value);
}

template <class Dot, class Int>
static inline void units(const Cell &cell, const void *x, const void *h, const void *view,
                         void *h_next, Gates *gates) {
    int32_t c = cell.input_size, n = cell.hidden_size;
    for (int32_t unit = 0; unit < n; ++unit) {
        Dot ih_dot[3] = {}, hh_dot[3] = {};
        dot_three(cell.w_bytes, cell.x_bytes, cell.w, unit, int64_t(n) * c, x, c, ih_dot);
        dot_three(cell.r_bytes, cell.view_bytes, cell.r, unit, int64_t(n) * n, view, n, hh_dot);
        Int ih[3] = {Int(ih_dot[0]), Int(ih_dot[1]), Int(ih_dot[2])};
        Int hh[3] = {Int(hh_dot[0]), Int(hh_dot[1]), Int(hh_dot[2])};
        int32_t next = gru_unit<Int>(cell, unit, ih, hh, load_code(h, cell.h_bytes, unit),
                                     gates == nullptr ? nullptr : gates + unit);
        store_code(h_next, cell.h_bytes, unit, next);
    }
}

// Scratch of one step: a view of h where R reads another width than the state has.
static inline int64_t step_scratch_bytes(const Cell &cell) {
    return cell.view_shift == 0 ? 0 : int64_t(cell.hidden_size) * cell.view_bytes;
}

// x [c] and h [h] in their stored widths -> h_next [h], which must not overlap h.
// gates: NULL or [h].
static inline void step(const Cell &cell, const void *x, const void *h, void *h_next, void *scratch,
                        Gates *gates) {
    const void *view = h;
    if (cell.view_shift != 0) {
        for (int32_t unit = 0; unit < cell.hidden_size; ++unit)
            store_code(scratch, cell.view_bytes, unit,
                       view_of_h(cell, load_code(h, cell.h_bytes, unit)));
        view = scratch;
    }
    if (cell.cell_is_32 != 0)
        units<int32_t, int32_t>(cell, x, h, view, h_next, gates);
    else if (cell.dot_is_32 != 0)
        units<int32_t, int64_t>(cell, x, h, view, h_next, gates);
    else
        units<int64_t, int64_t>(cell, x, h, view, h_next, gates);
}

}  // namespace qk::gru

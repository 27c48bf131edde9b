// A whole time step in plain loops: the portable CPU kernel and the Cortex-M build run this.
#pragma once
#include <stdint.h>

#include "gru/cell.hpp"
#include "gru/dot.hpp"
#include "gru/mve.hpp"

namespace qk::gru {

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
__attribute__((noinline, unused)) static void units(const Cell &cell, const void *x, const void *h,
                                                    const void *view, void *h_next, Gates *gates) {
    const int32_t c = cell.input_size, n = cell.hidden_size;
    for (int32_t unit = 0; unit < n; ++unit) {
        Dot ih_dot[3] = {}, hh_dot[3] = {};
        dot_three(cell.w_bytes, cell.x_bytes, cell.w, unit, ptrdiff_t(n) * c, x, c, ih_dot);
        dot_three(cell.r_bytes, cell.view_bytes, cell.r, unit, ptrdiff_t(n) * n, view, n, hh_dot);
        Int ih[3] = {Int(ih_dot[0]), Int(ih_dot[1]), Int(ih_dot[2])};
        Int hh[3] = {Int(hh_dot[0]), Int(hh_dot[1]), Int(hh_dot[2])};
        int32_t next = gru_unit<Int>(cell, unit, ih, hh, load_code(h, cell.h_bytes, unit),
                                     gates == nullptr ? nullptr : gates + unit);
        store_code(h_next, cell.h_bytes, unit, next);
    }
}

// is_small(cell), or with HalfWideRules is_half_wide(cell). Code is the state's.
template <class Rules, class Code>
__attribute__((noinline, unused)) static void small_units(const Cell &cell, const int8_t *x,
                                                          const Code *h, const int8_t *view,
                                                          Code *h_next) {
    const int32_t c = cell.input_size, n = cell.hidden_size;
    const int8_t *w = static_cast<const int8_t *>(cell.w), *r = static_cast<const int8_t *>(cell.r);
    for (int32_t unit = 0; unit < n; ++unit, w += c, r += n) {
        int32_t ih[3], hh[3];
        dot_three(w, ptrdiff_t(n) * c, x, c, ih);
        dot_three(r, ptrdiff_t(n) * n, view, n, hh);
        h_next[unit] = Code(gru_unit<int32_t, Rules>(cell, unit, ih, hh, h[unit], nullptr));
    }
}

// Scratch of one step: a view of h where R reads another width than the state has.
static inline int64_t step_scratch_bytes(const Cell &cell) {
    return cell.view_shift == 0 ? 0 : int64_t(cell.hidden_size) * cell.view_bytes;
}

__attribute__((noinline, unused)) static void view_codes(const Cell &cell, const void *h,
                                                         void *view) {
    for (int32_t unit = 0; unit < cell.hidden_size; ++unit)
        store_code(view, cell.view_bytes, unit, view_of_h(cell, load_code(h, cell.h_bytes, unit)));
}

template <class Code>
__attribute__((noinline, unused)) static void small_view(const Cell &cell, const Code *h,
                                                         int8_t *view) {
#if defined(__ARM_FEATURE_MVE)
    view_by_four(cell, h, view);
#else
    for (int32_t unit = 0; unit < cell.hidden_size; ++unit)
        view[unit] = int8_t(view_of_h(cell, h[unit]));
#endif
}

// A step of a cell whose weights and operands have 8 bits; scratch is for the view.
template <class Rules, class Code>
static inline void small_step(const Cell &cell, const void *x, const void *h, void *h_next,
                              void *scratch) {
    const int8_t *const x8 = static_cast<const int8_t *>(x);
    const Code *const from = static_cast<const Code *>(h);
    Code *const to = static_cast<Code *>(h_next);
    const int8_t *view = static_cast<const int8_t *>(h);
    if (cell.view_shift != 0) {
        small_view(cell, from, static_cast<int8_t *>(scratch));
        view = static_cast<const int8_t *>(scratch);
    }
#if defined(__ARM_FEATURE_MVE)
    units_by_four(cell, x8, from, view, to);
#else
    small_units<Rules>(cell, x8, from, view, to);
#endif
}

// x [c] and h [h] in their stored widths -> h_next [h], which must not overlap h.
// gates: NULL or [h].
static inline void step(const Cell &cell, const void *x, const void *h, void *h_next, void *scratch,
                        Gates *gates) {
    if (is_small(cell) && gates == nullptr)
        return small_step<CellRules<int32_t, int32_t>, int8_t>(cell, x, h, h_next, scratch);
#if !defined(QK_GRU_8_BIT)  // such a build loads no other models and shows no gates
    if (is_half_wide(cell) && gates == nullptr)
        return small_step<HalfWideRules, int16_t>(cell, x, h, h_next, scratch);
    const void *view = h;
    if (cell.view_shift != 0) {
        view_codes(cell, h, scratch);
        view = scratch;
    }
    if (cell.dot_is_32 != 0)
        units<int32_t, int64_t>(cell, x, h, view, h_next, gates);
    else
        units<int64_t, int64_t>(cell, x, h, view, h_next, gates);
#endif
}

}  // namespace qk::gru

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

// Scratch of one step: a view of h where R reads another width than the state has.
static inline int64_t step_scratch_bytes(const Cell &cell) {
    return cell.view_shift == 0 ? 0 : int64_t(cell.hidden_size) * cell.view_bytes;
}

__attribute__((noinline, unused)) static void view_codes(const Cell &cell, const void *h,
                                                         void *view) {
    for (int32_t unit = 0; unit < cell.hidden_size; ++unit)
        store_code(view, cell.view_bytes, unit, view_of_h(cell, load_code(h, cell.h_bytes, unit)));
}

// ih and hh of one unit, their zero points removed. It and wide_gates() are calls of their own so
// that their working memory, mostly pairs of words, is never on the stack at once.
template <class Dot>
__attribute__((noinline, unused)) static void wide_codes(const Cell &cell, int32_t unit,
                                                         const void *x, const void *view,
                                                         int32_t codes[6]) {
    const int32_t c = cell.input_size, n = cell.hidden_size;
    Dot sums[6];
    dot_three(cell.w_bytes, cell.x_bytes, cell.w, unit, ptrdiff_t(n) * c, x, c, sums);
    dot_three(cell.r_bytes, cell.view_bytes, cell.r, unit, ptrdiff_t(n) * n, view, n, sums + 3);
    for (int32_t gate = 0; gate < 3; ++gate) {
        const int32_t row = gate * n + unit;
        codes[gate] = ih_code<int64_t>(cell, row, sums[gate]) - cell.ih_zero;
        codes[gate + 3] = hh_code<int64_t>(cell, row, sums[gate + 3]) - cell.hh_zero;
    }
}

__attribute__((noinline, unused)) static void wide_gates(const Cell &cell, int32_t unit,
                                                         const int32_t codes[6], const void *h,
                                                         void *h_next, Gates *gates) {
    const CellRules<int64_t, int64_t> rules = {cell};
    const int32_t next = next_h(rules, codes, codes + 3, load_code(h, cell.h_bytes, unit), gates);
    store_code(h_next, cell.h_bytes, unit, next);
}

template <class Dot>
__attribute__((noinline, unused)) static void wide_units(const Cell &cell, const void *x,
                                                         const void *h, void *h_next, void *scratch,
                                                         Gates *gates) {
    const void *view = h;
    if (cell.view_shift != 0) {
        view_codes(cell, h, scratch);
        view = scratch;
    }
    for (int32_t unit = 0; unit < cell.hidden_size; ++unit) {
        int32_t codes[6];
        wide_codes<Dot>(cell, unit, x, view, codes);
        wide_gates(cell, unit, codes, h, h_next, gates == nullptr ? nullptr : gates + unit);
    }
}

// is_small(cell), or with HalfWideRules is_half_wide(cell). Code is the state's.
#if defined(__ARM_FEATURE_MVE)
template <class Rules, class Code>
static inline void small_units(const Cell &cell, const int8_t *x, const Code *h, Code *h_next,
                               void *scratch) {
    units_by_four(cell, x, h, h_next, scratch);
}
#else
template <class Code>
__attribute__((noinline, unused)) static void small_view(const Cell &cell, const Code *h,
                                                         int8_t *view) {
    for (int32_t unit = 0; unit < cell.hidden_size; ++unit)
        view[unit] = int8_t(view_of_h(cell, h[unit]));
}

template <class Rules, class Code>
__attribute__((noinline, unused)) static void small_units(const Cell &cell, const int8_t *x,
                                                          const Code *h, Code *h_next,
                                                          void *scratch) {
    const int8_t *view = reinterpret_cast<const int8_t *>(h);
    if (cell.view_shift != 0) {
        view = static_cast<const int8_t *>(scratch);
        small_view(cell, h, static_cast<int8_t *>(scratch));
    }
    const int32_t c = cell.input_size, n = cell.hidden_size;
    const int8_t *w = static_cast<const int8_t *>(cell.w), *r = static_cast<const int8_t *>(cell.r);
    for (int32_t unit = 0; unit < n; ++unit, w += c, r += n) {
        int32_t ih[3], hh[3];
        dot_three(w, ptrdiff_t(n) * c, x, c, ih);
        dot_three(r, ptrdiff_t(n) * n, view, n, hh);
        h_next[unit] = Code(gru_unit<int32_t, Rules>(cell, unit, ih, hh, h[unit], nullptr));
    }
}
#endif

// x [c] and h [h] in their stored widths -> h_next [h], which must not overlap h.
// gates: NULL or [h]. The calls are the last thing of a step, so that it needs no stack of its own.
static inline void step(const Cell &cell, const void *x, const void *h, void *h_next, void *scratch,
                        Gates *gates) {
    if (is_small(cell) && gates == nullptr)
        return small_units<CellRules<int32_t, int32_t>>(cell, static_cast<const int8_t *>(x),
                                                        static_cast<const int8_t *>(h),
                                                        static_cast<int8_t *>(h_next), scratch);
#if !defined(QK_GRU_8_BIT)  // such a build loads no other models and shows no gates
    if (is_half_wide(cell) && gates == nullptr)
        return small_units<HalfWideRules>(cell, static_cast<const int8_t *>(x),
                                          static_cast<const int16_t *>(h),
                                          static_cast<int16_t *>(h_next), scratch);
    if (cell.dot_is_32 != 0) return wide_units<int32_t>(cell, x, h, h_next, scratch, gates);
    return wide_units<int64_t>(cell, x, h, h_next, scratch, gates);
#endif
}

}  // namespace qk::gru

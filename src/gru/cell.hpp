// One unit of the GRU cell in integers: rules 7 to 13 of docs/gru.md and nothing else. Every
// backend forms the two exact dot products of a gate its own way and then calls gru_unit.
//
// Int is int64_t, or int32_t where derive() has proven that no intermediate reaches 2^30. Wide, of
// products and of lines, may be int64_t where Int is int32_t.
#pragma once
#include <stdint.h>

#include "base/hd.hpp"
#include "base/rounding_shift.hpp"
#include "gru/table.hpp"

namespace qk::gru {

enum Gate : int32_t { kUpdate = 0, kReset = 1, kNew = 2 };

// A frozen model with every shift already subtracted; what kernels read. Borrows the arrays.
struct Cell {
    int32_t input_size, hidden_size;
    int32_t w_bytes, r_bytes, x_bytes, h_bytes, view_bytes;  // 1 or 2, as stored

    const void *w;             // [3h,c]
    const void *r;             // [3h,h]
    const int8_t *w_shift;     // [3h]
    const int8_t *r_shift;     // [3h]
    const int64_t *ih_offset;  // [3h] bias in the product's scale minus W_sum * zp_x
    const int64_t *hh_offset;  // [3h] the same for R, with the zero point of the view of h

    int32_t x_zero, x_min, x_max;
    int32_t h_zero, h_min, h_max;
    int32_t view_shift, view_min, view_max;
    int32_t ih_zero, ih_min, ih_max, ih_shift;  // shift of row j: w_shift[j] + ih_shift
    int32_t hh_zero, hh_min, hh_max, hh_shift;
    int32_t u_zero, r_zero, n_zero;
    int32_t u_in_zero, r_in_zero, n_in_zero;
    int32_t u_one;  // the code of u = 1

    int32_t ih_to_u, hh_to_u, ih_to_r, hh_to_r, ih_to_n, rhh_to_n, n_to_h, u_shift;
    int32_t x_scale, h_scale, r_scale, n_scale, hh_scale;  // real = (code - zero) * 2^-scale
    // What int32_t holds, with room for the rounding where there is any.
    int32_t dot_is_32;     // both dot products
    int32_t linear_is_32;  // and all that makes ih and hh of them
    int32_t sums_is_32;    // and the gates' arguments and n in h's scale, but no product of codes
    int32_t cell_is_32;    // and everything else
    int32_t lines_is_32;   // the lines of the tables, whatever else does not
    int32_t ih_shifts_right, hh_shifts_right;  // every row's shift to ih, to hh is 1..31
    Table update, reset, candidate;
};

// 8 bits everywhere, and nothing that 32 bits do not hold: the case for microcontrollers.
QK_HD static constexpr bool is_small(const Cell &cell) {
    return cell.cell_is_32 != 0 && (cell.w_bytes | cell.r_bytes | cell.x_bytes | cell.h_bytes) == 1;
}

// A sum of products of 16-bit codes for rounding_shift(x, n): 32 bits of x * 2^-kNarrow, the lowest
// of which also says whether anything was below it. It is rounded by n - kNarrow, which is at least
// 2: a tie stays a tie, and what is beside one stays beside it.
inline constexpr int32_t kNarrow = 7, kNarrowRest = (1 << kNarrow) - 1;
QK_HD static constexpr int32_t narrowed(int64_t x) {
    return int32_t(x >> kNarrow) | int32_t((x & kNarrowRest) != 0);
}

// 8-bit weights, x and view of a 16-bit h, all of W8H16: 32 bits hold everything but the products
// of two gates, and these when narrowed (they are below 2^36).
QK_HD static constexpr bool is_half_wide(const Cell &cell) {
    return cell.sums_is_32 != 0 && cell.lines_is_32 != 0 && cell.h_bytes == 2 &&
           (cell.w_bytes | cell.r_bytes | cell.x_bytes | cell.view_bytes) == 1 &&
           cell.rhh_to_n >= kNarrow + 2 && cell.rhh_to_n <= kNarrow + 31 &&
           cell.u_shift >= kNarrow + 2 && cell.u_shift <= 17 && cell.n_to_h >= 0;
}

struct Gates {  // codes, for those who train or debug
    int32_t u, r, n, hh_n;
};

// Rules 7 and 8: accumulator plus offset, one shift, zero point, clamp to the type.
template <class Int>
QK_HD static constexpr int32_t linear_code(Int sum, int32_t shift, int32_t zero, int32_t min,
                                           int32_t max) {
    return int32_t(clamp<Int>(rounding_shift(sum, shift) + zero, min, max));
}

template <class Int>
QK_HD static constexpr int32_t ih_code(const Cell &cell, int32_t row, Int accumulator) {
    return linear_code(accumulator + Int(cell.ih_offset[row]), cell.w_shift[row] + cell.ih_shift,
                       cell.ih_zero, cell.ih_min, cell.ih_max);
}

template <class Int>
QK_HD static constexpr int32_t hh_code(const Cell &cell, int32_t row, Int accumulator) {
    return linear_code(accumulator + Int(cell.hh_offset[row]), cell.r_shift[row] + cell.hh_shift,
                       cell.hh_zero, cell.hh_min, cell.hh_max);
}

// How gates_to_h shifts and looks up, as the cell says it; a kernel may have rules of its own that
// give the same integers faster. Everything is a difference from its zero point.
template <class Int_, class Wide_>
struct CellRules {
    using Int = Int_;
    using Wide = Wide_;
    const Cell &cell;

    QK_HD constexpr Int ih_to_u(Int ih) const { return rounding_shift(ih, cell.ih_to_u); }
    QK_HD constexpr Int ih_to_r(Int ih) const { return rounding_shift(ih, cell.ih_to_r); }
    QK_HD constexpr Int ih_to_n(Int ih) const { return rounding_shift(ih, cell.ih_to_n); }
    QK_HD constexpr Int hh_to_u(Int hh) const { return rounding_shift(hh, cell.hh_to_u); }
    QK_HD constexpr Int hh_to_r(Int hh) const { return rounding_shift(hh, cell.hh_to_r); }
    QK_HD constexpr Wide rhh_to_n(Wide rhh) const { return rounding_shift(rhh, cell.rhh_to_n); }
    QK_HD constexpr Int n_to_h(Int n) const { return rounding_shift(n, cell.n_to_h); }
    QK_HD constexpr int32_t update(Int sum) const {
        return table_value<Wide>(cell.update, sum + cell.u_in_zero) - cell.u_zero;
    }
    QK_HD constexpr int32_t reset(Int sum) const {
        return table_value<Wide>(cell.reset, sum + cell.r_in_zero) - cell.r_zero;
    }
    QK_HD constexpr int32_t candidate(Wide sum) const {
        return table_value<Wide>(cell.candidate, sum + cell.n_in_zero) - cell.n_zero;
    }
    QK_HD constexpr int32_t one() const { return cell.u_one - cell.u_zero; }
    QK_HD constexpr int32_t to_h(Wide product) const {
        return int32_t(clamp<Wide>(rounding_shift(product, cell.u_shift), cell.h_min - cell.h_zero,
                                   cell.h_max - cell.h_zero));
    }
};

// is_half_wide(cell).
struct HalfWideRules : CellRules<int32_t, int64_t> {
    QK_HD constexpr int32_t rhh_to_n(int64_t rhh) const {
        return rounding_shift(narrowed(rhh), cell.rhh_to_n - kNarrow);
    }
    QK_HD constexpr int32_t update(int32_t sum) const {
        return table_value<int32_t>(cell.update, sum + cell.u_in_zero) - cell.u_zero;
    }
    QK_HD constexpr int32_t reset(int32_t sum) const {
        return table_value<int32_t>(cell.reset, sum + cell.r_in_zero) - cell.r_zero;
    }
    QK_HD constexpr int32_t candidate(int32_t sum) const {
        return table_value<int32_t>(cell.candidate, sum + cell.n_in_zero) - cell.n_zero;
    }
    QK_HD constexpr int32_t to_h(int64_t product) const {
        return clamp(rounding_shift(narrowed(product), cell.u_shift - kNarrow),
                     cell.h_min - cell.h_zero, cell.h_max - cell.h_zero);
    }
};

// W x + bw in the scales of the gates' arguments: all of a step that does not wait for h.
template <class Int>
struct InputSums {
    Int u, r, n;
};

template <class Rules>
QK_HD static constexpr InputSums<typename Rules::Int> input_sums(const Rules &rules,
                                                                 const int32_t ih[3]) {
    return {rules.ih_to_u(ih[kUpdate]), rules.ih_to_r(ih[kReset]), rules.ih_to_n(ih[kNew])};
}

// C-1 to C-4 from the clamped linear outputs; each addend is rounded by itself (rule 10).
// Arguments, result and gates are differences from their zero points.
template <class Rules>
QK_HD static constexpr int32_t gates_to_h(const Rules &rules,
                                          const InputSums<typename Rules::Int> &input,
                                          const int32_t hh[3], int32_t h_old, Gates *gates) {
    using Int = typename Rules::Int;
    using Wide = typename Rules::Wide;
    int32_t u = rules.update(input.u + rules.hh_to_u(Int(hh[kUpdate])));
    int32_t r = rules.reset(input.r + rules.hh_to_r(Int(hh[kReset])));
    int32_t n = rules.candidate(input.n + rules.rhh_to_n(Wide(r) * hh[kNew]));
    if (gates != nullptr) *gates = Gates{u, r, n, hh[kNew]};
    // Rule 11: h's zero point, added and subtracted in the prose, cancels. Rule 12: u's does not
    // enter 1 - u twice.
    return rules.to_h(Wide(u) * h_old + Wide(rules.one() - u) * rules.n_to_h(n));
}

// One unit from its clamped linear outputs, their zero points removed, and the code of h.
template <class Rules>
QK_HD static constexpr int32_t next_h(const Rules &rules, const int32_t ih[3], const int32_t hh[3],
                                      int32_t h_old, Gates *gates) {
    const Cell &cell = rules.cell;
    int32_t h = gates_to_h(rules, input_sums(rules, ih), hh, h_old - cell.h_zero, gates);
    if (gates != nullptr) {
        gates->u += cell.u_zero;
        gates->r += cell.r_zero;
        gates->n += cell.n_zero;
        gates->hh_n += cell.hh_zero;
    }
    return h + cell.h_zero;
}

// The same from accumulators: exact sums of products of codes, zero points not yet removed.
template <class Int, class Rules = CellRules<Int, Int>>
QK_HD static inline int32_t gru_unit(const Cell &cell, int32_t unit, const Int ih_sum[3],
                                     const Int hh_sum[3], int32_t h_old, Gates *gates) {
    int32_t ih[3], hh[3];
    for (int32_t gate = 0; gate < 3; ++gate) {
        int32_t row = gate * cell.hidden_size + unit;
        ih[gate] = ih_code<Int>(cell, row, ih_sum[gate]) - cell.ih_zero;
        hh[gate] = hh_code<Int>(cell, row, hh_sum[gate]) - cell.hh_zero;
    }
    return next_h(Rules{{cell}}, ih, hh, h_old, gates);
}

// What R multiplies: h itself, or h rounded to its high bits.
QK_HD static constexpr int32_t view_of_h(const Cell &cell, int32_t h) {
    return clamp(rounding_shift(h, cell.view_shift), cell.view_min, cell.view_max);
}

}  // namespace qk::gru

// One unit of the GRU cell in integers: rules 7 to 13 of docs/gru.md and nothing else. Every
// backend forms the two exact dot products of a gate its own way and then calls gru_unit.
//
// Int is int64_t, or int32_t where derive() has proven that no intermediate reaches 2^30.
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
    int32_t dot_is_32;                                     // both dot products fit int32_t
    int32_t cell_is_32;  // so does everything after them, with room for the rounding
    Table update, reset, candidate;
};

struct Gates {  // codes, for those who train or debug
    int32_t u, r, n, hh_n;
};

// Rules 7 and 8: accumulator plus offset, one shift, zero point, clamp to the type.
template <class Int>
QK_HD static constexpr int32_t ih_code(const Cell &cell, int32_t row, Int accumulator) {
    Int sum = accumulator + Int(cell.ih_offset[row]);
    Int code = rounding_shift(sum, cell.w_shift[row] + cell.ih_shift) + cell.ih_zero;
    return int32_t(clamp<Int>(code, cell.ih_min, cell.ih_max));
}

template <class Int>
QK_HD static constexpr int32_t hh_code(const Cell &cell, int32_t row, Int accumulator) {
    Int sum = accumulator + Int(cell.hh_offset[row]);
    Int code = rounding_shift(sum, cell.r_shift[row] + cell.hh_shift) + cell.hh_zero;
    return int32_t(clamp<Int>(code, cell.hh_min, cell.hh_max));
}

// C-1 to C-4 from the clamped linear outputs; each addend is rounded by itself (rule 10).
template <class Int>
QK_HD static constexpr int32_t gates_to_h(const Cell &cell, const int32_t ih[3],
                                          const int32_t hh[3], int32_t h_old, Gates *gates) {
    Int ih_u = Int(ih[kUpdate]) - cell.ih_zero, hh_u = Int(hh[kUpdate]) - cell.hh_zero;
    Int ih_r = Int(ih[kReset]) - cell.ih_zero, hh_r = Int(hh[kReset]) - cell.hh_zero;
    Int ih_n = Int(ih[kNew]) - cell.ih_zero, hh_n = Int(hh[kNew]) - cell.hh_zero;

    int32_t u =
        table_value<Int>(cell.update, rounding_shift(ih_u, cell.ih_to_u) +
                                          rounding_shift(hh_u, cell.hh_to_u) + cell.u_in_zero);
    int32_t r =
        table_value<Int>(cell.reset, rounding_shift(ih_r, cell.ih_to_r) +
                                         rounding_shift(hh_r, cell.hh_to_r) + cell.r_in_zero);
    Int reset_hidden = (Int(r) - cell.r_zero) * hh_n;
    int32_t n = table_value<Int>(cell.candidate, rounding_shift(ih_n, cell.ih_to_n) +
                                                     rounding_shift(reset_hidden, cell.rhh_to_n) +
                                                     cell.n_in_zero);

    // Rule 11: h's zero point, added and subtracted in the prose, cancels. Rule 12: u's does not
    // enter 1 - u twice.
    Int n_aligned = rounding_shift(Int(n) - cell.n_zero, cell.n_to_h);
    Int kept = (Int(u) - cell.u_zero) * (Int(h_old) - cell.h_zero);
    Int replaced = (Int(cell.u_one) - u) * n_aligned;
    Int h = rounding_shift(kept + replaced, cell.u_shift) + cell.h_zero;
    if (gates != nullptr) *gates = Gates{u, r, n, hh[kNew]};
    return int32_t(clamp<Int>(h, cell.h_min, cell.h_max));
}

// One unit: accumulators are exact sums of products of codes, zero points not yet removed.
template <class Int>
QK_HD static constexpr int32_t gru_unit(const Cell &cell, int32_t unit, const Int ih_sum[3],
                                        const Int hh_sum[3], int32_t h_old, Gates *gates) {
    int32_t ih[3], hh[3];
    for (int32_t gate = 0; gate < 3; ++gate) {
        int32_t row = gate * cell.hidden_size + unit;
        ih[gate] = ih_code<Int>(cell, row, ih_sum[gate]);
        hh[gate] = hh_code<Int>(cell, row, hh_sum[gate]);
    }
    return gates_to_h<Int>(cell, ih, hh, h_old, gates);
}

// What R multiplies: h itself, or h rounded to its high bits.
QK_HD static constexpr int32_t view_of_h(const Cell &cell, int32_t h) {
    return clamp(rounding_shift(h, cell.view_shift), cell.view_min, cell.view_max);
}

}  // namespace qk::gru

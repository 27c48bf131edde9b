// Four units at a time on Helium: 8-bit weights and operands, any sizes, a state of 8 or 16 bits.
// The equations are those of cell.hpp.
#pragma once
#if defined(__ARM_FEATURE_MVE)
#include "gru/cell.hpp"
#include "gru/lanes.hpp"

namespace qk::gru {

// rounding_shift() by -left lanes. The tie that VRSHL would round up to an odd code is moved below
// the half first, where the shift goes right. From 31 on it gives 0, as it should: |x| < 2^30.
static inline Lanes round_left(Lanes x, Lanes left) {
    x = x - and_not(sign_bits(left), shift_left(x, left));
    return shift_left_rounded(x, left);
}
static inline Lanes round_lanes(Lanes x, int32_t n) { return round_left(x, same_lanes(-n)); }

// knot_segment() of table.hpp.
static inline Lanes knot_segments(const Table &table, Lanes code) {
    int32_t half = table.half;
    if (half == 0) return same_lanes(0);
    // 1 where threshold <= code: the sign of threshold - code - 1.
    const Lanes not_code = ~code;
    const int32_t *const below = table.threshold - 1;
    const Lanes first = sign_bits(lanes_add(not_code, below[half]));
    Lanes segment = lanes_times(first, table.count - half);
    while ((half >>= 1) != 0) {
        const Lanes threshold = gather(below + half, segment);
        segment = lanes_add_times(segment, sign_bits(not_code + threshold), half);
    }
    return segment;
}

__attribute__((noinline, unused)) static Lanes table_lanes(const Table &table, Lanes sum) {
    Lanes value = clamp_lanes(sum, table.input_min, table.input_max);
    Lanes result;
    if (__builtin_expect(table.kind == QK_GRU_TABLE_KNOTS, 1)) {  // W8A8's: the most instructions
        const Lanes segment = knot_segments(table, value);
        value = lanes_subtract(value, table.input_zero) * gather(table.slope, segment);
        result = round_lanes(value, table.shift) + gather(table.intercept, segment);
    } else {
        const int32_t last = (table.count << table.width_log2) - 1;
        value = clamp_lanes(lanes_subtract(value, table.input_zero + table.first), 0, last);
        const Lanes segment = shift_left(value, -table.width_log2);
        value = value - shift_left(segment, table.width_log2);
        value = value * gather(table.slope, segment) + gather(table.intercept, segment);
        result = round_lanes(value, table.shift);
    }
    return clamp_lanes(result, table.output_min, table.output_max);
}

// W x + bw or R h + br.
struct LinearOf {
    const int64_t *offset;
    const int8_t *weights, *codes, *shift;
    int32_t count, next;           // weights of a row; from one lane's row to the next one's
    int32_t more_shift, min, max;  // bounds with the zero point removed
};

// Rows row to row + 3, their zero point removed again.
__attribute__((noinline, unused)) static Lanes linear_lanes(const LinearOf &of, int32_t row) {
    // |offset| < 2^30: the low word is all of it.
    const int64_t *const offset = of.offset + row;
    int32_t sums[] = {int32_t(offset[0]), int32_t(offset[1]), int32_t(offset[2]),
                      int32_t(offset[3])};
    add_dots(of.codes, of.weights + row * of.count, of.next, of.count, sums);
    const Lanes sum = four_lanes(sums[0], sums[1], sums[2], sums[3]);
    const Lanes right = lanes_add(load_lanes(of.shift + row), of.more_shift);
    return clamp_lanes(round_left(sum, -right), of.min, of.max);
}

// A sum of products a * b * 2^-n, rounded. Where they have 16 bits, 256 * high + low is the sum,
// and narrowed() of cell.hpp what is rounded.
template <class Code>
struct Products;
template <>
struct Products<int8_t> {
    Lanes sum;
    Products(Lanes a, Lanes b) : sum(a * b) {}
    void add(Lanes a, Lanes b) { sum = sum + a * b; }
    Lanes rounded(int32_t n) const { return round_lanes(sum, n); }
};
template <>
struct Products<int16_t> {
    Lanes high, low;
    Products(Lanes a, Lanes b) : high((a >> 8) * b), low((a & 255) * b) {}
    void add(Lanes a, Lanes b) {
        high = high + (a >> 8) * b;
        low = low + (a & 255) * b;
    }
    Lanes rounded(int32_t n) const {
        const Lanes rest = ((low & kNarrowRest) + kNarrowRest) >> kNarrow;
        return round_lanes((high * (256 >> kNarrow) + (low >> kNarrow)) | rest, n - kNarrow);
    }
};

// body(unit, lanes) for groups of four from the end on; the last one begins at 0, so that some
// units are done twice. Fewer than four are done one by one, in lane 0.
template <class Body>
static inline void by_four(int32_t units, Body body) {
    const int32_t lanes = units < 4 ? 1 : 4;
    for (int32_t unit = units - lanes;; unit = unit > lanes ? unit - lanes : 0) {
        body(unit, lanes);
        if (unit == 0) break;
    }
}

// view_of_h() of a state.
template <class Code>
__attribute__((noinline, unused)) static void view_by_four(const Cell &cell, const Code *h,
                                                           int8_t *view) {
    by_four(cell.hidden_size, [&](int32_t unit, int32_t lanes) {
        const Lanes rounded = round_lanes(load_lanes(h + unit, lanes), cell.view_shift);
        store_lanes(view + unit, lanes, clamp_lanes(rounded, cell.view_min, cell.view_max));
    });
}

// Code is the state's.
template <class Code>
__attribute__((noinline, unused)) static void units_by_four(const Cell &cell, const int8_t *x,
                                                            const Code *h, Code *h_next,
                                                            void *scratch) {
    const int8_t *view = reinterpret_cast<const int8_t *>(h);
    if (cell.view_shift != 0) {
        view = static_cast<const int8_t *>(scratch);
        view_by_four(cell, h, static_cast<int8_t *>(scratch));
    }
    const int32_t n = cell.hidden_size, c = cell.input_size;
    const LinearOf input = {cell.ih_offset,
                            static_cast<const int8_t *>(cell.w),
                            x,
                            cell.w_shift,
                            c,
                            n < 4 ? 0 : c,
                            cell.ih_shift,
                            cell.ih_min - cell.ih_zero,
                            cell.ih_max - cell.ih_zero};
    const LinearOf hidden = {cell.hh_offset,
                             static_cast<const int8_t *>(cell.r),
                             view,
                             cell.r_shift,
                             n,
                             n < 4 ? 0 : n,
                             cell.hh_shift,
                             cell.hh_min - cell.hh_zero,
                             cell.hh_max - cell.hh_zero};
    by_four(
        n, [&](int32_t unit, int32_t lanes) __attribute__((always_inline)) {
            Lanes ih = linear_lanes(input, unit);
            Lanes hh = linear_lanes(hidden, unit);
            Lanes in = round_lanes(ih, cell.ih_to_u) + round_lanes(hh, cell.hh_to_u);
            const Lanes u = table_lanes(cell.update, lanes_add(in, cell.u_in_zero));

            ih = linear_lanes(input, n + unit);
            hh = linear_lanes(hidden, n + unit);
            in = round_lanes(ih, cell.ih_to_r) + round_lanes(hh, cell.hh_to_r);
            const Lanes r = table_lanes(cell.reset, lanes_add(in, cell.r_in_zero));

            ih = linear_lanes(input, 2 * n + unit);
            hh = linear_lanes(hidden, 2 * n + unit);
            const Products<Code> reset(lanes_subtract(r, cell.r_zero), hh);
            in = round_lanes(ih, cell.ih_to_n) + reset.rounded(cell.rhh_to_n);
            const Lanes tanh = table_lanes(cell.candidate, lanes_add(in, cell.n_in_zero));

            const Lanes aligned = round_lanes(lanes_subtract(tanh, cell.n_zero), cell.n_to_h);
            const Lanes old = lanes_subtract(load_lanes(h + unit, lanes), cell.h_zero);
            Products<Code> next(lanes_subtract(u, cell.u_zero), old);
            next.add(same_lanes(cell.u_one) - u, aligned);
            const Lanes step = lanes_add(next.rounded(cell.u_shift), cell.h_zero);
            store_lanes(h_next + unit, lanes, clamp_lanes(step, cell.h_min, cell.h_max));
        });
}

}  // namespace qk::gru
#endif

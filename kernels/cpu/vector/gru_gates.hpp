// Everything of the integer GRU cell but the sums of products, 16 units at a time: rules 7 to 13
// of docs/gru.md on vectors of int32. Included after an instruction set's gru_lanes.hpp.
#pragma once
#include "cpu/vector/gru_operands.hpp"

namespace qk::cpu {
namespace {

// Half to even: (x + 2^(n-1) - 1 + (bit n of x)) >> n; n <= 0 multiplies.
struct Round {
    Ints left, half, one, right;

    QK_GRU_INLINE explicit Round(GruShift shift)
        : left(splat(shift.left)),
          half(splat(shift.right == 0 ? 0 : int32_t((1u << (shift.right - 1)) - 1))),
          one(splat(shift.right != 0)), right(splat(shift.right)) {}
    QK_GRU_INLINE Ints operator()(Ints x) const {
        x = shift_left(x, left);
        return shift_right(add(add(x, half), both(shift_right(x, right), one)), right);
    }
};

// The same for a sum of products, in 64 bits where `wide`.
template <bool wide>
struct RoundProducts;

template <>
struct RoundProducts<false> {
    Round round;
    QK_GRU_INLINE explicit RoundProducts(GruShift shift) : round(shift) {}
    QK_GRU_INLINE Ints operator()(Ints a, Ints b) const { return round(mul(a, b)); }
    QK_GRU_INLINE Ints operator()(Ints a, Ints b, Ints c, Ints d) const {
        return round(add(mul(a, b), mul(c, d)));
    }
};

template <>
struct RoundProducts<true> {
    LongShift shift;
    QK_GRU_INLINE explicit RoundProducts(GruShift by) : shift(by.left, by.right) {}
    QK_GRU_INLINE Ints operator()(Ints a, Ints b) const { return shift(products(a, b)); }
    QK_GRU_INLINE Ints operator()(Ints a, Ints b, Ints c, Ints d) const {
        return shift(add(products(a, b), products(c, d)));
    }
};

QK_GRU_INLINE inline Ints clamp(Ints value, Ints low, Ints high) {
    return smaller(larger(value, low), high);
}
QK_GRU_INLINE inline Ints clamp(Ints value, int32_t low, int32_t high) {
    return clamp(value, splat(low), splat(high));
}

QK_GRU_INLINE inline Ints on_line(const GruTable &table, Ints position) {
    Ints slope, intercept;
    gather_pairs(table.pairs, shift_right(position, splat(table.width_log2)), &slope, &intercept);
    const Ints offset = both(position, splat((1 << table.width_log2) - 1));
    return Round(table.shift)(add(mul(slope, offset), intercept));
}

// The segment is the number of thresholds not above the code: four halvings of 16.
inline Ints on_knots(const GruTable &table, Ints code) {
    Ints segment = splat(0);
    for (int32_t half = 8; half != 0; half /= 2) {
        const Ints threshold = pick_16(table.threshold, add(segment, splat(half - 1)));
        segment = add(segment, both(not_below(code, threshold), splat(half)));
    }
    const Ints rise = RoundProducts<true>(table.shift)(pick_16(table.slope, segment),
                                                       sub(code, splat(table.zero)));
    return add(rise, pick_16(table.intercept, segment));
}

// sum: the gate input without its zero point. The result is a code minus `zero`.
template <class Direct>
QK_GRU_INLINE inline Ints on_curve(const GruTable &table, const Direct &direct, Ints sum,
                                   int32_t zero) {
    const Ints position = clamp(add(sum, splat(table.bias)), table.low, table.high);
    if (table.curve == GruCurve::kDirect)
        return add(direct.look_up(position), splat(table.output_min - zero));
    const Ints value =
        table.curve == GruCurve::kUniform ? on_line(table, position) : on_knots(table, position);
    return sub(clamp(value, table.output_min, table.output_max), splat(zero));
}

// ih, hh: [gate][units] what the linear parts came to. h [units]: codes minus their zero point.
struct GateRow {
    const int32_t *ih, *hh;
    int32_t *h;
    uint8_t *view;  // what R will multiply
};

// `rows` sequences, all units. The tables of 256 bytes stay in registers where they can.
template <bool wide>
__attribute__((noinline)) void run_gates(const gru::Cell &cell, const GruPack &pack,
                                         const GateRow *row, int64_t rows, int64_t view_stride) {
    const DirectTable update(pack.update.direct), reset(pack.reset.direct),
        candidate(pack.candidate.direct);
    const RoundProducts<wide> reset_round(pack.reset_shift), u_round(pack.u_shift);
    const Round n_round(pack.n_shift), view_round(pack.view_shift);
    const int64_t units = pack.blocks * kGruUnits;
    const int planes = planes_for(pack.h, cell.view_bytes);
    const Ints one = splat(cell.u_one - cell.u_zero), h_zero = splat(cell.h_zero);
    for (; rows-- > 0; ++row) {
        for (int64_t j = 0; j < units; j += kGruUnits) {
            const int32_t *const ih = row->ih + j, *const hh = row->hh + j;
            const Ints r =
                on_curve(pack.reset, reset, add(load(ih + units), load(hh + units)), cell.r_zero);
            const Ints u = on_curve(pack.update, update, add(load(ih), load(hh)), cell.u_zero);
            const Ints hidden = reset_round(r, load(hh + 2 * units));
            const Ints n =
                on_curve(pack.candidate, candidate, add(load(ih + 2 * units), hidden), cell.n_zero);
            const Ints next = u_round(u, load(row->h + j), sub(one, u), n_round(n));
            const Ints h = clamp(next, cell.h_min - cell.h_zero, cell.h_max - cell.h_zero);
            store(row->h + j, h);
            const Ints view = clamp(view_round(add(h, h_zero)), cell.view_min, cell.view_max);
            store_for(pack.h, row->view, view_stride, j, view, planes);
        }
    }
}

}  // namespace
}  // namespace qk::cpu

// Everything of the integer GRU cell but the dot products, as many units at a time as there are
// lanes: rules 7 to 13 of docs/gru.md on vectors of int32.
#pragma once
#include "cpu/gru/isa.hpp"
#include "gru/border.hpp"

namespace qk::cpu {

// Codes as the dot products of weights of 16 bits read them: words, one plane or two.
template <class Isa>
inline void store_words(uint8_t *row, int64_t plane_stride, int64_t index, Ints<Isa> code,
                        int planes) {
    using Ints = typename Isa::Ints;
    char *const to = reinterpret_cast<char *>(row + 2 * index);
    constexpr int64_t count = lanes_of<Isa>();
    if (planes == 1) return Isa::store_codes(to, 2, count, code);
    Isa::store_codes(to, 2, count, code >> Ints::splat(8));
    Isa::store_codes(to + plane_stride, 2, count, (code & Ints::splat(255)) - Ints::splat(128));
}

template <class Isa>
inline int planes_for(const GruRows &rows, int32_t code_bytes) {
    if (!rows.has_words()) return Isa::code_planes(code_bytes);
    return DotsOfLongs<Isa> ? 1 : code_bytes;
}

template <class Isa>
QK_INLINE inline void store_for(const GruRows &rows, uint8_t *row, int64_t plane_stride,
                                int64_t index, Ints<Isa> code, int planes) {
    if (rows.has_words())
        store_words<Isa>(row, plane_stride, index, code, planes);
    else
        Isa::store_operands(row, plane_stride, index, code, planes);
}

// Half to even: (x + 2^(n-1) - 1 + (bit n of x)) >> n; n <= 0 multiplies.
template <class Isa>
struct Round {
    using Ints = typename Isa::Ints;
    Ints left, half, one, right;

    QK_INLINE explicit Round(GruShift shift)
        : left(Ints::splat(shift.left)),
          half(Ints::splat(shift.right == 0 ? 0 : int32_t((1u << (shift.right - 1)) - 1))),
          one(Ints::splat(shift.right != 0)), right(Ints::splat(shift.right)) {}
    QK_INLINE Ints operator()(Ints x) const {
        x = x << left;
        return (x + half + ((x >> right) & one)) >> right;
    }
};

template <class Isa>
requires ShiftsHalfToEven<Isa>
struct Round<Isa> : Isa::Shift {
    QK_INLINE explicit Round(GruShift shift) : Isa::Shift(shift.left, shift.right) {}
};

// Each lane by its own shift of 1..31; half: 2^(shift - 1) - 1.
template <class Isa>
QK_INLINE inline Ints<Isa> round_each(Ints<Isa> x, Ints<Isa> shift, const int32_t *half) {
    if constexpr (ShiftsHalfToEven<Isa>) {
        return Isa::round_each(x, shift);
    } else {
        using Ints = typename Isa::Ints;
        return (x + Ints::load(half) + ((x >> shift) & Ints::splat(1))) >> shift;
    }
}

// The same for a sum of products, in 64 bits where `wide`.
template <class Isa, bool wide>
struct RoundProducts {
    using Ints = typename Isa::Ints;
    Round<Isa> round;

    QK_INLINE explicit RoundProducts(GruShift shift) : round(shift) {}
    QK_INLINE Ints operator()(Ints a, Ints b) const { return round(a * b); }
    QK_INLINE Ints operator()(Ints a, Ints b, Ints c, Ints d) const { return round(a * b + c * d); }
};

template <class Isa>
struct RoundProducts<Isa, true> {
    using Ints = typename Isa::Ints;
    typename Isa::LongShift shift;

    QK_INLINE explicit RoundProducts(GruShift by) : shift(by.left, by.right) {}
    QK_INLINE Ints operator()(Ints a, Ints b) const { return shift(Isa::products(a, b)); }
    QK_INLINE Ints operator()(Ints a, Ints b, Ints c, Ints d) const {
        return shift(Isa::products(a, b) + Isa::products(c, d));
    }
};

template <class Ints>
QK_INLINE inline Ints clamp(Ints value, Ints low, Ints high) {
    return min(max(value, low), high);
}
template <class Ints>
QK_INLINE inline Ints clamp(Ints value, int32_t low, int32_t high) {
    return clamp(value, Ints::splat(low), Ints::splat(high));
}

template <class Isa>
QK_INLINE inline Ints<Isa> on_line(const GruTable &table, Ints<Isa> position) {
    using Ints = typename Isa::Ints;
    Ints slope, intercept;
    Isa::gather_pairs(table.pairs, position >> Ints::splat(table.width_log2), &slope, &intercept);
    const Ints offset = position & Ints::splat((1 << table.width_log2) - 1);
    return Round<Isa>(table.shift)(slope * offset + intercept);
}

// The segment is the number of thresholds not above the code: four halvings of 16.
template <class Isa>
inline Ints<Isa> on_knots(const GruTable &table, Ints<Isa> code) {
    using Ints = typename Isa::Ints;
    Ints segment = Ints::splat(0);
    for (int32_t half = 8; half != 0; half /= 2) {
        const Ints threshold = Isa::look_up_16(table.threshold, segment + Ints::splat(half - 1));
        segment = segment + ((code >= threshold) & Ints::splat(half));
    }
    const Ints rise = RoundProducts<Isa, true>(table.shift)(Isa::look_up_16(table.slope, segment),
                                                            code - Ints::splat(table.zero));
    return rise + Isa::look_up_16(table.intercept, segment);
}

// sum: the gate input without its zero point. The result is a code minus `zero`.
template <class Isa>
QK_INLINE inline Ints<Isa> on_curve(const GruTable &table, const typename Isa::ByteTable &direct,
                                    Ints<Isa> sum, int32_t zero) {
    using Ints = typename Isa::Ints;
    const Ints position = clamp(sum + Ints::splat(table.bias), table.low, table.high);
    if (table.curve == GruCurve::kDirect)
        return direct.look_up(position) + Ints::splat(table.output_min - zero);
    const Ints value = table.curve == GruCurve::kUniform ? on_line<Isa>(table, position)
                                                         : on_knots<Isa>(table, position);
    return clamp(value, table.output_min, table.output_max) - Ints::splat(zero);
}

// ih, hh: [gate][units], the linear parts. h [units]: codes minus their zero point.
struct GateRow {
    const int32_t *ih, *hh;
    int32_t *h;
    uint8_t *view;  // what R will multiply
    char *gates;    // f32 [4][h] for the caller, where they are `shown`
};

// What the caller sees of the units from j on: u, r, n and R_n h + b, all without their zeros.
template <class Isa>
QK_INLINE inline void store_gates(const gru::Cell &cell, char *to, int64_t j, Ints<Isa> u,
                                  Ints<Isa> r, Ints<Isa> n, Ints<Isa> hh_n) {
    const int64_t count = min64(lanes_of<Isa>(), cell.hidden_size - j);
    if (count <= 0) return;
    const auto store = [&](int64_t gate, Ints<Isa> code, int32_t scale) QK_INLINE {
        Isa::store_reals(to + (gate * cell.hidden_size + j) * 4, count, code,
                         gru::power_of_two(-scale));
    };
    store(0, u, cell.u_shift);
    store(1, r, cell.r_scale);
    store(2, n, cell.n_scale);
    store(3, hh_n, cell.hh_scale);
}

// `rows` sequences, all units. The tables of 256 bytes stay in registers where they fit.
template <class Isa, bool wide, bool shown>
QK_NOINLINE void run_gates(const gru::Cell &cell, const GruPack &pack, const GateRow *row,
                           int64_t rows, int64_t view_stride) {
    using Ints = typename Isa::Ints;
    const typename Isa::ByteTable update(pack.update.direct), reset(pack.reset.direct),
        candidate(pack.candidate.direct);
    const RoundProducts<Isa, wide> reset_round(pack.reset_shift), u_round(pack.u_shift);
    const Round<Isa> n_round(pack.n_shift), view_round(pack.view_shift);
    const int64_t units = pack.panels * kGruUnits;
    const int planes = planes_for<Isa>(pack.h, cell.view_bytes);
    const Ints one = Ints::splat(cell.u_one - cell.u_zero), h_zero = Ints::splat(cell.h_zero);
    for (; rows-- > 0; ++row) {
        for (int64_t j = 0; j < units; j += lanes_of<Isa>()) {
            const int32_t *const ih = row->ih + j, *const hh = row->hh + j;
            const Ints r = on_curve<Isa>(
                pack.reset, reset, Ints::load(ih + units) + Ints::load(hh + units), cell.r_zero);
            const Ints u =
                on_curve<Isa>(pack.update, update, Ints::load(ih) + Ints::load(hh), cell.u_zero);
            const Ints hh_n = Ints::load(hh + 2 * units), hidden = reset_round(r, hh_n);
            const Ints n = on_curve<Isa>(pack.candidate, candidate,
                                         Ints::load(ih + 2 * units) + hidden, cell.n_zero);
            if constexpr (shown) store_gates<Isa>(cell, row->gates, j, u, r, n, hh_n);
            const Ints next = u_round(u, Ints::load(row->h + j), one - u, n_round(n));
            const Ints h = clamp(next, cell.h_min - cell.h_zero, cell.h_max - cell.h_zero);
            h.store(row->h + j);
            const Ints view = clamp(view_round(h + h_zero), cell.view_min, cell.view_max);
            store_for<Isa>(pack.h, row->view, view_stride, j, view, planes);
        }
    }
}

}  // namespace qk::cpu

// A unit that also counts the codes that their types cut: the plain cell in 64 bits, with the
// values of every other kernel. Count is a callable (tensor, whether it was cut).
#pragma once
#include <stdint.h>

#include "gru/border.hpp"
#include "gru/cell.hpp"

namespace qk::gru {

template <class T>
QK_HD static constexpr bool is_outside(T value, T low, T high) {
    return value < low || value > high;
}

// Whether real_to_code's value is outside its type. NaN, which becomes 0, is not.
QK_HD static inline bool is_cut(float value, float factor, int32_t zero, int32_t min, int32_t max) {
    const float scaled = value * factor, low = float(min - zero), high = float(max - zero);
    if (is_outside(scaled, low - 1.0f, high + 1.0f)) return true;
    const float to_integers = 12582912.0f;  // as in real_to_code
    return is_outside((scaled + to_integers) - to_integers, low, high);
}

// Whether a gate's line passes an end of its type before the function's own end. An end one code
// short of 1 does not count: 255/256 is what 8 bits have for 1.
QK_HD static inline bool cuts_output(const Table &table, int64_t sum, int32_t shift, int32_t zero,
                                     bool is_tanh) {
    if (shift < 0 || shift > 30) return false;
    const int64_t high = int64_t{zero} + (int64_t{1} << shift);
    const int64_t low = is_tanh ? int64_t{zero} - (int64_t{1} << shift) : zero;
    Table line = table;
    line.output_min = INT32_MIN;
    line.output_max = INT32_MAX;
    const int64_t value = table_value<int64_t>(line, sum);
    return (value > table.output_max && table.output_max < high - 1) ||
           (value < table.output_min && table.output_min > low + 1);
}

template <class Count>
struct CountingRules : CellRules<int64_t, int64_t> {
    const Count &count;

    QK_HD CountingRules(const Cell &c, const Count &to)
        : CellRules<int64_t, int64_t>{c}, count(to) {}

    QK_HD int32_t update(int64_t sum) const {
        look(cell.update, sum + cell.u_in_zero, QK_GRU_UPDATE_IN, cell.u_shift, cell.u_zero);
        return CellRules<int64_t, int64_t>::update(sum);
    }
    QK_HD int32_t reset(int64_t sum) const {
        look(cell.reset, sum + cell.r_in_zero, QK_GRU_RESET_IN, cell.r_scale, cell.r_zero);
        return CellRules<int64_t, int64_t>::reset(sum);
    }
    QK_HD int32_t candidate(int64_t sum) const {
        look(cell.candidate, sum + cell.n_in_zero, QK_GRU_NEW_IN, cell.n_scale, cell.n_zero);
        return CellRules<int64_t, int64_t>::candidate(sum);
    }
    QK_HD int32_t to_h(int64_t product) const {
        count(QK_GRU_H, is_outside<int64_t>(rounding_shift(product, cell.u_shift),
                                            cell.h_min - cell.h_zero, cell.h_max - cell.h_zero));
        return CellRules<int64_t, int64_t>::to_h(product);
    }

  private:
    QK_HD void look(const Table &table, int64_t sum, int32_t in, int32_t shift,
                    int32_t zero) const {
        count(in, is_outside<int64_t>(sum, table.input_min, table.input_max));
        count(in + 1, cuts_output(table, sum, shift, zero, in == QK_GRU_NEW_IN));
    }
};

// gru_unit, counting.
template <class Count>
QK_HD static inline int32_t counted_unit(const Cell &cell, int32_t unit, const int64_t ih_sum[3],
                                         const int64_t hh_sum[3], int32_t h_old, Gates *gates,
                                         const Count &count) {
    const int32_t low = INT32_MIN, high = INT32_MAX;
    int32_t ih[3], hh[3];
    for (int32_t gate = 0; gate < 3; ++gate) {
        const int32_t row = gate * cell.hidden_size + unit;
        const int32_t ih_free =
            linear_code(ih_sum[gate] + cell.ih_offset[row], cell.w_shift[row] + cell.ih_shift,
                        cell.ih_zero, low, high);
        const int32_t hh_free =
            linear_code(hh_sum[gate] + cell.hh_offset[row], cell.r_shift[row] + cell.hh_shift,
                        cell.hh_zero, low, high);
        count(QK_GRU_IH, is_outside(ih_free, cell.ih_min, cell.ih_max));
        count(QK_GRU_HH, is_outside(hh_free, cell.hh_min, cell.hh_max));
        ih[gate] = clamp(ih_free, cell.ih_min, cell.ih_max) - cell.ih_zero;
        hh[gate] = clamp(hh_free, cell.hh_min, cell.hh_max) - cell.hh_zero;
    }
    const CountingRules<Count> rules(cell, count);
    const int32_t h = gates_to_h(rules, input_sums(rules, ih), hh, h_old - cell.h_zero, gates);
    gates->u += cell.u_zero;
    gates->r += cell.r_zero;
    gates->n += cell.n_zero;
    gates->hh_n += cell.hh_zero;
    return h + cell.h_zero;
}

}  // namespace qk::gru

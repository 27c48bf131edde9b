#include "cuda/gru/rules.cuh"

namespace qk::cuda {
namespace {

PlainTable plain_table(const gru::Table &table, TableForm form, int32_t zero) {
    PlainTable t = {};
    t.low = table.output_min - zero;
    t.high = table.output_max - zero;
    t.minus_zero = -zero;
    t.minus_input_zero = -table.input_zero;
    if (form == TableForm::kValues) {
        t.bias = table.input_zero - table.input_min;
        t.last = table.input_max - table.input_min;
        return t;
    }
    t.shift = right_shift(table.shift);
    if (form == TableForm::kKnots) {
        t.first = table.input_min - table.input_zero;
        t.last = table.input_max - table.input_zero;
        return t;
    }
    const int32_t last = (table.count << table.width_log2) - 1;
    t.bias = -table.first;
    t.first = gru::clamp(table.input_min - table.input_zero - table.first, 0, last);
    t.last = gru::clamp(table.input_max - table.input_zero - table.first, 0, last);
    t.width_log2 = table.width_log2;
    return t;
}

}  // namespace

PlainCell plain_cell(const gru::Cell &cell, TableForm form) {
    PlainCell p = {};
    p.ih_to_u = scale_of(cell.ih_to_u);
    p.ih_to_r = scale_of(cell.ih_to_r);
    p.ih_to_n = scale_of(cell.ih_to_n);
    p.hh_to_u = scale_of(cell.hh_to_u);
    p.hh_to_r = scale_of(cell.hh_to_r);
    p.rhh_to_n = right_shift(cell.rhh_to_n);
    p.n_to_h = scale_of(cell.n_to_h);
    p.u_to_h = right_shift(cell.u_shift);
    p.h_to_view = right_shift(cell.view_shift);
    p.table[0] = plain_table(cell.update, form, cell.u_zero);
    p.table[1] = plain_table(cell.reset, form, cell.r_zero);
    p.table[2] = plain_table(cell.candidate, form, cell.n_zero);
    p.one = cell.u_one - cell.u_zero;
    p.hh_low = cell.hh_min - cell.hh_zero;
    p.hh_high = cell.hh_max - cell.hh_zero;
    p.h_low = cell.h_min - cell.h_zero;
    p.h_high = cell.h_max - cell.h_zero;
    p.h_zero = cell.h_zero;
    p.view_low = cell.view_min;
    p.view_high = cell.view_max;
    return p;
}

}  // namespace qk::cuda

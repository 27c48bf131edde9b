#include "gru/derive.hpp"

namespace qk::gru {
namespace {

constexpr int64_t kLimit = int64_t{1} << 62;
constexpr int64_t kLimit32 = int64_t{1} << 30;

int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The largest magnitude that a chain of operations can reach, and what it rules out.
struct Proof {
    Fault fault = Fault::kNone;
    bool fits_32 = true;

    int64_t seen(int64_t bound) {
        if (bound >= kLimit32) fits_32 = false;
        if (bound >= kLimit) fail(Fault::kOverflow);
        return bound;
    }
    void fail(Fault why) {
        if (fault == Fault::kNone) fault = why;
    }
    // Operands are below 2^62 each, so their sum fits int64_t before it is judged.
    int64_t sum(int64_t a, int64_t b) { return clipped(seen(a + b)); }
    int64_t product(int64_t a, int64_t b) {
        int64_t exact = 0;
        if (__builtin_mul_overflow(a, b, &exact) || exact >= kLimit) {
            fits_32 = false;
            fail(Fault::kOverflow);
            return kLimit - 1;
        }
        return seen(exact);
    }
    int64_t shifted(int64_t bound, int32_t n) {
        seen(bound);
        if (n < -31 || n > 62) {
            fail(Fault::kShift);
            return 0;
        }
        if (n <= 0) return product(bound, int64_t{1} << -n);
        return (bound >> n) + 1;
    }
    static int64_t clipped(int64_t bound) { return bound < kLimit ? bound : kLimit - 1; }
};

struct Linear {  // W x + bw or R h + br
    const void *weights;
    int32_t weight_bytes, count;
    int32_t zero, code_bound;  // of the codes that the weights multiply
    int32_t code_shift;
    const int8_t *weight_shift, *bias_shift;
    const int32_t *bias;
    int32_t out;  // QK_GRU_IH or QK_GRU_HH
};

Linear input_linear(const qk_gru_model &model) {
    CodeRange range = code_range(model.quant[QK_GRU_X]);
    return {model.w,          code_bytes(model.quant[QK_GRU_W].bits),
            model.input_size, model.zero_point[QK_GRU_X],
            -range.min,       model.shift[QK_GRU_X],
            model.w_shift,    model.bw_shift,
            model.bw,         QK_GRU_IH};
}

Linear hidden_linear(const qk_gru_model &model) {
    CodeRange range = code_range(model.quant[QK_GRU_H]);
    int32_t view = model.h_view_shift;
    return {model.r,
            code_bytes(model.quant[QK_GRU_R].bits),
            model.hidden_size,
            model.zero_point[QK_GRU_H] / (1 << view),
            -range.min >> view,
            model.shift[QK_GRU_H] - view,
            model.r_shift,
            model.br_shift,
            model.br,
            QK_GRU_HH};
}

struct RowSums {
    int64_t sum, magnitude;
};

RowSums row_sums(const Linear &linear, int64_t row) {
    RowSums sums = {0, 0};
    for (int64_t k = row * linear.count; k < (row + 1) * linear.count; ++k) {
        int32_t weight = linear.weight_bytes == 1 ? static_cast<const int8_t *>(linear.weights)[k]
                                                  : static_cast<const int16_t *>(linear.weights)[k];
        sums.sum += weight;
        sums.magnitude += magnitude(weight);
    }
    return sums;
}

int64_t row_offset(const Linear &linear, int64_t row, int64_t weight_sum, Proof *proof) {
    int32_t n = linear.bias_shift[row] - (linear.weight_shift[row] + linear.code_shift);
    proof->shifted(magnitude(linear.bias[row]), n);
    if (proof->fault != Fault::kNone) return 0;
    int64_t bias = rounding_shift(int64_t{linear.bias[row]}, n);
    proof->sum(magnitude(bias), proof->product(magnitude(weight_sum), magnitude(linear.zero)));
    return proof->fault == Fault::kNone ? bias - weight_sum * linear.zero : 0;
}

// Rows [0,3h): accumulator, offset and final shift of each; whether int32_t holds the dots.
bool prove_rows(const Linear &linear, int64_t rows, const int64_t *offset, int32_t shift,
                Proof *proof) {
    bool dot_is_32 = true;
    for (int64_t row = 0; row < rows && proof->fault == Fault::kNone; ++row) {
        int64_t dot = row_sums(linear, row).magnitude * linear.code_bound;
        if (dot > INT32_MAX) dot_is_32 = false;
        int64_t sum = proof->sum(proof->seen(dot), magnitude(offset[row]));
        proof->shifted(sum, linear.weight_shift[row] + shift);
    }
    return dot_is_32;
}

Table make_table(const qk_gru_model &model, const qk_gru_table &table, int32_t in, int32_t out,
                 int32_t one_below) {
    CodeRange input = code_range(model.quant[in]), output = code_range(model.quant[out]);
    Table result = {table.threshold,
                    table.slope,
                    table.intercept,
                    table.kind,
                    table.count,
                    table.shift,
                    table.width_log2,
                    table.first,
                    model.zero_point[in],
                    input.min,
                    input.max,
                    output.min,
                    output.max,
                    1};
    while (result.half * 2 < table.count) result.half *= 2;
    if (table.count == 1) result.half = 0;
    if ((model.flags & QK_GRU_MODEL_CLAMP_TYPE) != 0) return result;
    int32_t shift = model.shift[out];
    if (shift > 20) return result;  // 1.0 is outside every type
    int64_t zero = model.zero_point[out], one = shift < 0 ? 0 : int64_t{1} << shift;
    if (zero + one < result.output_max) result.output_max = int32_t(zero + one);
    if (zero - one * one_below > result.output_min)
        result.output_min = int32_t(zero - one * one_below);
    return result;
}

// Whether int32_t holds every line of a table before its shift, with the half that rounding adds.
bool lines_fit_32(const Table &table) {
    if (table.shift < 0 || table.shift > 31) return false;
    int64_t reach = (int64_t{1} << table.width_log2) - 1, half = (int64_t{1} << table.shift) / 2;
    for (int32_t i = 0; i < table.count; ++i) {
        int64_t line = magnitude(table.slope[i]) * reach + magnitude(table.intercept[i]);
        if (line + half > INT32_MAX) return false;
    }
    return table.kind == QK_GRU_TABLE_UNIFORM;
}

bool all_go_right(const int8_t *row_shift, int64_t rows, int32_t shift) {
    for (int64_t row = 0; row < rows; ++row)
        if (row_shift[row] + shift < 1 || row_shift[row] + shift > 31) return false;
    return true;
}

int64_t widest(int32_t min, int32_t max, int32_t zero) {
    return larger(magnitude(int64_t{min} - zero), magnitude(int64_t{max} - zero));
}

void prove_table(const Table &table, Proof *proof) {
    if (table.shift < 0 && table.kind == QK_GRU_TABLE_UNIFORM) proof->fail(Fault::kShift);
    int64_t reach = table.kind == QK_GRU_TABLE_UNIFORM
                        ? (int64_t{1} << table.width_log2) - 1
                        : widest(table.input_min, table.input_max, table.input_zero);
    if (table.kind == QK_GRU_TABLE_UNIFORM) proof->seen(int64_t{table.count} << table.width_log2);
    for (int32_t i = 0; i < table.count; ++i) {
        int64_t line = proof->product(magnitude(table.slope[i]), reach);
        int64_t intercept = magnitude(table.intercept[i]);
        if (table.kind == QK_GRU_TABLE_UNIFORM)
            proof->shifted(proof->sum(line, intercept), table.shift);
        else
            proof->sum(proof->shifted(line, table.shift), intercept);
    }
}

// sums: what gates_to_h computes in Int; products: in Wide.
void prove_gates(const Cell &cell, Proof *sums, Proof *products) {
    int64_t ih = widest(cell.ih_min, cell.ih_max, cell.ih_zero);
    int64_t hh = widest(cell.hh_min, cell.hh_max, cell.hh_zero);
    int64_t zero_bound = 1 << 16;
    sums->sum(sums->sum(sums->shifted(ih, cell.ih_to_u), sums->shifted(hh, cell.hh_to_u)),
              zero_bound);
    sums->sum(sums->sum(sums->shifted(ih, cell.ih_to_r), sums->shifted(hh, cell.hh_to_r)),
              zero_bound);
    int64_t r = widest(cell.reset.output_min, cell.reset.output_max, cell.r_zero);
    int64_t rh = products->shifted(products->product(r, hh), cell.rhh_to_n);
    products->sum(products->sum(sums->shifted(ih, cell.ih_to_n), rh), zero_bound);

    int64_t n = widest(cell.candidate.output_min, cell.candidate.output_max, cell.n_zero);
    int64_t u = widest(cell.update.output_min, cell.update.output_max, cell.u_zero);
    int64_t rest = widest(cell.update.output_min, cell.update.output_max, cell.u_one);
    int64_t h = widest(cell.h_min, cell.h_max, cell.h_zero);
    int64_t kept = products->product(u, h);
    int64_t replaced = products->product(rest, sums->shifted(n, cell.n_to_h));
    products->sum(products->shifted(products->sum(kept, replaced), cell.u_shift), zero_bound);
    prove_table(cell.update, products);
    prove_table(cell.reset, products);
    prove_table(cell.candidate, products);
}

void fill_types(const qk_gru_model &model, Cell *cell) {
    const int32_t *zero = model.zero_point;
    CodeRange x = code_range(model.quant[QK_GRU_X]), h = code_range(model.quant[QK_GRU_H]);
    CodeRange ih = code_range(model.quant[QK_GRU_IH]), hh = code_range(model.quant[QK_GRU_HH]);
    cell->input_size = model.input_size;
    cell->hidden_size = model.hidden_size;
    cell->w_bytes = code_bytes(model.quant[QK_GRU_W].bits);
    cell->r_bytes = code_bytes(model.quant[QK_GRU_R].bits);
    cell->x_bytes = code_bytes(model.quant[QK_GRU_X].bits);
    cell->h_bytes = code_bytes(model.quant[QK_GRU_H].bits);
    cell->view_bytes = code_bytes(model.quant[QK_GRU_H].bits - model.h_view_shift);
    cell->x_zero = zero[QK_GRU_X], cell->x_min = x.min, cell->x_max = x.max;
    cell->h_zero = zero[QK_GRU_H], cell->h_min = h.min, cell->h_max = h.max;
    cell->view_shift = model.h_view_shift;
    cell->view_min = h.min >> model.h_view_shift, cell->view_max = h.max >> model.h_view_shift;
    cell->ih_zero = zero[QK_GRU_IH], cell->ih_min = ih.min, cell->ih_max = ih.max;
    cell->hh_zero = zero[QK_GRU_HH], cell->hh_min = hh.min, cell->hh_max = hh.max;
    cell->u_zero = zero[QK_GRU_UPDATE_OUT], cell->u_in_zero = zero[QK_GRU_UPDATE_IN];
    cell->r_zero = zero[QK_GRU_RESET_OUT], cell->r_in_zero = zero[QK_GRU_RESET_IN];
    cell->n_zero = zero[QK_GRU_NEW_OUT], cell->n_in_zero = zero[QK_GRU_NEW_IN];
}

void fill_shifts(const qk_gru_model &model, Cell *cell) {
    const int32_t *shift = model.shift;
    cell->ih_shift = shift[QK_GRU_X] - shift[QK_GRU_IH];
    cell->hh_shift = shift[QK_GRU_H] - model.h_view_shift - shift[QK_GRU_HH];
    cell->ih_to_u = shift[QK_GRU_IH] - shift[QK_GRU_UPDATE_IN];
    cell->hh_to_u = shift[QK_GRU_HH] - shift[QK_GRU_UPDATE_IN];
    cell->ih_to_r = shift[QK_GRU_IH] - shift[QK_GRU_RESET_IN];
    cell->hh_to_r = shift[QK_GRU_HH] - shift[QK_GRU_RESET_IN];
    cell->ih_to_n = shift[QK_GRU_IH] - shift[QK_GRU_NEW_IN];
    cell->rhh_to_n = shift[QK_GRU_RESET_OUT] + shift[QK_GRU_HH] - shift[QK_GRU_NEW_IN];
    cell->n_to_h = shift[QK_GRU_NEW_OUT] - shift[QK_GRU_H];
    cell->u_shift = shift[QK_GRU_UPDATE_OUT];
    cell->x_scale = shift[QK_GRU_X], cell->h_scale = shift[QK_GRU_H];
    cell->r_scale = shift[QK_GRU_RESET_OUT], cell->n_scale = shift[QK_GRU_NEW_OUT];
    cell->hh_scale = shift[QK_GRU_HH];
}

}  // namespace

Fault compute_row_offsets(const qk_gru_model &model, int64_t row, int64_t *ih, int64_t *hh) {
    Proof proof;
    Linear input = input_linear(model), hidden = hidden_linear(model);
    *ih = row_offset(input, row, row_sums(input, row).sum, &proof);
    *hh = row_offset(hidden, row, row_sums(hidden, row).sum, &proof);
    return proof.fault;
}

Fault compute_offsets(const qk_gru_model &model, int64_t *ih_offset, int64_t *hh_offset) {
    int64_t rows = int64_t{3} * model.hidden_size;
    for (int64_t row = 0; row < rows; ++row) {
        Fault fault = compute_row_offsets(model, row, ih_offset + row, hh_offset + row);
        if (fault != Fault::kNone) return fault;
    }
    return Fault::kNone;
}

Fault derive(const qk_gru_model &model, const int64_t *ih_offset, const int64_t *hh_offset,
             Cell *cell) {
    int32_t u_shift = model.shift[QK_GRU_UPDATE_OUT];
    if (u_shift < 0 || u_shift > 30) return Fault::kShift;
    fill_types(model, cell);
    fill_shifts(model, cell);
    cell->w = model.w, cell->r = model.r;
    cell->w_shift = model.w_shift, cell->r_shift = model.r_shift;
    cell->ih_offset = ih_offset, cell->hh_offset = hh_offset;
    int64_t one = (int64_t{1} << u_shift) + cell->u_zero;
    if (one > INT32_MAX) return Fault::kOverflow;
    cell->u_one = int32_t(one);
    cell->update = make_table(model, model.update, QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT, 0);
    cell->reset = make_table(model, model.reset, QK_GRU_RESET_IN, QK_GRU_RESET_OUT, 0);
    cell->candidate = make_table(model, model.candidate, QK_GRU_NEW_IN, QK_GRU_NEW_OUT, 1);

    Proof linear, sums, products;
    int64_t rows = int64_t{3} * model.hidden_size;
    bool input_32 = prove_rows(input_linear(model), rows, ih_offset, cell->ih_shift, &linear);
    bool hidden_32 = prove_rows(hidden_linear(model), rows, hh_offset, cell->hh_shift, &linear);
    prove_gates(*cell, &sums, &products);
    cell->dot_is_32 = input_32 && hidden_32;
    cell->linear_is_32 = cell->dot_is_32 != 0 && linear.fits_32;
    cell->sums_is_32 = cell->linear_is_32 != 0 && sums.fits_32;
    cell->cell_is_32 = cell->sums_is_32 != 0 && products.fits_32;
    cell->lines_is_32 =
        lines_fit_32(cell->update) && lines_fit_32(cell->reset) && lines_fit_32(cell->candidate);
    cell->ih_shifts_right = all_go_right(cell->w_shift, rows, cell->ih_shift);
    cell->hh_shifts_right = all_go_right(cell->r_shift, rows, cell->hh_shift);
    if (linear.fault != Fault::kNone) return linear.fault;
    if (sums.fault != Fault::kNone || products.fault != Fault::kNone)
        return sums.fault != Fault::kNone ? sums.fault : products.fault;
    return Fault::kNone;
}

}  // namespace qk::gru

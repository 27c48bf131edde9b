#include "gru/calibrate/build.hpp"

#include <math.h>

#include "gru/derive.hpp"

namespace qk::gru {

bool preset_quants(qk_gru_preset preset, qk_gru_quant quants[QK_GRU_TENSOR_COUNT],
                   uint32_t *flags) {
    if (preset < QK_GRU_W8A8 || preset > QK_GRU_W16A16) return false;
    int32_t weight_bits = preset == QK_GRU_W16A16 ? 16 : 8;
    int32_t inner_bits = preset == QK_GRU_W8A8 ? 8 : 16;
    int32_t x_bits = preset == QK_GRU_W8A8 || preset == QK_GRU_W8H16 ? 8 : 16;
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        bool weight = which == QK_GRU_W || which == QK_GRU_R;
        bool bias = which == QK_GRU_BW || which == QK_GRU_BR;
        bool gate = which == QK_GRU_UPDATE_OUT || which == QK_GRU_RESET_OUT;
        quants[which].bits = weight ? weight_bits : which == QK_GRU_X ? x_bits : inner_bits;
        quants[which].is_unsigned = gate ? 1 : 0;
        quants[which].is_symmetric = weight || bias || which == QK_GRU_NEW_OUT ? 1 : 0;
        quants[which].granularity = weight || bias ? 2 : 0;
    }
    *flags = preset == QK_GRU_W8H16
                 ? QK_GRU_UNIFORM_TABLES | QK_GRU_BIAS_CORRECTION | QK_GRU_H_VIEW_8
                 : 0u;
    return true;
}

namespace {

// Rows that share a scale: all, a gate's, or one.
int64_t rows_per_scale(const Matrix &matrix) {
    if (matrix.quant.granularity == 0) return matrix.rows;
    return matrix.quant.granularity == 1 ? matrix.rows / 3 : 1;
}

constexpr int32_t kLeastRowShift = INT8_MIN, kFinestRowShift = INT8_MAX;

int32_t within(int32_t low, int32_t value, int32_t high) {
    return value < low ? low : value > high ? high : value;
}

struct Span {
    int32_t low, high;
};

Span span_of(const int8_t *shifts, int64_t count) {
    Span span = {shifts[0], shifts[0]};
    for (int64_t i = 1; i < count; ++i) {
        if (shifts[i] < span.low) span.low = shifts[i];
        if (shifts[i] > span.high) span.high = shifts[i];
    }
    return span;
}

// The finest scale that rows of weights may have, next to what their products become. Rows of
// zeros, or nearly so, would be far finer, and no vector shifts so far.
struct ShiftLimit {
    int32_t code_shift, out_shift;
    const int8_t *bias_shifts;  // null: not yet known

    // 31 places below ih, or hh, what rounding the weights takes from a row stays below half a
    // step. A bias moved up by 31 places stands 2^31 above the finest product: what a coarser scale
    // of the weights loses there is nothing. Two places are left for the bias to move in.
    int32_t of(int64_t first, int64_t count) const {
        int32_t finest = out_shift + 31;
        if (bias_shifts != nullptr) {
            const int32_t least = span_of(bias_shifts + first, count).low + 29;
            if (least < finest) finest = least;
        }
        return within(kLeastRowShift, finest - code_shift, kFinestRowShift);
    }
};

template <class Code>
void quantize_matrix(const Matrix &matrix, const ShiftLimit &limit, int8_t *shifts, Code *codes) {
    int64_t together = rows_per_scale(matrix);
    for (int64_t first = 0; first < matrix.rows; first += together) {
        int64_t begin = first * matrix.count, end = (first + together) * matrix.count;
        double min = 0.0, max = 0.0;
        for (int64_t i = begin; i < end; ++i) {
            min = fmin(min, matrix.values[i]);
            max = fmax(max, matrix.values[i]);
        }
        Exponent exponent = exponent_of_range(matrix.quant, min, max, limit.of(first, together));
        for (int64_t row = first; row < first + together; ++row)
            shifts[row] = int8_t(exponent.shift);
        for (int64_t i = begin; i < end; ++i)
            codes[i] = Code(quantize(matrix.values[i], matrix.quant, exponent));
    }
}

void quantize_weights(const Matrix &matrix, const ShiftLimit &limit, int8_t *shifts, void *codes) {
    if (code_bytes(matrix.quant.bits) == 1)
        quantize_matrix(matrix, limit, shifts, static_cast<int8_t *>(codes));
    else
        quantize_matrix(matrix, limit, shifts, static_cast<int16_t *>(codes));
}

// What rounding the weights takes from a row on average: (w - code * 2^-shift) . mean
double lost_mean(const Matrix &matrix, int64_t row, int8_t shift, const void *codes,
                 const double *sums, int64_t samples) {
    double lost = 0.0;
    for (int64_t k = 0; k < matrix.count; ++k) {
        int64_t i = row * matrix.count + k;
        int32_t code = code_bytes(matrix.quant.bits) == 1 ? static_cast<const int8_t *>(codes)[i]
                                                          : static_cast<const int16_t *>(codes)[i];
        lost += (double(matrix.values[i]) - ldexp(double(code), -shift)) * sums[k];
    }
    return lost / double(samples);
}

struct Side {  // the input's half of the cell, or the state's
    Matrix matrix;
    const float *bias;
    qk_gru_quant bias_quant;
    const double *sums;
    int8_t *shifts, *bias_shifts;
    void *codes;
    int32_t *bias_codes;
    int32_t code_shift, out_shift;  // of what the matrix multiplies, and of ih or hh
};

// A bias 62 places below its row's products is 0 there, and one of zeros follows them anywhere.
Exponent bias_exponent(const Side &side, int64_t first, int64_t count, double min, double max) {
    const Span weights = span_of(side.shifts + first, count);
    const int32_t products = weights.low + side.code_shift;
    Exponent exponent = exponent_of_range(side.bias_quant, min, max,
                                          within(kLeastRowShift, products + 62, kFinestRowShift));
    const int32_t least = weights.high + side.code_shift - 31;
    if (min >= 0.0 && max <= 0.0 && exponent.shift < least)
        exponent.shift = within(kLeastRowShift, least, kFinestRowShift);
    return exponent;
}

void quantize_biases(const Side &side, const Ranges &ranges, bool correct) {
    // A corrected bias is a double of its own; one row at a time needs no array, except that a
    // shared scale must see all rows first.
    Matrix bias = {side.bias, side.matrix.rows, 1, side.bias_quant};
    int64_t together = rows_per_scale(bias);
    for (int64_t first = 0; first < bias.rows; first += together) {
        double min = 0.0, max = 0.0;
        for (int32_t pass = 0; pass < 2; ++pass) {
            Exponent exponent = bias_exponent(side, first, together, min, max);
            for (int64_t row = first; row < first + together; ++row) {
                double value = side.bias[row];
                if (correct)
                    value += lost_mean(side.matrix, row, side.shifts[row], side.codes, side.sums,
                                       ranges.samples);
                min = fmin(min, value);
                max = fmax(max, value);
                if (pass == 0) continue;
                side.bias_shifts[row] = int8_t(exponent.shift);
                side.bias_codes[row] = quantize(value, bias.quant, exponent);
            }
        }
    }
}

void quantize_side(const Side &side, const Ranges &ranges, bool correct) {
    ShiftLimit limit = {side.code_shift, side.out_shift, nullptr};
    quantize_weights(side.matrix, limit, side.shifts, side.codes);
    quantize_biases(side, ranges, correct);
    for (int64_t row = 0; row < side.matrix.rows; ++row) {
        if (side.bias_shifts[row] - (side.shifts[row] + side.code_shift) >= -31) continue;
        limit.bias_shifts = side.bias_shifts;  // finer than their biases can be moved (rule 3)
        quantize_weights(side.matrix, limit, side.shifts, side.codes);
        return quantize_biases(side, ranges, correct);
    }
}

qk_gru_table build_table(const qk_gru_model &model, Curve curve, int32_t in, int32_t out,
                         bool uniform, TableStorage *storage) {
    TableSpec spec = {curve,
                      model.quant[in],
                      model.quant[out],
                      {model.shift[in], model.zero_point[in]},
                      {model.shift[out], model.zero_point[out]}};
    return uniform ? build_uniform(spec, storage) : build_knots(spec, storage);
}

void build_tables(bool uniform, ModelStorage *storage, qk_gru_model *model) {
    model->update = build_table(*model, Curve::kSigmoid, QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT,
                                uniform, &storage->tables[0]);
    model->reset = build_table(*model, Curve::kSigmoid, QK_GRU_RESET_IN, QK_GRU_RESET_OUT, uniform,
                               &storage->tables[1]);
    model->candidate = build_table(*model, Curve::kTanh, QK_GRU_NEW_IN, QK_GRU_NEW_OUT, uniform,
                                   &storage->tables[2]);
}

}  // namespace

void build_model(const FloatGru &gru, const Ranges &ranges, const BuildOptions &options,
                 ModelStorage *storage, qk_gru_model *model) {
    *model = qk_gru_model{};
    model->struct_size = sizeof(qk_gru_model);
    model->input_size = gru.input_size;
    model->hidden_size = gru.hidden_size;
    const int64_t rows = int64_t{3} * gru.hidden_size;
    const Matrix w = {gru.w, rows, gru.input_size, options.quant[QK_GRU_W]};
    const Matrix r = {gru.r, rows, gru.hidden_size, options.quant[QK_GRU_R]};
    const Scales scales = choose_scales(ranges, options, w, r);
    model->h_view_shift = scales.h_view_shift;
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        model->quant[which] = options.quant[which];
        model->shift[which] = scales.of[which].shift;
        model->zero_point[which] = scales.of[which].zero;
    }
    bool correct = (options.flags & QK_GRU_BIAS_CORRECTION) != 0;
    Side input = {w,
                  gru.bw,
                  options.quant[QK_GRU_BW],
                  ranges.x_sum,
                  storage->w_shift,
                  storage->bw_shift,
                  storage->w,
                  storage->bw,
                  scales.x_shift(),
                  model->shift[QK_GRU_IH]};
    Side state = {r,
                  gru.br,
                  options.quant[QK_GRU_BR],
                  ranges.h_sum,
                  storage->r_shift,
                  storage->br_shift,
                  storage->r,
                  storage->br,
                  scales.view_shift(),
                  model->shift[QK_GRU_HH]};
    quantize_side(input, ranges, correct);
    quantize_side(state, ranges, correct);
    model->w_shift = storage->w_shift, model->r_shift = storage->r_shift;
    model->bw_shift = storage->bw_shift, model->br_shift = storage->br_shift;
    model->w = storage->w, model->r = storage->r;
    model->bw = storage->bw, model->br = storage->br;
    build_tables((options.flags & QK_GRU_UNIFORM_TABLES) != 0, storage, model);
}

}  // namespace qk::gru

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

bool gains_headroom(int32_t which) {
    return which == QK_GRU_X || which == QK_GRU_IH || which == QK_GRU_UPDATE_IN ||
           which == QK_GRU_RESET_IN || which == QK_GRU_NEW_IN;
}

Exponent pick_activation(const Ranges &ranges, const BuildOptions &options, int32_t which) {
    const qk_gru_quant &quant = options.quant[which];
    Range range = ranges.range[which];
    // A sigmoid's range is known, and a gate that stayed below 1/2 must not be cut there (14).
    if (which == QK_GRU_UPDATE_OUT || which == QK_GRU_RESET_OUT)
        return exponent_of_range(quant, 0.0, 1.0);
    if (which == QK_GRU_NEW_OUT) {
        range.min = fmin(range.min, -0.25);
        range.max = fmax(range.max, 0.25);
    }
    if ((options.flags & QK_GRU_HEADROOM) != 0 && quant.bits > 8 && gains_headroom(which)) {
        range.min *= 2.0;
        range.max *= 2.0;
        return exponent_of_range(quant, range.min, range.max);
    }
    if (options.calibration == QK_GRU_CALIBRATE_MSE && ranges.histogram != nullptr)
        return exponent_of_histogram(quant, ranges.histogram[which], range);
    return exponent_of_range(quant, range.min, range.max);
}

// The view of h needs a zero point that its shift divides; take the multiple that cuts least.
int32_t zero_for_view(const qk_gru_quant &quant, Exponent h, const Range &range, int32_t view) {
    if (quant.is_symmetric != 0) return 0;
    CodeRange codes = code_range(quant);
    int32_t step = 1 << view, below = h.zero - (h.zero - codes.min) % step;
    double top = ldexp(fmax(range.max, 0.0), h.shift);
    double bottom = ldexp(fmin(range.min, 0.0), h.shift);
    int32_t best = below;
    double least = -1.0;
    for (int32_t zero = below; zero <= below + step && zero <= codes.max; zero += step) {
        double cut = fmax(0.0, zero + top - codes.max) + fmax(0.0, codes.min - zero - bottom);
        if (least < 0.0 || cut < least) {
            least = cut;
            best = zero;
        }
    }
    return best;
}

struct Matrix {
    const float *values;
    int64_t rows, count;
    qk_gru_quant quant;
};

// Rows that share a scale: all, a gate's, or one.
int64_t rows_per_scale(const Matrix &matrix) {
    if (matrix.quant.granularity == 0) return matrix.rows;
    return matrix.quant.granularity == 1 ? matrix.rows / 3 : 1;
}

// Shifts that a group of rows may not pass; null where nothing limits them.
struct ShiftLimit {
    const int8_t *bias_shifts;
    int32_t code_shift;

    // A bias moved up by 31 places stands 2^31 above the finest product: what a coarser scale of
    // the weights loses there is nothing. Two places are left for the bias to move in.
    int32_t of(int64_t first, int64_t count) const {
        int32_t least = bias_shifts[first];
        for (int64_t row = first; row < first + count; ++row)
            if (bias_shifts[row] < least) least = bias_shifts[row];
        return least + 29 - code_shift;
    }
};

template <class Code>
void quantize_matrix(const Matrix &matrix, const ShiftLimit *limit, int8_t *shifts, Code *codes) {
    int64_t together = rows_per_scale(matrix);
    for (int64_t first = 0; first < matrix.rows; first += together) {
        int64_t begin = first * matrix.count, end = (first + together) * matrix.count;
        double min = 0.0, max = 0.0;
        for (int64_t i = begin; i < end; ++i) {
            min = fmin(min, matrix.values[i]);
            max = fmax(max, matrix.values[i]);
        }
        Exponent exponent = exponent_of_range(matrix.quant, min, max);
        if (limit != nullptr && limit->of(first, together) < exponent.shift)
            exponent.shift = limit->of(first, together);
        for (int64_t row = first; row < first + together; ++row)
            shifts[row] = int8_t(exponent.shift);
        for (int64_t i = begin; i < end; ++i)
            codes[i] = Code(quantize(matrix.values[i], matrix.quant, exponent));
    }
}

void quantize_weights(const Matrix &matrix, const ShiftLimit *limit, int8_t *shifts, void *codes) {
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
};

void quantize_biases(const Side &side, const Ranges &ranges, bool correct) {
    // A corrected bias is a double of its own; one row at a time needs no array, except that a
    // shared scale must see all rows first.
    Matrix bias = {side.bias, side.matrix.rows, 1, side.bias_quant};
    int64_t together = rows_per_scale(bias);
    for (int64_t first = 0; first < bias.rows; first += together) {
        double min = 0.0, max = 0.0;
        for (int32_t pass = 0; pass < 2; ++pass) {
            Exponent exponent = exponent_of_range(bias.quant, min, max);
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

// code_shift: of x, or of the view of h.
void quantize_side(const Side &side, const Ranges &ranges, bool correct, int32_t code_shift) {
    quantize_weights(side.matrix, nullptr, side.shifts, side.codes);
    quantize_biases(side, ranges, correct);
    // Rows of zeros, or nearly so, have scales far finer than their biases (rule 3).
    for (int64_t row = 0; row < side.matrix.rows; ++row) {
        if (side.bias_shifts[row] - (side.shifts[row] + code_shift) >= -31) continue;
        const ShiftLimit limit = {side.bias_shifts, code_shift};
        quantize_weights(side.matrix, &limit, side.shifts, side.codes);
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
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        model->quant[which] = options.quant[which];
        if (which >= QK_GRU_W && which <= QK_GRU_BR) continue;
        Exponent exponent = pick_activation(ranges, options, which);
        model->shift[which] = exponent.shift;
        model->zero_point[which] = exponent.zero;
    }
    const qk_gru_quant &h = options.quant[QK_GRU_H];
    if ((options.flags & QK_GRU_H_VIEW_8) != 0 && h.bits > 8) {
        model->h_view_shift = h.bits - 8;
        Exponent exponent = {model->shift[QK_GRU_H], model->zero_point[QK_GRU_H]};
        model->zero_point[QK_GRU_H] =
            zero_for_view(h, exponent, ranges.range[QK_GRU_H], model->h_view_shift);
    }
    bool correct = (options.flags & QK_GRU_BIAS_CORRECTION) != 0;
    int64_t rows = int64_t{3} * gru.hidden_size;
    Side input = {{gru.w, rows, gru.input_size, options.quant[QK_GRU_W]},
                  gru.bw,
                  options.quant[QK_GRU_BW],
                  ranges.x_sum,
                  storage->w_shift,
                  storage->bw_shift,
                  storage->w,
                  storage->bw};
    Side state = {{gru.r, rows, gru.hidden_size, options.quant[QK_GRU_R]},
                  gru.br,
                  options.quant[QK_GRU_BR],
                  ranges.h_sum,
                  storage->r_shift,
                  storage->br_shift,
                  storage->r,
                  storage->br};
    quantize_side(input, ranges, correct, model->shift[QK_GRU_X]);
    quantize_side(state, ranges, correct, model->shift[QK_GRU_H] - model->h_view_shift);
    model->w_shift = storage->w_shift, model->r_shift = storage->r_shift;
    model->bw_shift = storage->bw_shift, model->br_shift = storage->br_shift;
    model->w = storage->w, model->r = storage->r;
    model->bw = storage->bw, model->br = storage->br;
    build_tables((options.flags & QK_GRU_UNIFORM_TABLES) != 0, storage, model);
}

}  // namespace qk::gru

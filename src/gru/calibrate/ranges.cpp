#include "gru/calibrate/ranges.hpp"

#include <math.h>

#include "gru/derive.hpp"

namespace qk::gru {
namespace {

constexpr double kKeep = 0.9;  // of the moving range, at every step

// In lanes, which compilers make vectors of; the order of minima and maxima does not matter.
Range range_of(const float *values, int64_t count) {
    constexpr int64_t lanes = 16;
    float low[lanes], high[lanes];
    for (int64_t i = 0; i < lanes; ++i) low[i] = high[i] = values[i < count ? i : 0];
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (int64_t i = 0; i < lanes; ++i) {
            const float value = values[at + i];
            low[i] = value < low[i] ? value : low[i];
            high[i] = value > high[i] ? value : high[i];
        }
    Range range = {low[0], high[0], true};
    for (int64_t i = 0; i < lanes; ++i) {
        range.min = fmin(range.min, low[i]);
        range.max = fmax(range.max, high[i]);
    }
    for (; at < count; ++at) {
        range.min = fmin(range.min, values[at]);
        range.max = fmax(range.max, values[at]);
    }
    return range;
}

void widen(Range *total, Range step) {
    if (!total->is_set) *total = step;
    total->min = fmin(total->min, step.min);
    total->max = fmax(total->max, step.max);
}

void move(Range *total, Range step) {
    if (!total->is_set) *total = step;
    total->min = kKeep * total->min + (1.0 - kKeep) * step.min;
    total->max = kKeep * total->max + (1.0 - kKeep) * step.max;
}

void grow(Histogram *histogram) {
    constexpr int32_t half = kBins / 2;
    // Bin i of the old grid is in bin half/2 + i/2 of one twice as wide.
    int64_t joined[kBins] = {};
    for (int32_t i = 0; i < kBins; ++i) joined[half / 2 + i / 2] += histogram->count[i];
    for (int32_t i = 0; i < kBins; ++i) histogram->count[i] = joined[i];
    ++histogram->reach;
}

void tally(Histogram *histogram, const float *values, int64_t count) {
    double limit = ldexp(1.0, histogram->reach), bins = 0.5 * kBins / limit;
    for (int64_t i = 0; i < count; ++i) {
        const double value = values[i];
        while (!(fabs(value) < limit) && histogram->reach < 126) {
            grow(histogram);
            limit *= 2.0;
            bins /= 2.0;
        }
        const int32_t bin = int32_t(floor(value * bins)) + kBins / 2;
        ++histogram->count[bin < 0 ? 0 : bin >= kBins ? kBins - 1 : bin];
    }
}

void add(double *sums, const float *values, int64_t batch, int64_t columns) {
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t k = 0; k < columns; ++k) sums[k] += values[b * columns + k];
}

struct Seen {
    int32_t which;
    const float *values;
    int64_t columns;
};

}  // namespace

void observe_step(Ranges *ranges, const FloatGru &gru, int32_t calibration, int64_t batch,
                  const float *x, const float *h, const FloatTrace &trace) {
    const int64_t c = gru.input_size, n = gru.hidden_size;
    const Seen seen[] = {
        {QK_GRU_X, x, c},
        {QK_GRU_H, trace.h, n},
        {QK_GRU_IH, trace.ih, 3 * n},
        {QK_GRU_HH, trace.hh, 3 * n},
        {QK_GRU_UPDATE_IN, trace.u_in, n},
        {QK_GRU_UPDATE_OUT, trace.u, n},
        {QK_GRU_RESET_IN, trace.r_in, n},
        {QK_GRU_RESET_OUT, trace.r, n},
        {QK_GRU_NEW_IN, trace.n_in, n},
        {QK_GRU_NEW_OUT, trace.n, n},
    };
    for (const Seen &tensor : seen) {
        const int64_t count = batch * tensor.columns;
        const Range step = range_of(tensor.values, count);
        // The seed flow averages x and h alone (rule 18).
        const bool moving = calibration == QK_GRU_CALIBRATE_MOVING &&
                            (tensor.which == QK_GRU_X || tensor.which == QK_GRU_H);
        if (moving)
            move(&ranges->range[tensor.which], step);
        else
            widen(&ranges->range[tensor.which], step);
        if (ranges->histogram != nullptr)
            tally(ranges->histogram + tensor.which, tensor.values, count);
    }
    add(ranges->x_sum, x, batch, c);
    add(ranges->h_sum, h, batch, n);
    ranges->samples += batch;
}

namespace {

// Squared error of a histogram on a grid: a twelfth of a step squared inside, distance outside.
double grid_error(const Histogram &histogram, double low, double high, double step) {
    double error = 0.0, width = ldexp(1.0, histogram.reach + 1) / kBins;
    for (int32_t i = 0; i < kBins; ++i) {
        if (histogram.count[i] == 0) continue;
        double centre = (i + 0.5) * width - ldexp(1.0, histogram.reach);
        double beyond = centre < low ? low - centre : centre > high ? centre - high : 0.0;
        error += double(histogram.count[i]) * (step * step / 12.0 + beyond * beyond);
    }
    return error;
}

}  // namespace

Exponent exponent_of_histogram(const qk_gru_quant &quant, const Histogram &histogram,
                               const Range &range) {
    constexpr int32_t kOffsets = 17;
    double min = fmin(range.min, 0.0), max = fmax(range.max, 0.0);
    Exponent base = exponent_of_range(quant, min, max), best = base;
    CodeRange codes = code_range(quant);
    double lowest = -1.0;
    for (int32_t shift = base.shift - 1; shift <= base.shift + 4; ++shift) {
        double step = ldexp(1.0, -shift);
        double from = codes.min - floor(ldexp(min, shift)),
               to = codes.max - ceil(ldexp(max, shift));
        for (int32_t i = 0; i < kOffsets; ++i) {
            double zero = rint(from + (to - from) * i / (kOffsets - 1));
            zero = quant.is_symmetric != 0 ? 0.0 : fmax(codes.min, fmin(codes.max, zero));
            double error =
                grid_error(histogram, (codes.min - zero) * step, (codes.max - zero) * step, step);
            // Strictly: a tie keeps the larger range (rule 20).
            if (lowest < 0.0 || error < lowest) {
                lowest = error;
                best = {shift, int32_t(zero)};
            }
        }
    }
    return best;
}

}  // namespace qk::gru

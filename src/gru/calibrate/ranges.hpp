// What calibration remembers: a range for every activation, and the means that bias correction
// needs. All memory is the caller's. Host only.
#pragma once
#include <stdint.h>

#include "gru/calibrate/exponent.hpp"
#include "gru/calibrate/float_gru.hpp"
#include "qk.h"

namespace qk::gru {

inline constexpr int32_t kBins = 2048;

// Counts over [-2^reach, 2^reach); grows by joining pairs of bins.
struct Histogram {
    int32_t reach;
    int64_t count[kBins];
};

struct Range {
    double min, max;
    bool is_set;
};

struct Ranges {
    Range range[QK_GRU_TENSOR_COUNT];  // set for activations only
    Histogram *histogram;              // [QK_GRU_TENSOR_COUNT] for MSE calibration, else NULL
    double *x_sum;                     // [c]
    double *h_sum;                     // [h] of the state that R reads
    int64_t samples;                   // steps times sequences seen
};

// One step of a batch, in time order: x [b,c], h the states it started from [b,h].
// calibration: QK_GRU_CALIBRATE_...
void observe_step(Ranges *ranges, const FloatGru &gru, int32_t calibration, int64_t batch,
                  const float *x, const float *h, const FloatTrace &trace);

// Cheapest squared error over exponents around the range's own and a row of zero points.
Exponent exponent_of_histogram(const qk_gru_quant &quant, const Histogram &histogram,
                               const Range &range);

}  // namespace qk::gru

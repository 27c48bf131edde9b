// The thresholds of LUT8 (format/quantizer.hpp) as numbers of grid points: comparisons of integers
// take the place of a division a number.
#pragma once
#include "format/quantizer.hpp"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

constexpr int kCuts = 255;

// The first point whose value is above a threshold; kLut8Points where none is.
__device__ inline int32_t first_point_above(float threshold) {
    if (!(threshold < 1)) return kLut8Points;
    if (threshold < -1) return 0;
    // One or two less: what roundings move is far below a step.
    int32_t point = max(lut8_point(threshold) - 1, 0);
    while (point < kLut8Points && !(threshold < lut8_point_value(point))) ++point;
    return point;
}

// The number of `cuts` at a point or before it, by the steps of lut8_code's bisection.
__device__ inline int32_t cuts_below(const int32_t *cuts, int32_t point) {
    int32_t at = 0;
#pragma unroll
    for (int32_t step = 128; step > 0; step /= 2) {
        if (cuts[at + step - 1] <= point) at += step;
    }
    return at;
}

}  // namespace
#endif

}  // namespace qk::cuda

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

// The numbers of `cuts` at points or before them, by the steps of lut8_code's bisection, several
// points at a time.
template <int kPoints>
__device__ void count_cuts(const int32_t *cuts, const int32_t (&points)[kPoints],
                           int32_t (&counts)[kPoints]) {
#pragma unroll
    for (int32_t &count : counts) count = 0;
#pragma unroll
    for (int32_t step = 128; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < kPoints; ++i) {
            counts[i] += cuts[counts[i] + step - 1] <= points[i] ? step : 0;
        }
    }
}

}  // namespace
#endif

}  // namespace qk::cuda

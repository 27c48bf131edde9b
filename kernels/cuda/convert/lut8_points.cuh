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

// Cuts as a tree: the children of node i are nodes 2 i and 2 i + 1, the root is node 1. The nodes
// of a level lie side by side, so that lanes meet in no bank until a level has more than 32.
constexpr int kCutNodes = kCuts + 1;

// The node of the cut number `at` in order.
__device__ inline int32_t cut_node(int32_t at) {
    const int32_t lowest = (at + 1) & -(at + 1);  // 1 of a leaf, twice as much a level up
    return (kCutNodes + at + 1) / (lowest * 2);
}

// The numbers of cuts at points or before them, several points at a time.
template <int kPoints>
__device__ void count_cuts(const int32_t *nodes, const int32_t (&points)[kPoints],
                           int32_t (&counts)[kPoints]) {
#pragma unroll
    for (int32_t &count : counts) count = 1;
#pragma unroll
    for (int level = 1; level < kCutNodes; level *= 2) {
#pragma unroll
        for (int i = 0; i < kPoints; ++i) {
            counts[i] = counts[i] * 2 + int32_t(nodes[counts[i]] <= points[i]);
        }
    }
#pragma unroll
    for (int32_t &count : counts) count -= kCutNodes;
}

}  // namespace
#endif

}  // namespace qk::cuda

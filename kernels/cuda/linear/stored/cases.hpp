// The host side that the kernels of this folder share: which cases their words and loads allow.
#pragma once
#include "cuda/conditions.hpp"
#include "cuda/linear/stored/sums.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

inline Problem problem_of(const LinearArgs &args, int64_t step_columns) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const int64_t second = w.scale.second_group;
    const bool one_group = s.groups_per_row == 1;
    const GroupIndex first = {0, 0}, down = {s.n > 1, 0}, along = {0, !one_group};
    const int64_t swap = w.layout->id == QK_LAYOUT_ROW_HIGH;  // of neighbours in the zeros
    const auto scale = [&](GroupIndex at) { return uint32_t(w.layout->scale_at(s, at)); };
    const auto zero = [&](GroupIndex at) { return uint32_t(w.layout->zero_at(s, at) ^ swap); };
    return {view_of(args),
            int32_t(ceil_div(s.k, step_columns)),
            one_group ? int32_t{1} << 30 : int32_t(s.group_size / kPart),
            scale(down) - scale(first),
            scale(along) - scale(first),
            zero(down) - zero(first),
            zero(along) - zero(first),
            w.scale.format->bits / 8,
            log2_of(second)};
}

// Whether two blocks a multiprocessor are there, whatever the batch.
inline bool fills_twice(const Problem &p, int64_t block_rows, const Device &device) {
    return ceil_div(p.w.geometry.n, block_rows) >= 2 * device.multiprocessors;
}

// The grid of passes over x.
template <class T>
Shape3 shape_of(const Problem &p, int64_t block_rows, int warps, int batches) {
    return {dim3(uint32_t(ceil_div(p.w.geometry.n, block_rows)),
                 uint32_t(ceil_div(p.m, XOperand<T>::kRows * batches))),
            warps * 32};
}

}  // namespace
}  // namespace qk::cuda

// A row of any weight times rows of x, as docs/formats.md orders the sums of one row of floats:
//
//     16 lanes of half a warp, column c belongs to lane c mod 16
//     sum = fma(x[c], w[c], sum), c ascending; w[c] = entry * scale, rounded, less a minimum
//     at the row's end lanes fold 16 -> 8 -> 4 -> 2 -> 1
#pragma once
#include "cuda/any_weight.cuh"

namespace qk::cuda {
namespace {

constexpr int kLanes = 16;

// A row of x each.
template <int kRowsOfX>
struct Sums {
    float x[kRowsOfX];
};

// Columns [first, last) of one group.
template <int kRowsOfX>
__device__ void add_group(const LinearView &o, const float *entries, int64_t row, int64_t x_first,
                          int64_t first, int64_t last, const GroupValues &group,
                          Sums<kRowsOfX> *sums) {
    const int lane = int(threadIdx.x) % kLanes;
    const int64_t k = o.w.geometry.k;
    const bool dense = o.w.kind == FormatKind::kFloat;
    for (int64_t c = first + ((lane - first) & (kLanes - 1)); c < last; c += kLanes) {
        float weight;
        if (dense) {
            weight = load_float(o.w.format, o.w.data, row * k + c);
        } else {
            weight = any_value(o.w, entries, any_code(o.w, row, c), group);
        }
#pragma unroll
        for (int i = 0; i < kRowsOfX; ++i) {
            if (x_first + i >= o.m) break;
            const float x = load_float(o.type, o.x, (x_first + i) * o.x_stride + c);
            sums->x[i] = __fmaf_rn(x, weight, sums->x[i]);
        }
    }
}

template <int kRowsOfX>
__device__ void add_row(const LinearView &o, const float *entries, int64_t row, int64_t x_first,
                        Sums<kRowsOfX> *sums) {
    const Geometry &s = o.w.geometry;
    if (o.w.kind == FormatKind::kFloat) {
        add_group(o, entries, row, x_first, 0, s.k, {}, sums);
        return;
    }
    for (int64_t c = 0; c < s.k;) {
        const GroupIndex group = group_of(s, row, c);
        const int64_t end = group_end(s, row, c);
        add_group(o, entries, row, x_first, c, end, any_group(o.w, group), sums);
        c = end;
    }
}

// Of the half warp's lanes; in the first of them.
__device__ inline float folded(float sum) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
        sum = __fadd_rn(sum, __shfl_down_sync(~0u, sum, half, kLanes));
    }
    return sum;
}

}  // namespace
}  // namespace qk::cuda

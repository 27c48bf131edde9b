// y = x . transpose(w) + bias, any format x layout x scale kind x type, any m, n, k, in the order
// of sums that docs/formats.md states for one row of floats, so that its bits equal the CPU's:
//
//     16 lanes of half a warp, column c belongs to lane c mod 16
//     sum = fma(x[c], w[c], sum), c ascending; w[c] = entry * scale, rounded, less a minimum
//     at the row's end lanes fold 16 -> 8 -> 4 -> 2 -> 1, then + bias, then one rounding
//
// Half a warp computes one row of w against 8 rows of x.
#include "cuda/any_weight.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kLanes = 16, kRowsOfX = 8, kRowsOfW = 8;  // of a block
constexpr int32_t kThreads = kLanes * kRowsOfW;

struct Sums {
    float x[kRowsOfX];  // a row of x each
};

// Columns [first, last) of one group.
__device__ void add_group(const LinearView &o, const float *entries, int64_t row, int64_t x_first,
                          int64_t first, int64_t last, const GroupValues &group, Sums *sums) {
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
            const float x = load_float(o.type, o.x, (x_first + i) * k + c);
            sums->x[i] = __fmaf_rn(x, weight, sums->x[i]);
        }
    }
}

__device__ void add_row(const LinearView &o, const float *entries, int64_t row, int64_t x_first,
                        Sums *sums) {
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

__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ LinearView o) {
    __shared__ float entries[256];
    fill_entries(o.w, entries);
    const int64_t n = o.w.geometry.n;
    const int64_t row = int64_t(blockIdx.x) * kRowsOfW + threadIdx.x / kLanes;
    const bool inside = row < n;
    const int lane = int(threadIdx.x) % kLanes;
    for (int64_t x_first = int64_t(blockIdx.y) * kRowsOfX; x_first < o.m;
         x_first += int64_t(gridDim.y) * kRowsOfX) {
        Sums sums = {};
        if (inside) add_row(o, entries, row, x_first, &sums);
#pragma unroll
        for (int i = 0; i < kRowsOfX; ++i) {
            float y = sums.x[i];
            for (int half = kLanes / 2; half > 0; half /= 2) {
                y = __fadd_rn(y, __shfl_down_sync(~0u, y, half, kLanes));
            }
            if (!inside || lane != 0 || x_first + i >= o.m) continue;
            if (o.bias != nullptr) y = __fadd_rn(y, load_float(o.bias_type, o.bias, row));
            store_float(o.type, o.y, (x_first + i) * n + row, y);
        }
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    constexpr int64_t kMaxGridY = 65535;
    // The hardware's limit on gridDim.x is 2^31 - 1 blocks: 17e9 rows.
    const uint32_t rows = uint32_t(ceil_div(args.w.geometry.n, kRowsOfW));
    const uint32_t columns = uint32_t(min64(ceil_div(args.x.rows, kRowsOfX), kMaxGridY));
    return launch_kernel(launch, "linear", multiply, {dim3(rows, columns), kThreads},
                         view_of(args));
}

}  // namespace

const Kernel<LinearArgs> kLinearGeneric = linear_kernel<LinearKernel::kGeneric>(run);

}  // namespace qk::cuda

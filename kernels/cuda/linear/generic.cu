// y = x . transpose(w) + bias, any format x layout x scale kind x type, any m, n, k, in the order
// of sums that docs/formats.md states for one row of floats (plain_row.cuh), so that its bits equal
// the CPU's; then + bias, then + what y held if it accumulates, then one rounding. And y = x . w +
// bias. Rows of x and y may be apart, y may be f32.
//
// Half a warp computes one row of w against 8 rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/plain_row.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kRowsOfX = 8, kRowsOfW = 8;  // of a block
constexpr int32_t kThreads = kLanes * kRowsOfW;

__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ LinearView o) {
    __shared__ float entries[256];
    fill_entries(o.w, entries);
    const int64_t n = o.w.geometry.n;
    const int64_t row = int64_t(blockIdx.x) * kRowsOfW + threadIdx.x / kLanes;
    const bool inside = row < n;
    const int lane = int(threadIdx.x) % kLanes;
    for (int64_t x_first = int64_t(blockIdx.y) * kRowsOfX; x_first < o.m;
         x_first += int64_t(gridDim.y) * kRowsOfX) {
        Sums<kRowsOfX> sums = {};
        if (inside) add_row(o, entries, row, x_first, &sums);
#pragma unroll
        for (int i = 0; i < kRowsOfX; ++i) {
            const float y = folded(sums.x[i]);
            if (!inside || lane != 0 || x_first + i >= o.m) continue;
            store_any(o, x_first + i, row, y);
        }
    }
}

// y = x . w: a thread has a column for 8 rows of x. Blocks of 128 rows of w, a chain each, as
// docs/formats.md has it, so that the bits equal the CPU's.
__device__ float weight_at(const LinearView &o, const float *entries, int64_t row, int64_t column) {
    const Geometry &s = o.w.geometry;
    if (o.w.kind == FormatKind::kFloat) return load_float(o.w.format, o.w.data, row * s.k + column);
    const GroupValues group = any_group(o.w, group_of(s, row, column));
    return any_value(o.w, entries, any_code(o.w, row, column), group);
}

__global__ void __launch_bounds__(kThreads)
    multiply_transposed(const __grid_constant__ LinearView o) {
    constexpr int64_t kBlock = 128;
    __shared__ float entries[256];
    fill_entries(o.w, entries);
    const Geometry &s = o.w.geometry;
    const int64_t column = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (column >= s.k) return;
    for (int64_t x_first = int64_t(blockIdx.y) * kRowsOfX; x_first < o.m;
         x_first += int64_t(gridDim.y) * kRowsOfX) {
        Sums<kRowsOfX> total = {};
        for (int64_t start = 0; start < s.n; start += kBlock) {
            Sums<kRowsOfX> block = {};
            for (int64_t row = start; row < min64(start + kBlock, s.n); ++row) {
                const float weight = weight_at(o, entries, row, column);
#pragma unroll
                for (int i = 0; i < kRowsOfX; ++i) {
                    if (x_first + i >= o.m) break;
                    const float x = load_float(o.type, o.x, (x_first + i) * o.x_stride + row);
                    block.x[i] = __fmaf_rn(x, weight, block.x[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < kRowsOfX; ++i) total.x[i] = __fadd_rn(total.x[i], block.x[i]);
        }
#pragma unroll
        for (int i = 0; i < kRowsOfX; ++i) {
            if (x_first + i < o.m) store_moved(o, x_first + i, column, total.x[i]);
        }
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    constexpr int64_t kMaxGridY = 65535;
    const uint32_t passes = uint32_t(min64(ceil_div(args.x.rows, kRowsOfX), kMaxGridY));
    if (args.transposed) {
        const uint32_t blocks = uint32_t(ceil_div(args.w.geometry.k, kThreads));
        return launch_kernel(launch, "linear", multiply_transposed,
                             {dim3(blocks, passes), kThreads}, view_of(args));
    }
    // The hardware's limit on gridDim.x is 2^31 - 1 blocks: 17e9 rows.
    const uint32_t rows = uint32_t(ceil_div(args.w.geometry.n, kRowsOfW));
    return launch_kernel(launch, "linear", multiply, {dim3(rows, passes), kThreads}, view_of(args));
}

}  // namespace

const Kernel<LinearArgs> kLinearGeneric = linear_kernel<LinearKernel::kGeneric>(run);

}  // namespace qk::cuda

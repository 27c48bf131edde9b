// Products with experts of any weight, in the CPU's bits: half a warp has a column of y, and of
// each of its slots multiplies the row of w, or the two that are joined.
#include "cuda/kernels.hpp"
#include "cuda/linear/experts.cuh"
#include "cuda/linear/plain_row.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kColumns = 8;  // of a block
constexpr int32_t kThreads = kLanes * kColumns;

struct Problem {
    LinearView o;
    ExpertsView e;
};

// x . w[row] + bias[row], in the half warp's first lane.
__device__ float row_sum(const Problem &p, const float *entries, int64_t row, int64_t x_row) {
    Sums<1> sums = {};
    add_row(p.o, entries, row, x_row, &sums);
    return with_bias(p.e, row, folded(sums.x[0]));
}

// z of a slot, in the half warp's first lane.
__device__ float z_of(const Problem &p, const float *entries, int64_t slot, int32_t expert,
                      int64_t column) {
    const ExpertsView &e = p.e;
    const RowsOfColumn rows = rows_of_column(e, column);
    const int64_t first = expert * e.rows, x_row = e.x_by_slot ? slot : slot / e.slots;
    const float gate = row_sum(p, entries, first + rows.gate, x_row);
    if (!e.joins()) return gate;
    const float up = row_sum(p, entries, first + rows.up, x_row);
    return join(e.activation, e.limit, e.alpha, gate, up);
}

__global__ void __launch_bounds__(kThreads) multiply_experts(const __grid_constant__ Problem p) {
    __shared__ float entries[256];
    fill_entries(p.o.w, entries);
    const ExpertsView &e = p.e;
    const int64_t column = int64_t(blockIdx.x) * kColumns + threadIdx.x / kLanes;
    const int64_t inside = min64(column, e.columns - 1);
    for (int64_t head = blockIdx.y; head < e.heads(); head += gridDim.y) {
        const SlotSum sum = sum_of_slots(e, head, [&](int64_t slot, int32_t expert) {
            return z_of(p, entries, slot, expert, inside);
        });
        if (column == inside && threadIdx.x % kLanes == 0) store_sum(e, head, column, sum);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    constexpr int64_t kMaxGridY = 65535;
    const Problem p = {view_of(args), experts_view(args)};
    const dim3 blocks(uint32_t(ceil_div(p.e.columns, kColumns)),
                      uint32_t(min64(p.e.heads(), kMaxGridY)));
    return launch_kernel(launch, "experts", multiply_experts, {blocks, kThreads}, p);
}

}  // namespace

const Kernel<LinearArgs> kLinearExperts = linear_kernel<LinearKernel::kExperts>(run);

}  // namespace qk::cuda

// The host side of the matrix kernel on mma.sync (linear/sm80/gemm/kernel.cuh), and what adds up
// the parts where blocks share k.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm80/gemm/shape.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// y from the parts, in their order.
constexpr int32_t kAddThreads = 128;

__global__ void __launch_bounds__(kAddThreads)
    add_sm80_gemm_parts(const __grid_constant__ Sm80GemmProblem p) {
    allow_next_kernel();
    wait_for_previous_kernel();
    const int64_t pitch = int64_t(p.row_tiles) * 16;
    const int64_t x_row = blockIdx.y, row = (int64_t(blockIdx.x) * kAddThreads + threadIdx.x) * 4;
    if (row >= p.w.geometry.n) return;
    const float4 *const from = reinterpret_cast<const float4 *>(p.parts + x_row * pitch + row);
    float4 v = *from;
    for (int32_t i = 1; i < p.split; ++i) v = add_four(v, from[p.m * pitch / 4 * i]);
    store_four(p, x_row, row, v);
}

Status add_parts(const Sm80GemmProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(ceil_div(p.w.geometry.n, kAddThreads * 4)), uint32_t(p.m)),
                    kAddThreads};
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", add_sm80_gemm_parts, shape, p);
}

int32_t split_of(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    return sm80_gemm_split(sm80_gemm_x_blocks(args.x.rows), s.n, s.k, device.multiprocessors);
}

// Without room for parts a block takes all of k.
Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const int64_t sums = sm80_gemm_workspace(args.x.rows, s.n, s.k, launch.device.multiprocessors);
    const bool room = size_t(sums) <= launch.workspace_bytes;
    Sm80GemmProblem p = {view_of(args),
                         args.y.columns,
                         int32_t(ceil_div(s.n, 16)),
                         int32_t(ceil_div(s.k, 64)),
                         group_tiles_shift(s),
                         log2_of(args.w.scale.second_group),
                         int32_t(ceil_div(args.x.rows, kSm80GemmBlockX)),
                         room ? split_of(args, launch.device) : 1,
                         0,
                         static_cast<float *>(launch.workspace)};
    QK_TRY(instance_for<Sm80Gemm>(codes_of(args.w), p.type)(launch, &p));
    return p.split > 1 ? add_parts(p, launch) : QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearSm80Gemm = linear_kernel<LinearKernel::kSm80Gemm>(run);

}  // namespace qk::cuda

// The host side of the kernel for one row of x (warp.cuh): which cases it takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/warp.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const GemvPlan plan = plan_gemv(s.n, s.k, launch.device.multiprocessors);
    GemvProblem p = gemv_problem(args, launch.device, plan);
    const int64_t second = args.w.scale.second_group;
    if (second > 0) p.last_second = uint32_t(gemv_seconds(plan, s.groups_per_row, second) - 1);
    return instance_for_any<Gemv>(codes_of(args.w), args.x.format->id)(p, args.w.scale.format->id,
                                                                       launch);
}

// The instance with the most shared memory, plus the room that nested scales take.
using Largest = GemvWarp<F16, RingLut4<F16>, ScaleKind::kF32, -2>;
static_assert(kGemvShared == Largest::kSums - kSharedStart + 256 * 4);

}  // namespace

const Kernel<LinearArgs> kLinearSm90Gemv = linear_kernel<LinearKernel::kSm90Gemv>(run);

}  // namespace qk::cuda

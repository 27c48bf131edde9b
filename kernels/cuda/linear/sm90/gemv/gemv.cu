// The host side of the kernel for one row of x (warp.cuh): which cases it takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/siblings_plan.hpp"
#include "cuda/linear/sm90/gemv/warp.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const GemvProblem p = gemv_problem(args, launch.device, launch.device.multiprocessors);
    return instance_for_any<Gemv>(codes_of(args.w), args.x.format->id)(p, args.w.scale.format->id,
                                                                       launch);
}

// Kernel::run_siblings.
Status run_siblings(const LinearArgs *const *args, int32_t count, const Launch &launch,
                    int32_t *ran) {
    const int32_t taken = count_siblings(args, count, launch.device);
    *ran = 0;
    if (taken < 2) return QK_OK;
    const LinearArgs &one = *args[0];
    *ran = taken;
    return instance_for<GemvSiblings>(codes_of(one.w), one.x.format->id)(
        siblings_problems(args, taken, launch.device), one.w.scale.format->id, launch);
}

// The instance with the most shared memory, plus the room that nested scales take.
using Largest = GemvWarp<F16, RingLut4<F16>, ScaleKind::kF32, -2>;
static_assert(kGemvShared == Largest::kSums - kSharedStart + 256 * 4);

}  // namespace

const Kernel<LinearArgs> kLinearSm90Gemv =
    linear_kernel<LinearKernel::kSm90Gemv>(run, run_siblings);

}  // namespace qk::cuda

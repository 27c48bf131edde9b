// The host side of the kernel for one row of x (warp.cuh): which cases it takes.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/warp.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

GemvProblem gemv_problem(const LinearArgs &args, const Device &device) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    GemvProblem p = {tiles_problem(args),
                     group_tiles_shift(s),
                     0,
                     plan_gemv(s.n, s.k, device.multiprocessors),
                     1,
                     0,
                     true,
                     coded_scales(w.scale, *device.tables)};
    const int64_t second = w.scale.second_group;
    if (second > 0) {
        p.last_second = uint32_t(gemv_seconds(p.plan, s.groups_per_row, second) - 1);
    }
    return p;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const GemvProblem p = gemv_problem(args, launch.device);
    return instance_for_any<Gemv>(codes_of(args.w), args.x.format->id)(p, args.w.scale.format->id,
                                                                       launch);
}

// The instance with the most shared memory, plus the room that nested scales take.
using Largest = GemvWarp<F16, RingLut4<F16>, ScaleKind::kF32, -2>;
static_assert(kGemvShared == Largest::kSums - kSharedStart + 256 * 4);

}  // namespace

const Kernel<LinearArgs> kLinearSm90Gemv = linear_kernel<LinearKernel::kSm90Gemv>(run);

}  // namespace qk::cuda

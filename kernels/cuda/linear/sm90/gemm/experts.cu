// The host side of the matrix kernel for experts (experts.cuh).
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemm/experts_problem.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

Status multiply(const LinearArgs &args, const ListedExperts &listed, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "experts"));
    return instance_for<GemmExperts>(codes_of(args.w), args.x.format->id)(args, listed, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const ExpertsView e = experts_view(args);
    const Geometry &s = args.w.geometry;
    const GemmExpertsKind kind = {has_small_groups(s.group_size, s.groups_per_row),
                                  has_coded_scales(args.w.scale), codes_of(args.w) == Codes::kLut4,
                                  args.w.format->id == QK_FORMAT_FP4_E2M1};
    const ExpertsListPlan plan =
        plan_gemm_list(e.tokens, e.slots, e.count, e.columns, e.summed, args.x.columns, kind);
    return run_listed(args, plan, launch, multiply);
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90ExpertGemm = linear_kernel<LinearKernel::kSm90ExpertGemm>(run);

}  // namespace qk::cuda

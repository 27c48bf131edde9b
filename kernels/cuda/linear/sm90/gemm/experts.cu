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

ExpertsListPlan plan_of(const LinearArgs &args) {
    const ExpertsView e = experts_view(args);
    const Geometry &s = args.w.geometry;
    const GemmExpertsKind kind = {has_small_groups(s.group_size, s.groups_per_row),
                                  has_coded_scales(args.w.scale), codes_of(args.w) == Codes::kLut4,
                                  args.w.format->id == QK_FORMAT_FP4_E2M1,
                                  args.w.scale.format->id == QK_FORMAT_E8M0};
    return plan_gemm_list(e.tokens, e.slots, e.count, e.columns, e.summed, args.x.columns, kind);
}

Status run(const LinearArgs &args, const Launch &launch) {
    return run_listed(args, plan_of(args), launch, multiply);
}

// Kernel::run_siblings, of gate and up and of down.
Status run_siblings(const LinearArgs *const *args, int32_t, const Launch &launch, int32_t *ran) {
    const LinearArgs &up = *args[0], &down = *args[1];
    const ExpertsLayer layer = {up, down, plan_of(up), plan_of(down)};
    const bool both = up.y.format->bits == 16 && leaves_whole(experts_view(up)) &&
                      layer.shares_list() && size_t(layer.end()) <= launch.workspace_bytes;
    *ran = both ? 2 : 0;
    return both ? run_layer(layer, launch, multiply) : QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90ExpertGemm =
    linear_kernel<LinearKernel::kSm90ExpertGemm>(run, run_siblings);

}  // namespace qk::cuda

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
    return run_listed(args, gemm_list_of(args), launch, multiply);
}

// Kernel::run_siblings, of gate and up and of down.
Status run_siblings(const LinearArgs *const *args, int32_t, const Launch &launch, int32_t *ran) {
    const ExpertsLayer layer = gemm_layer_of(*args[0], *args[1]);
    const bool both = runs_as_one(layer, launch.workspace_bytes);
    *ran = both ? 2 : 0;
    return both ? run_layer(layer, launch, multiply) : QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearSm90ExpertGemm =
    linear_kernel<LinearKernel::kSm90ExpertGemm>(run, run_siblings);

}  // namespace qk::cuda

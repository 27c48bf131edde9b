// Kernels that need instructions of a GPU: in their lists, but taking no case. A product for which
// the table selects one runs as the generic kernel.
#include "cuda/kernels.hpp"
#include "cuda/linear/sm90/gemv/siblings_plan.hpp"
#include "cuda/simulated/absent.hpp"

namespace qk::cuda {
namespace {

Status run_generic(const LinearArgs &args, const Launch &launch) {
    return kLinearGeneric.run(args, launch);
}

Status run_experts(const LinearArgs &args, const Launch &launch) {
    return kLinearExperts.run(args, launch);
}

// From the last to the first: they have no order.
Status run_siblings(const LinearArgs *const *cases, int32_t count, const Launch &launch,
                    int32_t *ran) {
    const int32_t together = count_siblings(cases, count, launch.device);
    *ran = together < 2 ? 0 : together;
    for (int32_t i = *ran - 1; i >= 0; --i) QK_TRY(run_generic(*cases[i], launch));
    return QK_OK;
}

constexpr Kernel<LinearArgs> stand_in(LinearKernel kernel) {
    const bool experts = kernel == LinearKernel::kSm90Experts ||
                         kernel == LinearKernel::kSm90ExpertRows ||
                         kernel == LinearKernel::kSm90ExpertGemm;
    return {kLinearNames[int(kernel)], never<LinearArgs>, nullptr,
            experts ? run_experts : run_generic,
            kernel == LinearKernel::kSm90Gemv ? run_siblings : nullptr};
}

}  // namespace

using K = LinearKernel;
const Kernel<LinearArgs> kLinearSm90Gemv = stand_in(K::kSm90Gemv);
const Kernel<LinearArgs> kLinearSm90Experts = stand_in(K::kSm90Experts);
const Kernel<LinearArgs> kLinearSm90ExpertRows = stand_in(K::kSm90ExpertRows);
const Kernel<LinearArgs> kLinearSm90ExpertGemm = stand_in(K::kSm90ExpertGemm);
const Kernel<LinearArgs> kLinearSm90FewRows = stand_in(K::kSm90FewRows);
const Kernel<LinearArgs> kLinearSm90ClusterRows = stand_in(K::kSm90ClusterRows);
const Kernel<LinearArgs> kLinearSm90SomeRows = stand_in(K::kSm90SomeRows);
const Kernel<LinearArgs> kLinearSm90Rows24 = stand_in(K::kSm90Rows24);
const Kernel<LinearArgs> kLinearSm80Gemv = stand_in(K::kSm80Gemv);
const Kernel<LinearArgs> kLinearBytes = stand_in(K::kBytes);

const Kernel<GruArgs> kGruStep = {"step", never<GruArgs>, nullptr, nullptr};
const Kernel<GruArgs> kGruCluster = {"cluster", never<GruArgs>, nullptr, nullptr};

}  // namespace qk::cuda

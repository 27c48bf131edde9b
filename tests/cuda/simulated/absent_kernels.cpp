// Kernels that need instructions of a GPU. Products run as the generic kernel in their place; the
// GRU's lists have kernels that take no case.
#include "cuda/linear/kernels.hpp"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

Status run_generic(const LinearArgs &args, const Launch &launch) {
    return kLinearGeneric.run(args, launch);
}

bool never(const GruArgs &, const Device &) { return false; }

}  // namespace

using K = LinearKernel;
const Kernel<LinearArgs> kLinearSm90Gemv = linear_kernel<K::kSm90Gemv>(run_generic);
const Kernel<LinearArgs> kLinearSm90FewRows = linear_kernel<K::kSm90FewRows>(run_generic);
const Kernel<LinearArgs> kLinearSm90SomeRows = linear_kernel<K::kSm90SomeRows>(run_generic);
const Kernel<LinearArgs> kLinearSm90Rows24 = linear_kernel<K::kSm90Rows24>(run_generic);
const Kernel<LinearArgs> kLinearSm80Gemv = linear_kernel<K::kSm80Gemv>(run_generic);
const Kernel<LinearArgs> kLinearBytes = linear_kernel<K::kBytes>(run_generic);

const Kernel<GruArgs> kGruStep = {"step", never, nullptr, nullptr};
const Kernel<GruArgs> kGruCluster = {"cluster", never, nullptr, nullptr};

}  // namespace qk::cuda

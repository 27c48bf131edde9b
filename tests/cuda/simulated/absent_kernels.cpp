// Kernels that need instructions of a GPU: in their lists, but taking no case.
#include "cuda/lists.hpp"
#include "cuda/middle/problem.hpp"

namespace qk::cuda {

template <class Args>
static bool never(const Args &, const Device &) {
    return false;
}

const Kernel<LinearArgs> kLinearVector = {"vector", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearStages = {"stages", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearRows = {"rows", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearSlices = {"slices", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearManySlices = {"many slices", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearMatvec = {"matvec", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearBytes = {"bytes", never, nullptr, nullptr};
// Its other two instances are there: they share every line.
Status run_middle_numbers_bf16(const Launch &, MiddleProblem *) { return QK_ERROR_UNSUPPORTED; }
Status run_middle_pairs_f16(const Launch &, MiddleProblem *) { return QK_ERROR_UNSUPPORTED; }

const Kernel<GruArgs> kGruStep = {"step", never, nullptr, nullptr};
const Kernel<GruArgs> kGruCluster = {"cluster", never, nullptr, nullptr};

}  // namespace qk::cuda

// Kernels that need instructions of a GPU: in their lists, but taking no case.
#include "cuda/lists.hpp"

namespace qk::cuda {

template <class Args>
static bool never(const Args &, const Device &) {
    return false;
}

const Kernel<LinearArgs> kLinearVector = {"sm90 gemv", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearStages = {"sm90 gemv deep", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearRows = {"sm90 few rows", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearSlices = {"sm90 some rows", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearManySlices = {"sm90 24 rows", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearMatvec = {"sm80 gemv", never, nullptr, nullptr};
const Kernel<LinearArgs> kLinearBytes = {"stored bytes", never, nullptr, nullptr};

const Kernel<GruArgs> kGruStep = {"step", never, nullptr, nullptr};
const Kernel<GruArgs> kGruCluster = {"cluster", never, nullptr, nullptr};

}  // namespace qk::cuda

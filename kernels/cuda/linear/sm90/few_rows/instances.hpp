// The instances of the kernel for few rows of x, each compiled on its own.
#pragma once
#include "cuda/tile/instance.hpp"

namespace qk::cuda {

template <Codes codes, qk_format x>
struct FewRows {
    static Status run(const LinearArgs &args, const Launch &launch);
};

}  // namespace qk::cuda

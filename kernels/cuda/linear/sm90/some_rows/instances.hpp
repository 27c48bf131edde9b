// The instances of the kernel for some rows of x, each compiled on its own.
#pragma once
#include "cuda/tile/instance.hpp"

namespace qk::cuda {

template <Codes codes, qk_format x>
struct SomeRows {
    static Status run(const LinearArgs &args, const Launch &launch);
};

// 17 to 24 rows of x.
template <Codes codes, qk_format x>
struct Rows24 {
    static Status run(const LinearArgs &args, const Launch &launch);
};

}  // namespace qk::cuda

// Which CUDA kernels the simulation has no code of.
#pragma once

#include <cstring>

#include "backend/backend.hpp"

namespace qk::cuda {

// can_run of the kernels in absent_kernels.cpp.
template <class Args>
bool never(const Args &, const Device &) {
    return false;
}

// Those, and the matrix kernels whose sums fake_gemm.cpp has.
template <class Args>
bool is_absent(const Kernel<Args> &kernel) {
    return kernel.can_run == never<Args> || std::strncmp(kernel.name, "sm90 ", 5) == 0;
}

}  // namespace qk::cuda

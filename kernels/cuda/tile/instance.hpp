// Kernels that are compiled once for each kind of codes and type of x. CMake writes a file an
// instance (instances.cmake); here the host picks one.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

// What the codes of a weight are: 4 bits that are integers (U4_AFFINE) or look up one of 16 values
// (NF4, FP4_BNB, FP4_E2M1), 8 bits that are integers (S8) or look up one of 256 (LUT8).
enum class Codes { kU4, kLut4, kS8, kLut8 };

// Packed tiles of 4-bit codes.
inline Codes codes_of(const Weight &w) {
    return w.layout->id == kLayoutTilesPairs ? Codes::kLut4 : Codes::kU4;
}

// Kernel<codes, x>::run, for x of 16 bits.
template <template <Codes, qk_format> class Kernel, Codes codes>
auto *instance_for(qk_format x) {
    return x == QK_FORMAT_F16 ? Kernel<codes, QK_FORMAT_F16>::run
                              : Kernel<codes, QK_FORMAT_BF16>::run;
}

// Of 4-bit codes.
template <template <Codes, qk_format> class Kernel>
auto *instance_for(Codes codes, qk_format x) {
    return codes == Codes::kU4 ? instance_for<Kernel, Codes::kU4>(x)
                               : instance_for<Kernel, Codes::kLut4>(x);
}

}  // namespace qk::cuda

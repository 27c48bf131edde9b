// Keeps a value in its register: the compiler would recompute it at every use.
#pragma once
#include <stdint.h>

namespace qk::cuda {
namespace {

__device__ inline void keep(uint32_t &value) {
#if defined(__CUDA_ARCH__)
    asm("" : "+r"(value));
#else
    (void)value;
#endif
}
__device__ inline void keep(int32_t &value) {
#if defined(__CUDA_ARCH__)
    asm("" : "+r"(value));
#else
    (void)value;
#endif
}
template <class P>
__device__ void keep(P *&pointer) {
#if defined(__CUDA_ARCH__)
    asm("" : "+l"(pointer));
#else
    (void)pointer;
#endif
}

}  // namespace
}  // namespace qk::cuda

// Copies of boxes out of tensors by the copy engine (sm_90), barriers that many threads arrive at.
#pragma once
#include <cuda.h>
#include <stdint.h>

#include "cuda/prim/copy.cuh"

namespace qk::cuda {
namespace {

// 0, once v is there: what uses it waits for the load of v, which no compiler sees through.
__device__ inline uint32_t zero_after(uint32_t v) {
    uint32_t bits;
    asm volatile("popc.b32 %0, %1;" : "=r"(bits) : "r"(v));
    return bits & 64;
}

__device__ inline void prefetch_map(const CUtensorMap &map) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

__device__ inline void tensor_copy(uint32_t to, const CUtensorMap &map, int32_t c0, int32_t c1,
                                   uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(c0), "r"(c1), "r"(barrier)
        : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::copy_box(to, map, {c0, c1, 0}, barrier);
#endif
}

__device__ inline void tensor_copy(uint32_t to, const CUtensorMap &map, int32_t c0, int32_t c1,
                                   int32_t c2, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
        : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::copy_box(to, map, {c0, c1, c2}, barrier);
#endif
}

// `bytes` (8 or 16) by one thread; zeros where `there` is false.
template <int bytes>
__device__ inline void copy_piece(uint32_t to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes),
                 "r"(there ? bytes : 0)
                 : "memory");
#endif
}

template <int count>
__device__ inline void more_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ inline void fewer_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace
}  // namespace qk::cuda

// Blocks of a cluster that write into each other's shared memory. A store names the barrier of the
// receiving block that counts its bytes, so the receiver waits for data, never for a sender.
#pragma once
#include "cuda/prim/copy.cuh"

namespace qk::cuda {
namespace {

__device__ inline uint32_t cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// The place in block `rank` of this block's shared address.
__device__ inline uint32_t remote_address(uint32_t address, uint32_t rank) {
    uint32_t remote = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
    return remote;
}

__device__ inline void remote_store_16(uint32_t address, const uint4 &value, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::
            "r"(address),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
        : "memory");
#endif
}

// Eight bytes that arrive together, and a look at 16 that may be arriving.
__device__ inline void remote_store_8(uint32_t address, uint32_t low, uint32_t high) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .b64 pair;\n\t"
        "mov.b64 pair, {%1, %2};\n\t"
        "st.relaxed.cluster.shared::cluster.b64 [%0], pair;\n\t}" ::"r"(address),
        "r"(low), "r"(high)
        : "memory");
#endif
}

__device__ inline uint4 peek_16(uint32_t address) {
    uint4 v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .b64 first, second;\n\t"
        "ld.volatile.shared.v2.b64 {first, second}, [%4];\n\t"
        "mov.b64 {%0, %1}, first;\n\t"
        "mov.b64 {%2, %3}, second;\n\t}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(address)
        : "memory");
#endif
    return v;
}

__device__ inline void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\t"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#endif
}

// A barrier among `threads` threads of a block, id 1..15: some wait at it, others only pass by.
__device__ inline void named_barrier_wait(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace
}  // namespace qk::cuda

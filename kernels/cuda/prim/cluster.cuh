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

// The number of this cluster in a grid along x.
__device__ inline uint32_t cluster_id() {
    uint32_t id = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
#endif
    return id;
}

// The place in block `rank` of this block's shared address.
__device__ inline uint32_t remote_address(uint32_t address, uint32_t rank) {
    uint32_t remote = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
    return remote;
}

__device__ inline void remote_store_4(uint32_t address, uint32_t value, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
        "r"(value), "r"(barrier)
        : "memory");
#endif
}

__device__ inline void remote_store_8(uint32_t address, const uint2 &value, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(
            address),
        "r"(value.x), "r"(value.y), "r"(barrier)
        : "memory");
#endif
}

// If `sends`, by a predicate: there is no branch between several of them.
__device__ inline void remote_store_16(bool sends, uint32_t address, const uint4 &value,
                                       uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred sends;\n\tsetp.ne.b32 sends, %6, 0;\n\t"
        "@sends st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
        "[%0], {%1,%2,%3,%4}, [%5];\n\t}" ::"r"(address),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier), "r"(int(sends))
        : "memory");
#endif
}

__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Orders no memory: for a thread whose loads have all returned and that has written nothing, or
// nothing but barriers (whose initialisation has a fence of its own).
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// 4 bytes at `address` of the shared memory of block `rank` of the cluster.
__device__ inline uint32_t cluster_load_4(uint32_t address, uint32_t rank) {
    uint32_t v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.u32 %0, [%1];"
                 : "=r"(v)
                 : "r"(remote_address(address, rank))
                 : "memory");
#endif
    return v;
}

// 16 bytes at `address` of the shared memory of block `rank` of the cluster.
__device__ inline float4 cluster_load(uint32_t address, uint32_t rank) {
    float4 v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %4, %5;\n\t"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "r"(address), "r"(rank)
        : "memory");
#endif
    return v;
}

// The same, written; cluster_sync makes it seen.
__device__ inline void cluster_store_16(uint32_t remote, float4 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}

// One number.
__device__ inline void cluster_store_4(uint32_t remote, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(v) : "memory");
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

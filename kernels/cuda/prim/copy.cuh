// Asynchronous copies from global to shared memory. From sm_90 on one lane issues a bulk copy of a
// whole stage and an mbarrier counts the bytes that have arrived; before, every lane issues 16
// bytes at a time (cp.async). Either way data skips the registers, so as much can be in flight as
// shared memory holds: a ring of registers cannot, the hardware has six scoreboards a warp.
#pragma once
#include <stdint.h>
#include <string.h>

namespace qk::cuda {
namespace {

// Groups of copies by lanes: what was issued since the last commit is one. Nothing on simulated
// threads, which copy at once.
__device__ inline void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

__device__ inline void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Waits until at most so many committed groups are still under way.
template <int kGroups>
__device__ inline void copies_wait_but() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}
__device__ inline void copies_wait_but_one() { copies_wait_but<1>(); }

// kBytes that arrive by themselves, `count` of them from memory and zeros behind; nothing unless
// `there`.
template <int kBytes>
__device__ inline void copy_ahead(void *to, const void *from, uint32_t count, bool there) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = uint32_t(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16) {
        asm volatile(
            "{\n\t.reg .pred there;\n\t"
            "setp.ne.b32 there, %3, 0;\n\t"
            "@there cp.async.cg.shared.global [%0], [%1], 16, %2;\n\t}" ::"r"(address),
            "l"(from), "r"(count), "r"(uint32_t(there))
            : "memory");
    } else {
        asm volatile(
            "{\n\t.reg .pred there;\n\t"
            "setp.ne.b32 there, %3, 0;\n\t"
            "@there cp.async.ca.shared.global [%0], [%1], %2;\n\t}" ::"r"(address),
            "l"(from), "n"(kBytes), "r"(uint32_t(there))
            : "memory");
    }
#elif defined(QK_CUDA_SIMULATED)
    if (!there) return;
    memset(to, 0, kBytes);
    memcpy(to, from, count);
#endif
}

__device__ inline uint32_t shared_address(const void *pointer) {
#if defined(QK_CUDA_SIMULATED)
    return simulator::shared_address(pointer);
#else
    return uint32_t(__cvta_generic_to_shared(pointer));
#endif
}

#if __CUDA_ARCH__ >= 900
constexpr bool kBulkCopies = true;
#else
constexpr bool kBulkCopies = false;
#endif

// A phase is complete once so many arrivals, and all bytes they announced, are in.
__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
#elif defined(QK_CUDA_SIMULATED)
    simulator::barrier_init(barrier, arrivals);
#endif
}

__device__ inline void barrier_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::barrier_arrive(barrier);
#endif
}

__device__ inline void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::barrier_expect(barrier, bytes);
#endif
}

__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(barrier),
        "r"(parity)
        : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::barrier_wait(barrier, parity);
#endif
}

// Whether a phase is complete.
__device__ inline bool barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
    return done != 0;
}

// True in one lane of the warp. Unlike a test of the lane's number it tells the compiler so:
// operands of the branch stay in uniform registers.
__device__ inline bool elect_one() {
#if __CUDA_ARCH__ >= 900
    uint32_t elected;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(elected));
    return elected != 0;
#else
    return threadIdx.x % 32 == 0;
#endif
}

// Of a thread that has used shared memory where bulk copies or boxes come behind the next barrier.
__device__ inline void shared_writes_before_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// `bytes`, both addresses: multiples of 16. Issued by one lane.
__device__ inline void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
#endif
}

// The same by all lanes of a warp, 16 bytes each at a time.
__device__ inline void copy_by_lanes(uint32_t to, const uint8_t *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 800
    for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                     : "memory");
    }
#endif
}

// 16 bytes by this lane.
__device__ inline void copy_16(uint32_t to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

// The same, or 16 bytes of zeros.
__device__ inline void copy_16_or_zeros(uint32_t to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
}

// 8 bytes, by one lane.
__device__ inline void copy_8(uint32_t to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
#endif
}

// One 4-byte word, by one lane.
__device__ inline void copy_word(uint32_t to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#endif
}

// Arrives at a barrier, which counts it among its arrivals, once this lane's copies are in.
__device__ inline void copies_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#elif defined(QK_CUDA_SIMULATED)
    simulator::barrier_arrive(barrier);
#endif
}

#if !defined(QK_CUDA_SIMULATED)  // no kernel on simulated threads loads by addresses
// Loads by shared-memory address: 32-bit arithmetic, and a constant base goes into the instruction.
// Adds to a word of shared memory, at once for all threads.
__device__ inline void shared_add(uint32_t address, uint32_t value) {
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline uint32_t shared_load_1(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

__device__ inline uint32_t shared_load_2(uint32_t address) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
    return v;
}

__device__ inline uint32_t shared_load_4(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

__device__ inline uint2 shared_load_8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}

__device__ inline uint4 shared_load_16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l mod 8 of matrix l / 8,
// and gets elements 2 (l mod 4) and the next of row l / 4 of each.
__device__ inline uint4 shared_load_matrices(uint32_t address) {
    uint4 v = {};
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
#endif
    return v;
}

// The same, turned over: it gets elements l / 4 of rows 2 (l mod 4) and 2 (l mod 4) + 1 of each.
__device__ inline void shared_load_matrices_transposed(uint32_t address, uint32_t (&to)[4]) {
#if __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
#endif
}

__device__ inline void shared_store_1(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ inline float4 shared_load_floats(uint32_t address) {
    const uint4 v = shared_load_16(address);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}

// Past the L1, and where it is written: no load behind it waits for what is in front of it.
__device__ inline float4 global_load_floats(const float *from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
    return v;
}

// A multiple of 16.
__device__ inline void global_store_16(void *to, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

__device__ inline void global_store_4(void *to, uint32_t v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

// A multiple of 8.
__device__ inline void global_store_8(void *to, uint2 v) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}

__device__ inline void shared_store_2(uint32_t address, uint16_t v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}

__device__ inline void shared_store_4(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ inline void shared_store_8(uint32_t address, uint2 v) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

__device__ inline void shared_store_16(uint32_t address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
#endif

#if defined(QK_CUDA_SIMULATED)
// The row whose address lane `lane` gives.
__device__ inline const char *row_of_lane(const void *own, int lane) {
    const uint64_t address = uint64_t(uintptr_t(own));
    const uint64_t low = __shfl_sync(~0u, uint32_t(address), lane);
    const uint64_t high = __shfl_sync(~0u, uint32_t(address >> 32), lane);
    return reinterpret_cast<const char *>(uintptr_t(low | high << 32));
}
#endif

// Asked for where it is written, not where it is used. No kernel that runs writes what is there.
__device__ inline float global_load_float(const void *from) {
    float v;
#if defined(QK_CUDA_SIMULATED)
    memcpy(&v, from, 4);
#else
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(from));
#endif
    return v;
}

// 2 bytes, the same, past the L1.
__device__ inline uint32_t global_load_2(const void *from) {
    uint16_t v;
#if defined(QK_CUDA_SIMULATED)
    memcpy(&v, from, 2);
#else
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(from));
#endif
    return v;
}

// shared_load_matrices, on simulated threads too.
__device__ inline void load_matrices(const void *row, uint32_t (&to)[4]) {
#if defined(QK_CUDA_SIMULATED)
    const int lane = int(threadIdx.x) % 32;
    for (int i = 0; i < 4; ++i) {
        memcpy(&to[i], row_of_lane(row, i * 8 + lane / 4) + lane % 4 * 4, 4);
    }
#else
    const uint4 v = shared_load_matrices(shared_address(row));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#endif
}

// Four 8 x 8 matrices of 16-bit elements, turned over: lane l gives the address of row l mod 8 of
// matrix l / 8, and gets elements l / 4 of rows 2 (l mod 4) and 2 (l mod 4) + 1 of each.
__device__ inline void load_matrices_transposed(const void *row, uint32_t (&to)[4]) {
#if defined(QK_CUDA_SIMULATED)
    const int lane = int(threadIdx.x) % 32;
    for (int i = 0; i < 4; ++i) {
        uint16_t pair[2];
        for (int odd = 0; odd < 2; ++odd) {
            const char *const at = row_of_lane(row, i * 8 + lane % 4 * 2 + odd);
            memcpy(&pair[odd], at + lane / 4 * 2, 2);
        }
        to[i] = uint32_t(pair[0]) | uint32_t(pair[1]) << 16;
    }
#else
    shared_load_matrices_transposed(shared_address(row), to);
#endif
}

}  // namespace
}  // namespace qk::cuda

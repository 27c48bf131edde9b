// Groups of asynchronous copies by lanes: what was issued since the last commit is one. Nothing on
// simulated threads, which copy at once.
#pragma once

namespace qk::cuda {
namespace {

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

}  // namespace
}  // namespace qk::cuda

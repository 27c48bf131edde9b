// What kernels on a GPU find in shared memory; simulated threads: cuda/mock/shared_memory.cpp.
#pragma once

namespace harness {

// Fills that of all multiprocessors of the current device with NaNs, the next time with large
// numbers: a kernel that reads more than it wrote is then seen to.
#if defined(QK_WITH_CUDA) && !defined(QK_CUDA_SIMULATED)
void poison_shared_memory();
#else
inline void poison_shared_memory() {}
#endif

}  // namespace harness

// Shared memory whose size is the launch's.
#pragma once
#include <stdint.h>

// `name`: an array of uint4 in a kernel.
#if defined(QK_CUDA_SIMULATED)
#define QK_LAUNCH_SHARED(name) uint4 *const name = simulator::launch_shared
#else
#define QK_LAUNCH_SHARED(name) extern __shared__ uint4 name[]
#endif

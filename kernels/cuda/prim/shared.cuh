// Shared memory whose size is the launch's.
#pragma once
#include <stdint.h>

// `name`: an array of uint4 in a kernel. The second one is aligned as swizzled lines of the copy
// engine must be; simulated, both are.
#if defined(QK_CUDA_SIMULATED)
#define QK_LAUNCH_SHARED(name) uint4 *const name = simulator::launch_shared
#define QK_LAUNCH_SHARED_LINES(name) QK_LAUNCH_SHARED(name)
#else
#define QK_LAUNCH_SHARED(name) extern __shared__ uint4 name[]
#define QK_LAUNCH_SHARED_LINES(name) extern __shared__ __align__(1024) uint4 name[]
#endif

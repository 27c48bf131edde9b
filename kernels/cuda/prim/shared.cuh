// Shared memory whose size is the launch's.
#pragma once
#include <stdint.h>

// `name`: an array of uint4 in a kernel; for simulated threads as large as any card's.
#if defined(QK_CUDA_SIMULATED)
#define QK_LAUNCH_SHARED(name) __shared__ uint4 name[(227 << 10) / 16]
#else
#define QK_LAUNCH_SHARED(name) extern __shared__ uint4 name[]
#endif

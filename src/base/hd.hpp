// Marks what host and device (and the microcontroller) build from the same lines.
//
// Functions in shared headers are `QK_HD static constexpr` (structs: in an unnamed namespace):
// a file compiled for one instruction set must not give the linker a copy that others would use.
#pragma once
#if defined(__CUDACC__)
#define QK_HD __host__ __device__
#else
#define QK_HD
#endif

// Marks what host and device (and the microcontroller) build from the same lines.
//
// Functions in shared headers are `QK_HD static constexpr` (structs: in an unnamed namespace):
// files compiled for one instruction set must not leave the linker a copy that it hands to others.
#pragma once
#if defined(__CUDACC__)
#define QK_HD __host__ __device__
#else
#define QK_HD
#endif

// x as f32, 8 columns at a time.
#pragma once
#include <cuda_fp16.h>

#include "cuda/view.cuh"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

// Elements `at` .. `at` + 7 of x, at addresses that are multiples of 16 bytes.
__device__ inline void load_eight(const LinearView &p, int64_t at, float (&x)[8]) {
    if (p.type == QK_FORMAT_F32) {
        const uint4 *const from = static_cast<const uint4 *>(p.x) + at / 4;
        const uint4 a = __ldg(from), b = __ldg(from + 1);
        const uint32_t word[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(word[i]);
        return;
    }
    const uint4 v = __ldg(static_cast<const uint4 *>(p.x) + at / 8);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t bits = word[i / 2] >> i % 2 * 16 & 0xffffu;
        x[i] = p.type == QK_FORMAT_BF16 ? __uint_as_float(bits << 16)
                                        : __half2float(__ushort_as_half(uint16_t(bits)));
    }
}

}  // namespace
#endif

}  // namespace qk::cuda

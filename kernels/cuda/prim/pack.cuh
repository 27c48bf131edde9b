// f32 values to 4 or 16 bytes of a narrower type, each rounded once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

__device__ inline uint32_t pack_pair(F16, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
__device__ inline uint32_t pack_pair(BF16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

template <class Out>
struct Store {
    static constexpr int kCodes = 8;
    static __device__ uint4 pack(const float (&v)[8]) {
        using T = std::conditional_t<std::is_same_v<Out, __half>, F16, BF16>;
        return {pack_pair(T{}, v[0], v[1]), pack_pair(T{}, v[2], v[3]), pack_pair(T{}, v[4], v[5]),
                pack_pair(T{}, v[6], v[7])};
    }
};

template <>
struct Store<float> {
    static constexpr int kCodes = 4;
    static __device__ uint4 pack(const float (&v)[4]) {
        return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3])};
    }
};
}  // namespace
}  // namespace qk::cuda

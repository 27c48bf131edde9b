// f32 values to 16 bytes of an output type, each rounded once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace qk::cuda {
namespace {

template <class Out>
struct Store;
template <>
struct Store<float> {
    static constexpr int kCodes = 4;
    static __device__ uint4 pack(const float (&v)[4]) {
        return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3])};
    }
};
template <>
struct Store<__half> {
    static constexpr int kCodes = 8;
    static __device__ uint32_t pair(float low, float high) {
        const __half2 p = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&p);
    }
    static __device__ uint4 pack(const float (&v)[8]) {
        return {pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7])};
    }
};
template <>
struct Store<__nv_bfloat16> {
    static constexpr int kCodes = 8;
    static __device__ uint32_t pair(float low, float high) {
        const __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&p);
    }
    static __device__ uint4 pack(const float (&v)[8]) {
        return {pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7])};
    }
};

}  // namespace
}  // namespace qk::cuda

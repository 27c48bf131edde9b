// The 16-bit type and the conversions that the simple kernels use.
#pragma once
#include "base/half.hpp"
#include "cuda/mock/cuda_runtime.h"

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half value) { return value.bits; }
inline __half __float2half_rn(float value) { return {qk::f16_from_f32(value)}; }
inline float __half2float(__half value) { return qk::f32_from_f16(value.bits); }
inline __half2 __floats2half2_rn(float low, float high) {
    return {{qk::f16_from_f32(low)}, {qk::f16_from_f32(high)}};
}

// The other 16-bit type.
#pragma once
#include "base/half.hpp"
#include "cuda/mock/cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
    return {{qk::bf16_from_f32(low)}, {qk::bf16_from_f32(high)}};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline float __bfloat162float(__nv_bfloat16 value) { return qk::f32_from_bf16(value.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {qk::bf16_from_f32(value)}; }
inline __nv_bfloat16 __float2bfloat16_rz(float value) {
    return {uint16_t(__float_as_uint(value) >> 16)};
}

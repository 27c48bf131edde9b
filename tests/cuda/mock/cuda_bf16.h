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

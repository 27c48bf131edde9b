// How the scales of two rows become floats.
#pragma once
#include <cuda_fp16.h>

#include "cuda/prim/copy.cuh"
#include "cuda/tile/scale_kind.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// The scales of rows r and r + 8, stored side by side as f16 or bf16.
template <ScaleKind kind>
__device__ float2 scale_pair_of(uint32_t both) {
    static_assert(kind == ScaleKind::kF16 || kind == ScaleKind::kBF16);
    if constexpr (kind == ScaleKind::kBF16) {
        return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
    }
    return {__half2float(__ushort_as_half(uint16_t(both))),
            __half2float(__ushort_as_half(uint16_t(both >> 16)))};
}

// The same from shared memory, where they may be f32 too.
template <ScaleKind kind>
__device__ float2 scale_pair(uint32_t address) {
    static_assert(kind != ScaleKind::kNested);
    if constexpr (kind == ScaleKind::kF32) {
        const uint2 both = shared_load_8(address);
        return {__uint_as_float(both.x), __uint_as_float(both.y)};
    } else {
        return scale_pair_of<kind>(shared_load_4(address));
    }
}

}  // namespace
}  // namespace qk::cuda

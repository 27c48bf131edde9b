// How the scales of two rows become floats.
#pragma once
#include <cuda_fp16.h>

#include "cuda/tile/scale_kind.hpp"
#include "cuda/prim/copy.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// Both scales of a pair in shared memory, where they are stored as floats of some kind.
template <ScaleKind kind>
__device__ float2 scale_pair(uint32_t address) {
    static_assert(kind != ScaleKind::kNested);
    if constexpr (kind == ScaleKind::kF32) {
        const uint2 both = shared_load_8(address);
        return {__uint_as_float(both.x), __uint_as_float(both.y)};
    } else {
        const uint32_t both = shared_load_4(address);
        if constexpr (kind == ScaleKind::kBF16) {
            return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
        }
        return __half22float2(*reinterpret_cast<const __half2 *>(&both));
    }
}

}  // namespace
}  // namespace qk::cuda

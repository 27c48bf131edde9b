// The scale formats that the packed kernels know, and how the scales of two rows become floats.
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/prim/copy.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

enum class ScaleKind { kF16, kBF16, kF32, kNested };

// run(kind), the kind of a scale format as a constant.
template <class Run>
auto with_scale_kind(qk_format scale, Run run) {
    switch (scale) {
        case QK_FORMAT_F16:
            return run(std::integral_constant<ScaleKind, ScaleKind::kF16>());
        case QK_FORMAT_BF16:
            return run(std::integral_constant<ScaleKind, ScaleKind::kBF16>());
        case QK_FORMAT_F32:
            return run(std::integral_constant<ScaleKind, ScaleKind::kF32>());
        default:
            return run(std::integral_constant<ScaleKind, ScaleKind::kNested>());
    }
}

// Bytes of the scales of rows r and r + 8.
template <ScaleKind kind>
constexpr uint32_t kPairBytes = kind == ScaleKind::kF32      ? 8
                                : kind == ScaleKind::kNested ? 2
                                                             : 4;

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

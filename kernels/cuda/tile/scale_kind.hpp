// The scale formats that the packed kernels know.
#pragma once
#include <stdint.h>

#include <type_traits>

#include "qk.h"

namespace qk::cuda {
namespace {

enum class ScaleKind { kF16, kBF16, kF32, kNested };

// run(kind), the kind of a scale format as a constant.
template <class Run>
auto with_scale_kind(qk_format scale, Run run) {
    switch (scale) {
        case QK_FORMAT_F16: return run(std::integral_constant<ScaleKind, ScaleKind::kF16>());
        case QK_FORMAT_BF16: return run(std::integral_constant<ScaleKind, ScaleKind::kBF16>());
        case QK_FORMAT_F32: return run(std::integral_constant<ScaleKind, ScaleKind::kF32>());
        default: return run(std::integral_constant<ScaleKind, ScaleKind::kNested>());
    }
}

// Bytes of the scales of rows r and r + 8.
template <ScaleKind kind>
constexpr uint32_t kPairBytes = kind == ScaleKind::kF32      ? 8
                                : kind == ScaleKind::kNested ? 2
                                                             : 4;

}  // namespace
}  // namespace qk::cuda

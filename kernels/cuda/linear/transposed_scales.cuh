// Scales and zeros of a stack for the kernel of transposed products of few rows
// (linear/transposed_rows.cu): a warp makes them once, in x's type, and all its lanes take theirs.
#pragma once
#include "cuda/linear/transposed_codes.cuh"
#include "cuda/linear/transposed_rows_plan.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// What lane q takes of a group: scales of rows 2 q and 2 q + 1, of those 8 further down, and what
// is subtracted for their zeros.
template <bool kZeros>
struct alignas(16) Quad {
    uint2 scale;
    Zeros zero;

    __device__ const Zeros &zeros() const { return zero; }
};
template <>
struct alignas(8) Quad<false> {
    uint2 scale;

    __device__ Zeros zeros() const { return {}; }
};

// Scales as they are stored: f16 or bf16; f32; codes of a byte with one second scale, which a table
// turns into x's type; codes with second scales of their own.
enum class StripScales { kHalves, kFloats, kCodes, kNested };

// Bytes of a quad's four scales, and words of 4 bytes of a group of 16 rows.
template <StripScales scales>
constexpr uint32_t kQuadBytes = scales == StripScales::kFloats   ? 16
                                : scales == StripScales::kHalves ? 8
                                                                 : 4;

// A quad's scales from memory, where they are of rows 2 q, 2 q + 8, 2 q + 1, 2 q + 9.
template <class T, StripScales scales>
__device__ uint2 scales_of_quad(const uint8_t *at, qk_format format, const uint16_t *table) {
    constexpr bool kIsF16 = std::is_same_v<T, F16>;
    if constexpr (scales == StripScales::kFloats) {
        const float4 v = *reinterpret_cast<const float4 *>(at);
        return {pack_pair(T{}, v.x, v.z), pack_pair(T{}, v.y, v.w)};
    } else if constexpr (scales == StripScales::kCodes) {
        const uint32_t codes = *reinterpret_cast<const uint32_t *>(at);
        const auto two = [&](uint32_t low, uint32_t high) {
            return byte_permute(table[low & 255], table[high & 255], 0x5410u);
        };
        return {two(codes, codes >> 16), two(codes >> 8, codes >> 24)};
    } else {
        const uint2 v = *reinterpret_cast<const uint2 *>(at);
        if (format == (kIsF16 ? QK_FORMAT_F16 : QK_FORMAT_BF16)) {
            return {byte_permute(v.x, v.y, 0x5410u), byte_permute(v.x, v.y, 0x7632u)};
        }
        constexpr ScaleKind kOther = kIsF16 ? ScaleKind::kBF16 : ScaleKind::kF16;
        const float2 even = scale_pair_of<kOther>(v.x), odd = scale_pair_of<kOther>(v.y);
        return {pack_pair(T{}, even.x, odd.x), pack_pair(T{}, even.y, odd.y)};
    }
}

// 0 past the last row, where the padding may be a NaN. `row`: the quad's first of `rows`.
__device__ inline uint2 scales_there(const uint2 &scale, int32_t row, int32_t rows) {
    const auto pair = [&](uint32_t v, int32_t first) {
        return first + 1 < rows ? v : first < rows ? v & 0xffffu : 0u;
    };
    return {pair(scale.x, row), pair(scale.y, row + 8)};
}

}  // namespace
}  // namespace qk::cuda

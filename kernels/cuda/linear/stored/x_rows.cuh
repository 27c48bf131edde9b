// Rows of x as matrix operands, straight from global memory: for weights as checkpoints store them.
#pragma once
#include <type_traits>

#include "cuda/prim/keep.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// x in f32: three bf16 parts that add up to it exactly, in columns of the product of their own.
template <class T>
struct XOperand {
    using Operand = T;
    static constexpr int kRows = 8;  // of x in the 8 columns of a product
    static constexpr int kBytes = 2;
};
template <>
struct XOperand<F32> {
    using Operand = BF16;
    static constexpr int kRows = 2;
    static constexpr int kBytes = 4;
};

// The part of x that column `piece` of a product multiplies: truncations to bf16, so that every
// difference is exact. An infinity is all in the first.
__device__ inline float part_of(float x, int piece) {
    for (int i = 0; i < piece; ++i) {
        const float top = __uint_as_float(__float_as_uint(x) & 0xffff0000u);
        x = x == top ? 0.0f : __fadd_rn(x, -top);
    }
    return piece < 3 ? x : 0.0f;
}

// Rows of x as columns of products; lanes without a row multiply zeros.
template <class T, int kBatches>
struct XRows {
    const uint8_t *row[kBatches];
    bool inside[kBatches];

    __device__ XRows(const void *x, int64_t m, int64_t k, int64_t first) {
        const int column = int(threadIdx.x) % 32 / 4;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const int64_t at = first + b * XOperand<T>::kRows + column * XOperand<T>::kRows / 8;
            inside[b] = at < m && !(std::is_same_v<T, F32> && column % 4 == 3);
            row[b] = static_cast<const uint8_t *>(x) + min64(at, m - 1) * k * XOperand<T>::kBytes;
            keep(row[b]);
        }
    }

    // Columns at .. at + 7, neighbours paired; zeros unless `there`.
    __device__ uint4 load(int batch, int32_t at, bool there) const {
        uint4 v = {0, 0, 0, 0};
        if (!there || !inside[batch]) return v;
        const uint4 *const from =
            reinterpret_cast<const uint4 *>(row[batch] + int64_t(at) * XOperand<T>::kBytes);
        if constexpr (!std::is_same_v<T, F32>) return __ldg(from);
        const int piece = int(threadIdx.x) % 32 / 4 % 4;
        const uint4 low = __ldg(from), high = __ldg(from + 1);
        v.x = top_halves(low.x, low.y, piece);
        v.y = top_halves(low.z, low.w, piece);
        v.z = top_halves(high.x, high.y, piece);
        v.w = top_halves(high.z, high.w, piece);
        return v;
    }
    static __device__ uint32_t top_halves(uint32_t a, uint32_t b, int piece) {
        const uint32_t low = __float_as_uint(part_of(__uint_as_float(a), piece));
        const uint32_t high = __float_as_uint(part_of(__uint_as_float(b), piece));
        return byte_permute(low, high, 0x7632u);
    }
};

}  // namespace
}  // namespace qk::cuda

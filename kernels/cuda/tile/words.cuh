// Matrix operands for weights that lie as a checkpoint stores them: words of 8 codes become 4 pairs
// of 16-bit numbers, rows of x become the other operand.
#pragma once
#include <type_traits>

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

// Codes as numbers: a nibble under the exponent of a power of two is that power plus the code,
// exactly (tile/codes.cuh says how). Pair i is codes i and i + 4 of the word.
template <class T>
struct WordsU4;

template <>
struct WordsU4<F16> {
    static constexpr bool kPairs = false;

    static __device__ void raw(uint32_t word, uint32_t (&pair)[4]) {
        const uint32_t upper = word >> 8;
        pair[0] = and_or(word, 0x000f000fu, 0x64006400u);
        pair[1] = and_or(word, 0x00f000f0u, 0x54005400u);
        pair[2] = and_or(upper, 0x000f000fu, 0x64006400u);
        pair[3] = and_or(upper, 0x00f000f0u, 0x54005400u);
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) { return subtract_f16(a, b); }
};

template <>
struct WordsU4<BF16> {
    static constexpr bool kPairs = false;

    static __device__ void raw(uint32_t word, uint32_t (&pair)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = and_or(word >> 4 * i, 0x000f000fu, 0x43004300u);
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) { return subtract_bf16(a, b); }
};

__device__ inline uint32_t pack_pair(F16, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
__device__ inline uint32_t pack_pair(BF16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

// Codes as entries of a table: a byte holds two, so 256 pairs, each 32 times, once for each bank of
// shared memory. Pair b of lane l lies at byte 256 (b mod 128) + 128 (b / 128) + 4 l.
constexpr uint32_t kTableWords = 32 * 256;

template <class T>
struct WordsLut4 {
    static constexpr bool kPairs = true;

    // Every thread of the block; a barrier must follow. `high_first`: the even code is the high
    // nibble.
    static __device__ void prepare(const WeightView &w, uint32_t *table, bool high_first) {
        for (uint32_t i = threadIdx.x; i < 256 * 8; i += blockDim.x) {
            const uint32_t byte = i / 8, low = byte & 15, high = byte >> 4;
            const uint32_t pair = pack_pair(T{}, w.entries[high_first ? high : low],
                                            w.entries[high_first ? low : high]);
            reinterpret_cast<uint4 *>(table)[byte % 128 * 16 + byte / 128 * 8 + i % 8] = {
                pair, pair, pair, pair};
        }
    }
    static __device__ void look_up(uint32_t word, const uint32_t *table, uint32_t (&pair)[4]) {
        const uint32_t low = word & 0x7f7f7f7fu;
        const uint32_t high = (word & 0x80808080u) | threadIdx.x % 32 * 0x04040404u;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t at = byte_permute(low, high, 0x8804u + 0x1111u * i);
            pair[i] =
                *reinterpret_cast<const uint32_t *>(reinterpret_cast<const char *>(table) + at);
        }
    }
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

// The compiler would compute it anew for every load.
template <class P>
__device__ void keep(P *&pointer) {
#if defined(__CUDA_ARCH__)
    asm("" : "+l"(pointer));
#else
    (void)pointer;
#endif
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

// Words of 8 codes of 4 bits as 4 registers, a pair of 16-bit numbers each: matrix operands.
//
// u4: a half in [1024, 2048) has its unit at bit 0, so 0x6400 | q is 1024 + q; one in [64, 128) has
// it at bit 4, so 0x5400 | q << 4 is 64 + q (src/base/int_to_half.hpp): one lop3 and one
// subtraction a pair, exact. The zero point is part of the constant that is subtracted. A bfloat16
// has 7 mantissa bits: 0x4300 is 128, and only nibbles at bits 0..3 fit, so bf16 shifts three
// times.
//
// lut4 (NF4, FP4): a byte holds two codes; a table of 256 pairs gives its register. The table
// is copied 32 times, once for each bank of shared memory: lane l reads bank l whatever its byte
// is, so no two lanes ever wait for each other. In 32 KiB pair b of lane l is at byte
// 256 (b mod 128) + 128 (b / 128) + 4 l: two operations a word put the top bit of each byte beside
// the lane; prmt replicates the sign of a byte whose top bit is now clear for the upper half of the
// address.
#pragma once
#include <type_traits>

#include "cuda/prim/mma.cuh"
#include "cuda/prim/pack.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// Pair i of a word: codes i and i + 4, each plus a power of two that is subtracted with the zero.
template <class T>
struct U4 {
    static constexpr bool kLut4 = false;

    static __device__ uint32_t pair(uint32_t word, int i) {
        if constexpr (std::is_same_v<T, F16>) {
            const uint32_t w = i < 2 ? word : word >> 8;
            return i % 2 == 0 ? and_or(w, 0x000f000fu, 0x64006400u)
                              : and_or(w, 0x00f000f0u, 0x54005400u);
        } else {
            return and_or(word >> 4 * i, 0x000f000fu, 0x43004300u);
        }
    }
    static __device__ void pairs(uint32_t word, uint32_t (&to)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = pair(word, i);
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
        if constexpr (std::is_same_v<T, F16>) {
            return subtract_f16(a, b);
        } else {
            return subtract_bf16(a, b);
        }
    }
};

constexpr uint32_t kTableWords = 32 * 256;  // of the table of pairs

template <class T>
struct Lut4 {
    static constexpr bool kLut4 = true;

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

}  // namespace
}  // namespace qk::cuda

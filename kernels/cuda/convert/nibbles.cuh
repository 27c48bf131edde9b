// Words of 8 codes of 4 bits, rearranged.
#pragma once
#include "cuda/prim/mma.cuh"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

constexpr uint32_t kLowNibbles = 0x0f0f0f0fu, kHighNibbles = 0xf0f0f0f0u;

__device__ inline uint32_t swap_nibbles(uint32_t word) {
    return (word >> 4 & kLowNibbles) | (word << 4 & kHighNibbles);
}

// Nibble i of out[j] = nibble j of in[i].
__device__ inline void turn_nibbles(const uint32_t (&in)[8], uint32_t (&out)[8]) {
    uint32_t twos[2][4], fours[2][4];  // [odd j][..]: bytes of two i's, half-words of four
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t a = in[i * 2], b = in[i * 2 + 1];
        twos[0][i] = (a & kLowNibbles) | (b << 4 & kHighNibbles);
        twos[1][i] = (a >> 4 & kLowNibbles) | (b & kHighNibbles);
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        const uint32_t(&w)[4] = twos[odd];
        uint32_t(&f)[4] = fours[odd];
        f[0] = byte_permute(w[0], w[1], 0x5140u);
        f[1] = byte_permute(w[0], w[1], 0x7362u);
        f[2] = byte_permute(w[2], w[3], 0x5140u);
        f[3] = byte_permute(w[2], w[3], 0x7362u);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            out[j * 4 + odd] = byte_permute(f[j], f[j + 2], 0x5410u);
            out[j * 4 + 2 + odd] = byte_permute(f[j], f[j + 2], 0x7632u);
        }
    }
}

// Words of 8 columns of rows r and r + 8 to two words of a tile, and back.
__device__ inline uint2 weave_words(bool pairs, uint32_t r, uint32_t r8) {
    if (pairs) return {byte_permute(r, r8, 0x5140u), byte_permute(r, r8, 0x7362u)};
    const uint32_t even = (r & kLowNibbles) | (r8 << 4 & kHighNibbles);
    const uint32_t odd = (r >> 4 & kLowNibbles) | (r8 & kHighNibbles);
    return {byte_permute(even, odd, 0x5410u), byte_permute(even, odd, 0x7632u)};
}
__device__ inline uint2 unweave_words(bool pairs, uint32_t left, uint32_t right) {
    if (pairs) return {byte_permute(left, right, 0x6420u), byte_permute(left, right, 0x7531u)};
    const uint32_t even = byte_permute(left, right, 0x5410u);
    const uint32_t odd = byte_permute(left, right, 0x7632u);
    return {(even & kLowNibbles) | (odd << 4 & kHighNibbles),
            (even >> 4 & kLowNibbles) | (odd & kHighNibbles)};
}

}  // namespace
#endif

}  // namespace qk::cuda

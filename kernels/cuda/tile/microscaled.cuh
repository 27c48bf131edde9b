// Codes and scales of the microscaled formats by integer instructions, without tables in memory.
#pragma once
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

// E2M1: the upper bytes of its eight magnitudes as 16-bit numbers are two constants, from which
// prmt picks those of four codes; a bf16 has a bit in the lower byte, too.
template <class T>
struct DecodeE2m1 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = 0;  // of a table
    static constexpr bool kF16 = std::is_same_v<T, F16>;
    // Of codes 0 to 3 and 4 to 7.
    static constexpr uint32_t kUpper0 = kF16 ? 0x3e3c3800u : 0x3f3f3f00u;
    static constexpr uint32_t kUpper4 = kF16 ? 0x46444240u : 0x40404040u;
    static constexpr uint32_t kLower0 = kF16 ? 0 : 0xc0800000u, kLower4 = kF16 ? 0 : 0xc0804000u;

    static __device__ void prepare(const WeightView &, uint8_t *, int, int) {}
    static __device__ Zeros zeros(uint32_t) { return {}; }
    static __device__ void decode(uint32_t word, const Zeros &, uint32_t, uint32_t,
                                  uint32_t (&a)[4]) {
        const uint32_t codes = word & 0x77777777u,
                       even = word << 4;  // signs: the top bits of bytes
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t four = codes >> 16 * half;
            const uint32_t signs = byte_permute(even, word, half == 0 ? 0x5140u : 0x7362u);
            const uint32_t upper = and_or(signs, 0x80808080u, byte_permute(kUpper0, kUpper4, four));
            const uint32_t lower = kF16 ? 0 : byte_permute(kLower0, kLower4, four);
            a[2 * half] = byte_permute(lower, upper, 0x5140u);
            a[2 * half + 1] = byte_permute(lower, upper, 0x7362u);
        }
    }
};

// E8M0: its codes are the exponents of a bf16, and of an f16 with 112 more.
template <class T>
struct PowersOfTwo {
    static constexpr bool kF16 = std::is_same_v<T, F16>;

    // Whether `pairs` is right for the four codes of a word: neither NaN nor subnormal.
    static __device__ bool holds(uint32_t word) {
        if constexpr (kF16) {  // 1 to 31, infinity
            const uint32_t of = word - 0x70707070u;
            return ((of | (of - 0x01010101u)) & 0xe0e0e0e0u) == 0;
        }
        const uint32_t zero = (word - 0x01010101u) & ~word, nan = (~word - 0x01010101u) & word;
        return ((zero | nan) & 0x80808080u) == 0;
    }
    // Codes 0 and 1 of a word, 2 and 3.
    static __device__ uint2 pairs(uint32_t word) {
        if constexpr (kF16) {
            const uint32_t upper = (word - 0x70707070u) << 2;
            return {byte_permute(upper, 0, 0x1404u), byte_permute(upper, 0, 0x3424u)};
        }
        const uint32_t upper = word >> 1 & 0x7f7f7f7fu, lower = word << 7 & 0x80808080u;
        return {byte_permute(lower, upper, 0x5140u), byte_permute(lower, upper, 0x7362u)};
    }
};

}  // namespace
}  // namespace qk::cuda

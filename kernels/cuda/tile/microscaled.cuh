// Scales of the microscaled formats by integer instructions.
#pragma once
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

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

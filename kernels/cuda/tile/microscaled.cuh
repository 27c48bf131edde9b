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

// E2M1 where columns may come in another sequence, and with fewer instructions: a code's bits go
// where a 16-bit number has its sign, the lowest bits of its exponent and the highest of its
// fraction. That is its value times 2^-14 (f16) or 2^-126 (bf16), 0.5 as a subnormal number; scales
// that are lifted make up for it. Of a word's four columns a row's first pair has 0 and 2, the
// second 1 and 3.
template <class T>
struct PlacedE2m1 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = 0;  // of a table
    static constexpr bool kF16 = std::is_same_v<T, F16>;

    static __device__ void prepare(const WeightView &, uint8_t *, int, int) {}
    static __device__ Zeros zeros(uint32_t) { return {}; }
    static __device__ void decode(uint32_t word, const Zeros &, uint32_t, uint32_t,
                                  uint32_t (&a)[4]) {
        if constexpr (kF16) {  // codes to bytes, each the upper half of a number
            const uint32_t odd = and_or(word, 0x80808080u, word >> 3 & 0x0e0e0e0eu);
            const uint32_t even = and_or(word << 4, 0x80808080u, word << 1 & 0x0e0e0e0eu);
            a[0] = byte_permute(even, 0, 0x2404u), a[1] = even & 0xff00ff00u;
            a[2] = byte_permute(odd, 0, 0x2404u), a[3] = odd & 0xff00ff00u;
        } else {  // of two codes each, the lower one four places too low
            const uint32_t high = and_or(word, 0x88008800u, word >> 6 & 0x01dc01dcu);
            const uint32_t low = and_or(word << 8, 0x88008800u, word << 2 & 0x01dc01dcu);
            a[0] = low << 4 & 0x81c081c0u, a[1] = high << 4 & 0x81c081c0u;
            a[2] = low & 0x81c081c0u, a[3] = high & 0x81c081c0u;
        }
    }

    // Both halves of a pair times 2^14 or 2^126.
    static __device__ uint32_t lifted(uint32_t pair) {
#if defined(__CUDA_ARCH__)
        using Pair = typename T::Pair;
        const uint32_t lift = kF16 ? 0x74007400u : 0x7e807e80u;
        const Pair product =
            __hmul2(*reinterpret_cast<const Pair *>(&pair), *reinterpret_cast<const Pair *>(&lift));
        return *reinterpret_cast<const uint32_t *>(&product);
#else
        const auto one = [](uint16_t half) -> uint32_t {
            if constexpr (kF16) return f16_from_f32(f32_from_f16(half) * 0x1p14f);
            return bf16_from_f32(f32_from_bf16(half) * 0x1p126f);
        };
        return one(uint16_t(pair >> 16)) << 16 | one(uint16_t(pair));
#endif
    }
    // Whether numbers of a pair are finite and become too large so.
    static __device__ bool overflows(uint32_t pair) {
        const auto one = [](uint32_t half) { return half - kLeast < kInfinity - kLeast; };
        return one(pair & 0x7fffu) || one(pair >> 16 & 0x7fffu);
    }

  private:
    static constexpr uint32_t kLeast = kF16 ? 0x4400 : 0x4080;  // 4
    static constexpr uint32_t kInfinity = kF16 ? 0x7c00 : 0x7f80;
};

// E8M0: its codes are the exponents of a bf16, and of an f16 with 112 more. `kLifted`: for
// PlacedE2m1, numbers are 2^126 or 2^14 times as large.
template <class T, bool kLifted = false>
struct PowersOfTwo {
    static constexpr bool kF16 = std::is_same_v<T, F16>;
    static constexpr uint32_t kEach = 0x01010101u;
    static constexpr uint32_t kZero = (kLifted ? 0x62 : 0x70) * kEach;  // f16: of exponent 0

    // Whether `pairs` is right for the four codes of a word: no NaN, nothing subnormal or lost
    // before it is lifted, nothing too large after. A code below kZero borrows, and fails itself.
    static __device__ bool holds(uint32_t word) {
        if constexpr (kF16 && kLifted) {  // 5 to 30: 2^-24, the least of f16, to 2
            const uint32_t of = word - kZero;
            return (((of + kEach) | (of - 5 * kEach)) & 0xe0e0e0e0u) == 0;
        } else if constexpr (kF16) {  // 1 to 31, infinity
            const uint32_t of = word - kZero;
            return ((of | (of - kEach)) & 0xe0e0e0e0u) == 0;
        } else if constexpr (kLifted) {  // to 128
            return (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) & word & 0x80808080u) == 0;
        }
        const uint32_t zero = (word - kEach) & ~word, nan = (~word - kEach) & word;
        return ((zero | nan) & 0x80808080u) == 0;
    }
    // Codes 0 and 1 of a word, 2 and 3.
    static __device__ uint2 pairs(uint32_t word) {
        if constexpr (kF16) {
            const uint32_t upper = (word - kZero) << 2;
            return {byte_permute(upper, 0, 0x1404u), byte_permute(upper, 0, 0x3424u)};
        }
        const uint32_t exponents = word + (kLifted ? 126 * kEach : 0);
        const uint32_t upper = exponents >> 1 & 0x7f7f7f7fu, lower = exponents << 7 & 0x80808080u;
        return {byte_permute(lower, upper, 0x5140u), byte_permute(lower, upper, 0x7362u)};
    }
};

}  // namespace
}  // namespace qk::cuda

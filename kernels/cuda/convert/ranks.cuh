// Codes of look-up formats without a branch: a polynomial guesses how many thresholds are below a
// value, which is right or one too few, and one comparison with the next threshold decides. The
// thresholds are found, at compile time, by asking the rule itself (format/quantizer.hpp) where its
// codes change, and the guess is checked there.
#pragma once
#include "cuda/prim/mma.cuh"
#include "format/quantizer.hpp"

namespace qk::cuda {
namespace {

constexpr float kMagic = 8388608.0f;  // 2^23: a sum's low bits are the nearest integer
constexpr int kRanks = 16;

QK_HD constexpr bool is_lookup(qk_format format) {
    return format == QK_FORMAT_NF4 || format == QK_FORMAT_FP4_BNB || format == QK_FORMAT_FP4_E2M1;
}

// The number of thresholds below s, of magnitudes for E2M1.
constexpr int rank_by_rule(qk_format format, float s) {
    const uint8_t code = table_code(format, s);
    if (format != QK_FORMAT_FP4_BNB) return code;
    int rank = 0;
    while (fp4_bnb_order(rank) != code) ++rank;
    return rank;
}

constexpr int ranks_of(qk_format format) { return format == QK_FORMAT_FP4_E2M1 ? 8 : kRanks; }

// On the GPU one instruction each, which nothing but the guess may use: its room for errors covers
// both roundings.
QK_HD constexpr float saturated(float x) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) return __saturatef(x);
#endif
    return x > 0 ? x < 1 ? x : 1 : 0;
}

QK_HD constexpr float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) return __fmaf_rn(a, b, c);
#endif
    return a * b + c;
}

// Bits 2 to 5: the rank of s or one less. They are the integer part of a rising polynomial that is
// within half of a step of i + 1/2 at the threshold behind rank i, the bits below are its fraction.
// Three of FP4_BNB's thresholds are next to 0.
template <qk_format format>
QK_HD constexpr float guess(float s) {
    if (format == QK_FORMAT_FP4_E2M1) {
        return fused(fused(-0.51557f, s, 7.75940f), s, kMagic + 1);
    }
    if (format == QK_FORMAT_NF4) {
        return fused(fused(fused(-12.86781f, s, 2.15907f), s, 42.79737f), s, kMagic + 29);
    }
    const float around_zero = fused(9.70078f, saturated(fused(200.0f, s, 0.5f)), 25.14961f);
    return fused(fused(-12.09804f, s * s, 36.19229f), s, around_zero) + kMagic;
}

// The largest value of every rank; none is larger than the last one's.
struct Thresholds {
    float last[kRanks];
};

// Numbers as floats are ordered: 0 for 0, negative for negative ones.
constexpr float ordered_float(int64_t number) {
    return f32_from_bits(number < 0 ? uint32_t(-(number + 1)) | 0x80000000u : uint32_t(number));
}

template <qk_format format>
constexpr Thresholds make_thresholds() {
    Thresholds thresholds = {};
    for (float &last : thresholds.last) last = f32_from_bits(0x7f800000u);
    for (int rank = 0; rank + 1 < ranks_of(format); ++rank) {
        int64_t low = format == QK_FORMAT_FP4_E2M1 ? 0 : -0x7f800000, high = 0x7f800000;
        while (high - low > 1) {  // low's rank is not above `rank`, high's is
            const int64_t middle = (low + high) >> 1;
            (rank_by_rule(format, ordered_float(middle)) <= rank ? low : high) = middle;
        }
        thresholds.last[rank] = ordered_float(low);
    }
    return thresholds;
}

// At each threshold the guess is within a quarter of a step, so products and sums may be fused or
// not; at the largest ones it stays at the last rank. E2M1's go up to 9: a scale is rounded.
template <qk_format format>
constexpr bool guesses_well(const Thresholds &thresholds) {
    const float lowest = format == QK_FORMAT_FP4_E2M1 ? 0 : -1;
    const float highest = format == QK_FORMAT_FP4_E2M1 ? 9 : 1;
    const int last = ranks_of(format) - 1;
    for (int rank = 0; rank < last; ++rank) {
        const float guessed = guess<format>(thresholds.last[rank]) - kMagic - float(4 * rank);
        if (guessed < 1 || guessed > 3) return false;
    }
    const float most = kMagic + float(4 * last);
    for (int i = 0; i < 512; ++i) {
        const float step = (highest - lowest) / 512, s = lowest + step * float(i);
        const float here = guess<format>(s), next = guess<format>(s + step);
        if (next < (here < most ? here : most) || next > most + 3) return false;
    }
    return guess<format>(lowest) >= kMagic;
}

// Four times the rank of the s(i), i = 0..3, at bit 4 i: the guess's nearest integer is four times
// the guess, of which two bits are behind the point.
template <qk_format format, class Numbers>
__device__ uint32_t four_ranks(const Thresholds &thresholds, const Numbers &s) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
        const float value = s(i);
        const uint32_t at = __float_as_uint(guess<format>(value)) & (kRanks - 1) * 4;
        word = word * 16 + at;
        add_if_above<4>(
            word, value,
            *reinterpret_cast<const float *>(reinterpret_cast<const char *>(thresholds.last) + at));
    }
    return word;
}

// Nibbles with FP4_BNB's ranks to its codes, of which those of ranks 15 - r and r differ in the
// sign bit.
__device__ inline uint32_t codes_of_ranks(uint32_t ranks) {
    constexpr uint32_t kLow = fp4_bnb_order(8) | fp4_bnb_order(9) << 8 | fp4_bnb_order(10) << 16 |
                              fp4_bnb_order(11) << 24;
    constexpr uint32_t kHigh = fp4_bnb_order(12) | fp4_bnb_order(13) << 8 |
                               fp4_bnb_order(14) << 16 | fp4_bnb_order(15) << 24;
    const uint32_t negative = ~ranks & 0x88888888u;
    const uint32_t magnitudes = (ranks & 0x77777777u) ^ (negative - (negative >> 3));
    const uint32_t low = byte_permute(kLow, kHigh, magnitudes);
    const uint32_t high = byte_permute(kLow, kHigh, magnitudes >> 16);
    return byte_permute(low | low >> 4, high | high >> 4, 0x6420) ^ negative;
}

}  // namespace
}  // namespace qk::cuda

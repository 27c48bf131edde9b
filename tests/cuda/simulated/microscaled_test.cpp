// Microscaled codes and scales by integer instructions (tile/microscaled.cuh), against their values
// rounded to 16 bits: all of them, in every place of a word.
#include <gtest/gtest.h>

#include <cmath>

#include "base/half.hpp"
#include "cuda/tile/microscaled.cuh"
#include "format/codebook.hpp"

namespace {

using namespace qk::cuda;

uint16_t rounded(F16, float v) { return qk::f16_from_f32(v); }
uint16_t rounded(BF16, float v) { return qk::bf16_from_f32(v); }

template <class T>
void check_codes() {
    for (uint32_t at = 0; at < 4; ++at) {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const uint32_t word = 0x5ac3e718u ^ byte << 8 * at;
            uint32_t a[4];
            DecodeE2m1<T>::decode(word, {}, 0, 0, a);
            for (int i = 0; i < 8; ++i) {
                const float value = qk::fp4_e2m1_value(int(word >> 4 * i));
                ASSERT_EQ(uint16_t(a[i / 2] >> i % 2 * 16), rounded(T{}, value)) << word;
            }
        }
    }
}

float value_of(F16, uint16_t half) { return qk::f32_from_f16(half); }
float value_of(BF16, uint16_t half) { return qk::f32_from_bf16(half); }
template <class T>
constexpr float kLift = std::is_same_v<T, F16> ? 0x1p14f : 0x1p126f;

// Code i of a word is in pair kPlace[i] / 2.
template <class T>
void check_placed() {
    constexpr int kPlace[8] = {0, 4, 2, 6, 1, 5, 3, 7};
    for (uint32_t at = 0; at < 4; ++at) {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const uint32_t word = 0x5ac3e718u ^ byte << 8 * at;
            uint32_t a[4];
            PlacedE2m1<T>::decode(word, {}, 0, 0, a);
            for (int i = 0; i < 8; ++i) {
                const float value = qk::fp4_e2m1_value(int(word >> 4 * i));
                const uint32_t pair = a[kPlace[i] / 2], lifted = PlacedE2m1<T>::lifted(pair);
                const int half = kPlace[i] % 2 * 16;
                ASSERT_EQ(value_of(T{}, uint16_t(pair >> half)), value / kLift<T>) << word;
                ASSERT_EQ(uint16_t(lifted >> half), rounded(T{}, value)) << word;
            }
        }
    }
}

// Numbers that become infinite, of those that are not, in either half of a pair.
template <class T>
void check_overflows() {
    for (uint32_t half = 0; half < 0x10000; ++half) {
        const float value = value_of(T{}, uint16_t(half));
        const float lifted = value_of(T{}, rounded(T{}, value * kLift<T>));
        const bool expected = std::isfinite(value) && std::isinf(lifted);
        ASSERT_EQ(PlacedE2m1<T>::overflows(half), expected) << half;
        ASSERT_EQ(PlacedE2m1<T>::overflows(half << 16 | 0x3c00u), expected) << half;
    }
}

template <class T, bool kLifted = false>
void check_scales(int first, int last) {
    for (int at = 0; at < 4; ++at) {
        for (int code = 0; code < 256; ++code) {
            const uint32_t word =
                0x7f7a807du ^ (0x7f7a807du & 255u << 8 * at) ^ uint32_t(code) << 8 * at;
            ASSERT_EQ((PowersOfTwo<T, kLifted>::holds(word)), first <= code && code <= last)
                << word;
            if (code < first || code > last) continue;
            const uint2 pairs = PowersOfTwo<T, kLifted>::pairs(word);
            for (int i = 0; i < 4; ++i) {
                const float value =
                    qk::e8m0_value(int(word >> 8 * i & 255)) * (kLifted ? kLift<T> : 1);
                const uint32_t pair = i < 2 ? pairs.x : pairs.y;
                ASSERT_EQ(uint16_t(pair >> i % 2 * 16), rounded(T{}, value)) << word;
            }
        }
    }
}

TEST(CudaMicroscaled, CodesAreTheirValues) {
    check_codes<F16>();
    check_codes<BF16>();
}

// 2^-14 to 2^16, which f16 rounds to infinity; 2^-126 to 2^127.
TEST(CudaMicroscaled, ScalesAreTheirValuesOrLeftAlone) {
    check_scales<F16>(113, 143);
    check_scales<BF16>(1, 254);
}

TEST(CudaMicroscaled, PlacedCodesAreTheirValuesAndAPowerOfTwo) {
    check_placed<F16>();
    check_placed<BF16>();
    check_overflows<F16>();
    check_overflows<BF16>();
}

// 2^-24 to 2, and none that is subnormal before it is lifted is lost.
TEST(CudaMicroscaled, LiftedScalesAreTheirValuesOrLeftAlone) {
    check_scales<F16, true>(103, 128);
    check_scales<BF16, true>(0, 128);
}

}  // namespace

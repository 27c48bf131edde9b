// Microscaled codes and scales by integer instructions (tile/microscaled.cuh), against their values
// rounded to 16 bits: all of them, in every place of a word.
#include <gtest/gtest.h>

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

template <class T>
void check_scales(int first, int last) {
    for (int at = 0; at < 4; ++at) {
        for (int code = 0; code < 256; ++code) {
            const uint32_t word =
                0x7f7a857du ^ (0x7f7a857du & 255u << 8 * at) ^ uint32_t(code) << 8 * at;
            ASSERT_EQ(PowersOfTwo<T>::holds(word), first <= code && code <= last) << word;
            if (code < first || code > last) continue;
            const uint2 pairs = PowersOfTwo<T>::pairs(word);
            for (int i = 0; i < 4; ++i) {
                const float value = qk::e8m0_value(int(word >> 8 * i & 255));
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

}  // namespace

// The library's 16-bit numbers and its half-bit trick, over whole ranges.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/fused.hpp"
#include "base/half.hpp"
#include "base/int_to_half.hpp"
#include "reference/reference.hpp"

namespace {

using reference::Format;
using reference::same;

TEST(Numbers, EveryHalfAndBf16) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const float half = qk::f32_from_f16(uint16_t(bits)),
                    brain = qk::f32_from_bf16(uint16_t(bits));
        ASSERT_TRUE(same(Format::f32, qk::f32_bits(half),
                         qk::f32_bits(reference::decode_f16(uint16_t(bits)))))
            << bits;
        ASSERT_TRUE(same(Format::f32, qk::f32_bits(brain),
                         qk::f32_bits(reference::decode_bf16(uint16_t(bits)))))
            << bits;
        ASSERT_TRUE(same(Format::f16, qk::f16_from_f32(half), bits)) << bits;
        ASSERT_TRUE(same(Format::bf16, qk::bf16_from_f32(brain), bits)) << bits;
        ASSERT_EQ(qk::f16_from_f32(half) >> 15, bits >> 15) << "a NaN keeps its sign";
    }
}

bool narrows_right(uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    return same(Format::f16, qk::f16_from_f32(value), reference::encode_f16(value)) &&
           same(Format::bf16, qk::bf16_from_f32(value), reference::encode_bf16(value));
}

// Each upper half with the lower halves that decide a rounding, and a stride through all.
// On processors whose compiler or C library has a right fma: what stands in for a wrong one.
TEST(Numbers, FusedInDouble) {
    const auto expect = [](float a, float b, float c) {
        ASSERT_TRUE(same(Format::f32, qk::f32_bits(qk::fused_in_double(a, b, c)),
                         qk::f32_bits(std::fma(a, b, c))))
            << a << ' ' << b << ' ' << c;
    };
    uint64_t state = 7;
    const auto next = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return uint32_t(state >> 32);
    };
    for (int i = 0; i < 200000; ++i) {
        const float a = std::bit_cast<float>(next()), b = std::bit_cast<float>(next());
        expect(a, b, std::bit_cast<float>(next()));
        // Sums near the product, and ties that something far below breaks.
        const float near = std::ldexp(std::fabs(a * b), int(next() % 64) - 48);
        expect(a, b, next() % 2 != 0 ? near : -near);
        const float one = 1 + std::ldexp(1.0f, -12), tiny = std::ldexp(1.0f, -int(next() % 140));
        expect(one, one, next() % 2 != 0 ? tiny : -tiny);
    }
    for (const float c : {0.0f, -0.0f}) expect(-0.0f, 1.0f, c);
}

TEST(Numbers, NarrowingSample) {
    const uint32_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff,
                              0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
    for (uint32_t upper = 0; upper < 65536; ++upper) {
        for (const uint32_t low : lower) ASSERT_TRUE(narrows_right(upper << 16 | low)) << upper;
    }
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 4099) {
        ASSERT_TRUE(narrows_right(uint32_t(bits))) << bits;
    }
}

uint16_t plain(int value) { return reference::encode_f16(value); }

TEST(IntToHalf, WorkedExample) {
    EXPECT_EQ(qk::half_1024_plus(5), 0x6405);
    EXPECT_EQ(qk::half_from_low_field(5, 0), 0x4500);
    EXPECT_EQ(qk::half_1024_plus(5 << 4), 0x6450);
    EXPECT_EQ(qk::half_from_high_nibble(5 << 4, 0), 0x4500);
}

TEST(IntToHalf, EveryCodeEqualsPlainConversion) {
    for (uint32_t q = 0; q < 1024; ++q) {
        EXPECT_EQ(reference::decode_f16(qk::half_1024_plus(q)), 1024.0f + float(q));
        EXPECT_EQ(qk::half_from_low_field(q, 0), plain(int(q)));
    }
    for (uint32_t q = 0; q < 16; ++q) {
        EXPECT_EQ(qk::half_from_low_field(q, 8), plain(int(q) - 8));
        EXPECT_EQ(qk::half_from_high_nibble(q << 4, 0), plain(int(q)));
        EXPECT_EQ(qk::half_from_high_nibble(q << 4, 8), plain(int(q) - 8));
    }
    for (int code = -128; code < 128; ++code) {  // int8 with its sign bit flipped is code + 128
        const uint32_t field = uint8_t(code) ^ 0x80u;
        EXPECT_EQ(qk::half_from_low_field(field, 128), plain(code));
    }
}

// Every step stays exact in half arithmetic itself: no intermediate needs more than 11 bits.
TEST(IntToHalf, NoStepRounds) {
    for (uint32_t q = 0; q < 16; ++q) {
        const double high = reference::decode_f16(uint16_t(0x6400 | q << 4));
        EXPECT_EQ(high, 1024.0 + 16.0 * q);
        EXPECT_EQ(reference::decode_f16(reference::encode_f16(high / 16 - 64)), high / 16 - 64);
    }
}

}  // namespace

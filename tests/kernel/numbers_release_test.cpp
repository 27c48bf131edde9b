// Narrowing of all 2^32 floats: minutes, so before a release only.
#include <gtest/gtest.h>

#include <bit>

#include "base/half.hpp"
#include "reference/reference.hpp"

namespace {

using reference::Format;

TEST(NumbersRelease, NarrowingOfEveryFloat) {
    for (uint64_t bits = 0; bits < 1ull << 32; ++bits) {
        const float value = std::bit_cast<float>(uint32_t(bits));
        ASSERT_TRUE(
            reference::same(Format::f16, qk::f16_from_f32(value), reference::encode_f16(value)))
            << bits;
        ASSERT_TRUE(
            reference::same(Format::bf16, qk::bf16_from_f32(value), reference::encode_bf16(value)))
            << bits;
    }
}

}  // namespace

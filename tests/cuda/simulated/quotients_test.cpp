// Quotients of 16-bit numbers in the quantizer (convert/chunks.cuh) against divisions: all their
// mantissas, by some of all divisors. (All of these have been tried on a GPU.)
#include <gtest/gtest.h>

#include "cuda/convert/chunks.cuh"

namespace {

using namespace qk::cuda;

template <qk_format from>
void check_quotients(uint32_t mantissa_bits) {
    for (uint32_t fraction = 0; fraction < 1u << 23; fraction += 509) {
        const float value = __uint_as_float(0x3f800000u | fraction);
        const Divisor by = divisor(value);
        int wrong = 0;
        for (uint32_t mantissa = 0; mantissa < 1u << mantissa_bits; ++mantissa) {
            const float x = __uint_as_float(0x3f800000u | mantissa << (23 - mantissa_bits));
            wrong += quotient_of<from>(x, by) != x / value;
        }
        ASSERT_EQ(wrong, 0) << "divisor " << value;
    }
}

TEST(CudaQuotients, RoundAsDivisionsDo) {
    check_quotients<QK_FORMAT_F16>(10);
    check_quotients<QK_FORMAT_BF16>(7);
}

}  // namespace

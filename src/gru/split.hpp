// A 16-bit operand on units that multiply 8 bits by 8 bits (rule 6), exact for every int16_t:
//   sum w*x = 256 * sum w*high(x) + sum w*low(x) + 128 * sum w
#pragma once
#include <stdint.h>

#include "base/hd.hpp"

namespace qk::gru {

QK_HD static constexpr int32_t split_high(int32_t x) { return x >> 8; }
QK_HD static constexpr int32_t split_low(int32_t x) { return (x & 255) - 128; }

QK_HD static constexpr int64_t split_join(int64_t high_sum, int64_t low_sum, int64_t weight_sum) {
    return 256 * high_sum + low_sum + 128 * weight_sum;
}

}  // namespace qk::gru

// Where f32 meets the integers. A power-of-two factor is exact in f32, so only the rounding to a
// code rounds.
#pragma once
#include <stdint.h>

#include "gru/cell.hpp"

namespace qk::gru {

// 2^exponent, for exponents in -126..127.
QK_HD static constexpr float power_of_two(int32_t exponent) {
    return __builtin_bit_cast(float, uint32_t(exponent + 127) << 23);
}

// value * factor to the nearest code, ties to even; NaN becomes the zero point.
QK_HD static inline int32_t real_to_code(float value, float factor, int32_t zero, int32_t min,
                                         int32_t max) {
    const float scaled = value * factor;
    const float low = float(min - zero), high = float(max - zero);
    float inside = scaled < low ? low : scaled > high ? high : scaled;
    if (!(inside == inside)) inside = 0.0f;
    // At this magnitude f32 holds integers alone, so the sum rounds to one; |inside| < 2^18.
    const float to_integers = 12582912.0f;
    return int32_t((inside + to_integers) - to_integers) + zero;
}

QK_HD static inline float code_to_real(int32_t code, float factor, int32_t zero) {
    return float(code - zero) * factor;
}

}  // namespace qk::gru

// From a range of real numbers to a power-of-two scale and a zero point. Host only.
#pragma once
#include <stdint.h>

#include "qk.h"

namespace qk::gru {

struct Exponent {
    int32_t shift, zero;
};

int32_t floor_log2(double value);  // value > 0

inline constexpr int32_t kFinestShift = 126;  // 2^-126 is the least normal f32
inline constexpr int32_t kZeroShift = 23;     // of a range that holds nothing but 0

// 2^b steps over the range widened to hold 0 (rules 1, 19, 20), none finer than 2^-finest.
Exponent exponent_of_range(const qk_gru_quant &quant, double min, double max,
                           int32_t finest = kFinestShift);

// real -> code; ties to even, clamped to the type.
int32_t quantize(double real, const qk_gru_quant &quant, Exponent exponent);

}  // namespace qk::gru

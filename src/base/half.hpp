// IEEE binary16 and bfloat16 as bits, in integer arithmetic: the same result on every machine,
// round to nearest even, subnormals kept. NaN stays NaN (quiet, sign kept; payload not promised).
#pragma once
#include <stdint.h>

#include "base/hd.hpp"

namespace qk {

QK_HD static constexpr uint32_t f32_bits(float value) {
    return __builtin_bit_cast(uint32_t, value);
}
QK_HD static constexpr float f32_from_bits(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

QK_HD static constexpr float f32_from_f16(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = float(mantissa) * 0x1p-24f;  // subnormal: exact in f32
    return f32_from_bits(sign | f32_bits(magnitude));
}

QK_HD static constexpr uint16_t f16_from_f32(float value) {
    const uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // >= 65520 rounds to infinity
    if (magnitude >= 0x38800000u) {                                 // normal half: rebias, round
        const uint32_t odd = magnitude >> 13 & 1u;
        return uint16_t(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
    }
    // Subnormal half: adding 0.5 puts the unit in the last place at 2^-24 and rounds to it.
    const float shifted = f32_from_bits(magnitude) + 0.5f;
    return uint16_t(sign | (f32_bits(shifted) - 0x3f000000u));
}

QK_HD static constexpr float f32_from_bf16(uint16_t bf16) {
    return f32_from_bits(uint32_t(bf16) << 16);
}

QK_HD static constexpr uint16_t bf16_from_f32(float value) {
    const uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16 & 0x8000u) | 0x7fc0u);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace qk

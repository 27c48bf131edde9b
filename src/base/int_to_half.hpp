// Small integers to binary16 without an integer-to-float conversion (Kim et al., "Who Says
// Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production", 2022; used
// by FasterTransformer and its heirs).
//
// A half in [1024, 2048) has its unit in the last place at 1, so its 10 mantissa bits are an
// integer: 0x6400 | q is 1024 + q for q in 0..1023. One OR and one subtraction convert q:
//
//     q = 5:   0x6400 | 5 = 0x6405 = 1029.0;   1029.0 - 1024.0 = 5.0 = 0x4500
//
// A nibble that sits at bits 4..7 needs no shift: 0x6400 | (q << 4) is 1024 + 16 q, and one fma
// with 1/16 and -64 gives (1024 + 16 q) / 16 - 64 = q. Signed codes fold their offset into the
// constant: subtract 1024 + 8 (int4) or 1024 + 128 (int8). Every step is exact, so the result
// equals plain conversion for every code; tests prove it exhaustively.
//
// These functions state the bits and do the arithmetic on f32 (exact for these values), so that
// they can stand as the specification of the device instructions (lop3, sub.f16x2, fma.rn.f16x2).
#pragma once
#include "base/half.hpp"

namespace qk {

constexpr uint16_t kHalf1024 = 0x6400;  // 1024.0; the mantissa below it counts ones

// 1024 + q as half bits; q in 0..1023.
QK_HD static constexpr uint16_t half_1024_plus(uint32_t q) { return uint16_t(kHalf1024 | q); }

// q as half bits from the low field: subtract 1024 + bias. bias 0: unsigned, 8: int4, 128: int8.
QK_HD static constexpr uint16_t half_from_low_field(uint32_t q, int bias) {
    return f16_from_f32(f32_from_f16(half_1024_plus(q)) - float(1024 + bias));
}

// q as half bits from a nibble still at bits 4..7 (`field` = q << 4): fma with 1/16 and -64.
QK_HD static constexpr uint16_t half_from_high_nibble(uint32_t field, int bias) {
    return f16_from_f32(f32_from_f16(half_1024_plus(field)) * 0.0625f - float(64 + bias));
}

}  // namespace qk

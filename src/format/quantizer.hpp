// Nearest codes, one function a format, with the tie rules of docs/formats.md ("Quantizing").
// NF4, FP4 and LUT8 give the bytes of bitsandbytes' CPU backend, which chooses a code by counting
// the thresholds below a value.
#pragma once
#include <stdint.h>
#include <string.h>

#include "base/half.hpp"
#include "format/formats.hpp"

namespace qk {

constexpr float kSmallestAbsmax = 1e-38f;   // bitsandbytes' guard against division by zero
constexpr float kAffineRangeFloor = 1e-5f;  // AWQ's

// Midpoints of neighbouring NF4 values, each one fp32 rounding of (a + b) / 2.
QK_HD static constexpr float nf4_threshold(int index) {
    return (nf4_value(index) + nf4_value(index + 1)) / 2;
}

// Ties go to the lower code; NaN to 15.
QK_HD static constexpr uint8_t nf4_code(float s) {
    int code = 0;
    for (int i = 0; i < 15; ++i) code += !(s <= nf4_threshold(i));
    return uint8_t(code);
}

// FP4 codes in ascending order of value. bitsandbytes sorts code 8 above code 0, so small positive
// values become code 8; both stand for 0.
QK_HD static constexpr uint8_t fp4_bnb_order(int rank) {
    constexpr uint8_t order[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
    return order[rank & 15];
}

QK_HD static constexpr float fp4_bnb_threshold(int index) {
    return (fp4_bnb_value(fp4_bnb_order(index)) + fp4_bnb_value(fp4_bnb_order(index + 1))) / 2;
}

// Ties go to the lower value; NaN to the highest.
QK_HD static constexpr uint8_t fp4_bnb_code(float s) {
    int rank = 0;
    for (int i = 0; i < 15; ++i) rank += !(s <= fp4_bnb_threshold(i));
    return fp4_bnb_order(rank);
}

// Ties to the even mantissa, the sign bit kept; NaN (infinity by an infinite scale) to 7.
QK_HD static constexpr uint8_t fp4_e2m1_code(float s) {
    const uint8_t sign = uint8_t(f32_bits(s) >> 28 & 8);
    const float magnitude = f32_from_bits(f32_bits(s) & 0x7fffffffu);
    const int code = !(magnitude <= 0.25f) + !(magnitude < 0.75f) + !(magnitude <= 1.25f) +
                     !(magnitude < 1.75f) + !(magnitude <= 2.5f) + !(magnitude < 3.5f) +
                     !(magnitude <= 5.0f);
    return uint8_t(sign | code);
}

// Of a quotient that packages look at alone: a sign bit where it is below 0, so none for -0.
QK_HD static constexpr uint8_t fp4_e2m1_code_below_zero(float s) {
    return fp4_e2m1_code(s < 0 ? s : f32_from_bits(f32_bits(s) & 0x7fffffffu));
}

// Nearest, ties to even, 448 for all that is larger; a zero keeps its sign, NaN loses it. Both ways
// are computed, so that loops over it become vectors.
QK_HD static constexpr uint8_t e4m3_code(float value) {
    const uint32_t sign = f32_bits(value) >> 24 & 0x80u, bits = f32_bits(value) & 0x7fffffffu;
    const uint32_t clamped = bits < 0x43e00000u ? bits : 0x43e00000u;  // 448
    const uint32_t normal = ((clamped + 0x7ffffu + (clamped >> 20 & 1u)) >> 20) - (120u << 3);
    const float steps = f32_from_bits(clamped < 0x3c800000u ? clamped : 0) * 512.0f;  // of 2^-9
    const uint32_t subnormal = f32_bits(steps + 8388608.0f) & 15u;
    const uint32_t code = clamped < 0x3c800000u ? subnormal : normal;
    return uint8_t(bits > 0x7f800000u ? 0x7fu : sign | code);
}

// ggml's, of a number times 1 / d: half up for Q4_0, half away from zero for Q8_0. What no int32
// holds is 0, as x86's conversion has it.
QK_HD static constexpr uint8_t q4_0_code(float s) {
    const float sum = s + 8.5f;
    const bool fits = sum > -2147483648.0f && sum < 2147483648.0f;
    return uint8_t(!fits || sum < 0 ? 0 : sum < 15 ? int(sum) : 15);
}
QK_HD static constexpr uint8_t q8_0_code(float s) {
    const float low = s < -127.0f ? -127.0f : s, value = low > 127.0f ? 127.0f : low;
    const bool fits = s > -2147483648.0f && s < 2147483648.0f;
    const int towards_zero = fits ? int(value) : 0;
    const float rest = fits ? value - float(towards_zero) : 0.0f;
    return uint8_t(int8_t(towards_zero + (rest >= 0.5f) - (rest <= -0.5f)));
}

QK_HD static constexpr uint8_t table_code(qk_format format, float s) {
    switch (format) {
        case QK_FORMAT_NF4: return nf4_code(s);
        case QK_FORMAT_FP4_BNB: return fp4_bnb_code(s);
        default: return fp4_e2m1_code(s);
    }
}

// Half to even without a library call: |value| < 2^22 here, or the clamp decides anyway.
QK_HD static constexpr float round_half_even(float value) {
    constexpr float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is a one
    if (!(value > -4194304.0f && value < 4194304.0f)) return value;
    return (value + magic) - magic;
}

// NaN counts as 0.
QK_HD static constexpr int clamp_to_int(float value, int low, int high) {
    if (!(value == value)) value = 0;
    return value <= float(low) ? low : value >= float(high) ? high : int(value);
}

// bitsandbytes' 8-bit blockwise code: the value is first rounded to a grid of 65,536 points in
// [-1, 1], then the thresholds below that point are counted.
constexpr int32_t kLut8Points = 65536;

QK_HD static constexpr int32_t lut8_point(float s) {  // of a value in [-1, 1]
    return int32_t((s + 1.0f) * 0.5f * 65535.0f + 0.5f);
}

QK_HD static constexpr float lut8_point_value(int32_t point) {
    return -1.0f + float(2 * point) / 65535.0f;
}

// Between entries `index` and index + 1 of a table, 0 <= index < 255.
QK_HD static constexpr float lut8_threshold(const float *table, int32_t index) {
    return 0.5f * (table[index] + table[index + 1]);
}

// `table` ascends.
QK_HD static constexpr uint8_t lut8_code(float s, const float *table) {
    if (!(s == s)) return 0;
    const float value = lut8_point_value(lut8_point(s));
    int32_t low = 0, high = 255;  // the number of thresholds below `value`, by bisection
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (lut8_threshold(table, middle) < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return uint8_t(low);
}

}  // namespace qk

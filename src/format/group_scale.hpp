// From the values of a group to its scale, zero and codes (docs/formats.md, "Quantizing"): the
// arithmetic that the CPU and the GPU share, so that both give the same bytes.
#pragma once
#include "format/quantizer.hpp"

namespace qk {
namespace {  // internal linkage: files built for one instruction set may not lend theirs to others

struct QuantizeRule {
    qk_format format;
    FormatKind kind;
    float largest;  // of the format's entries
    qk_format scale_format;
    bool has_zero;
    int64_t group_size;
};

// What the codes of one group are chosen with.
struct GroupScale {
    float scale;       // as computed, before it is rounded to the scale format
    float multiplier;  // s = x * multiplier, or x / divisor where multiplier is 0
    float divisor;
    int zero;
};

QK_HD static constexpr float magnitude_of(float x) {
    return f32_from_bits(f32_bits(x) & 0x7fffffffu);
}

QK_HD static constexpr float with_sign_of(float magnitude, float x) {
    return f32_from_bits((f32_bits(magnitude) & 0x7fffffffu) | (f32_bits(x) & 0x80000000u));
}

struct GroupRange {
    float low = 0, high = 0, absmax = 0;
    bool nan = false;

    QK_HD constexpr void add(float x) {
        const float magnitude = magnitude_of(x);
        if (x < low) low = x;
        if (x > high) high = x;
        if (magnitude > absmax) absmax = magnitude;
        nan |= !(x == x);
    }
};

// Plain scales are rounded to their format before they divide; nested ones are not.
QK_HD static constexpr float rounded_scale(const QuantizeRule &rule, float scale) {
    switch (rule.scale_format) {
        case QK_FORMAT_F16: return f32_from_f16(f16_from_f32(scale));
        case QK_FORMAT_BF16: return f32_from_bf16(bf16_from_f32(scale));
        default: return scale;
    }
}

// NF4 and FP4: bitsandbytes multiplies whole blocks by 1 / absmax and divides the shorter last one.
QK_HD static constexpr GroupScale absmax_scale(const QuantizeRule &rule, const GroupRange &range,
                                               int64_t size) {
    const float absmax = range.nan ? f32_from_bits(0x7fc00000u) : range.absmax;
    const float guarded = absmax < kSmallestAbsmax ? kSmallestAbsmax : absmax;
    if (size == rule.group_size) return {absmax, 1.0f / guarded, 0, 0};
    return {guarded, 0, guarded, 0};
}

QK_HD static constexpr GroupScale affine_scale(const QuantizeRule &rule, const GroupRange &range) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, rule.has_zero ? 0 : 8};
    if (!rule.has_zero) {
        const float scale = rounded_scale(rule, range.absmax / 7.5f);
        return {scale, 0, scale, 8};
    }
    const float width = range.high - range.low;
    const float scale =
        rounded_scale(rule, (width > kAffineRangeFloor ? width : kAffineRangeFloor) / 15.0f);
    const int zero = clamp_to_int(-round_half_even(range.low / scale), 0, 15);
    return {scale, 0, scale, zero};
}

QK_HD static constexpr GroupScale divided_scale(const QuantizeRule &rule, const GroupRange &range) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, 0};
    const float scale = rounded_scale(rule, range.absmax / rule.largest);
    return {scale, 0, scale, 0};
}

QK_HD static constexpr GroupScale scale_of_range(const QuantizeRule &rule, const GroupRange &range,
                                                 int64_t size) {
    switch (rule.kind) {
        case FormatKind::kU4: return affine_scale(rule, range);
        case FormatKind::kS8: return divided_scale(rule, range);
        case FormatKind::kLut8: return {range.absmax, 1.0f / range.absmax, 0, 0};
        default:
            return rule.largest == 1 ? absmax_scale(rule, range, size) : divided_scale(rule, range);
    }
}

QK_HD static constexpr float clamp_to_one(float s) {
    return s < -1.0f ? -1.0f : s > 1.0f ? 1.0f : s;
}

QK_HD static constexpr uint8_t entry_code(const QuantizeRule &rule, float x, float quotient,
                                          const GroupScale &group) {
    if (rule.largest != 1) {
        const bool nan = !(group.scale == group.scale);
        // infinity / infinity is a NaN whose sign depends on the machine: take x's sign
        return nan ? 0 : table_code(rule.format, with_sign_of(quotient, x));
    }
    if (!(group.scale == group.scale)) return table_code(rule.format, group.scale);
    const float s = group.divisor != 0 ? quotient : x * group.multiplier;
    return table_code(rule.format, clamp_to_one(s));
}

// `table`: LUT8's 256 values, ascending.
QK_HD static constexpr uint8_t code_of_value(const QuantizeRule &rule, float x,
                                             const GroupScale &group, const float *table) {
    // A scale of 0 or NaN cannot divide: every value counts as a zero of x's sign.
    const bool divides = group.divisor != 0 && group.divisor == group.divisor;
    const float quotient = divides ? x / group.divisor : with_sign_of(0.0f, x);
    switch (rule.kind) {
        case FormatKind::kU4:
            if (!rule.has_zero) return uint8_t(clamp_to_int(round_half_even(quotient), -8, 7) + 8);
            return uint8_t(clamp_to_int(round_half_even(quotient) + float(group.zero), 0, 15));
        case FormatKind::kS8:
            return uint8_t(int8_t(clamp_to_int(round_half_even(quotient), -127, 127)));
        case FormatKind::kLut8:
            return group.scale == 0 ? 0 : lut8_code(clamp_to_one(x * group.multiplier), table);
        default: return entry_code(rule, x, quotient, group);
    }
}

}  // namespace
}  // namespace qk

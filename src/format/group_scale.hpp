// From the values of a group to its scale, zero and codes (docs/formats.md, "Quantizing"): the
// arithmetic that the CPU and the GPU share, so that both give the same bytes.
#pragma once
#include "format/quantizer.hpp"

namespace qk {
namespace {  // internal linkage: files built for one instruction set may not lend theirs to others

// The rules of docs/formats.md.
enum class Rule : uint8_t {
    kNone,
    kAbsmax,     // NF4, FP4_BNB
    kE2m1,       // with scales that are numbers
    kAffine,     // U4_AFFINE with zeros
    kSymmetric,  // U4_AFFINE without
    kS8,
    kLut8,
    kMx,               // E8M0 scales
    kNvfp4Divides,     // E4M3 scales by a GLOBAL that divides, or by none
    kNvfp4Multiplies,  // by one that multiplies
    kInt8,             // S8 over its whole range
    kE4m3,
    kQ4_0,  // records of a GGUF file
    kQ8_0
};

struct QuantizeRule {
    Rule by;
    qk_format format;
    qk_format scale_format;
    qk_format from_format;  // of the numbers
    int64_t group_size;
};

// What the codes of one group are chosen with.
struct GroupScale {
    float scale;       // as computed, before it is rounded to the scale format
    float multiplier;  // s = x * multiplier, or x / divisor where multiplier is 0
    float divisor;
    int zero;
    uint8_t code = 0;  // of a scale that is stored as one
};

QK_HD static constexpr float magnitude_of(float x) {
    return f32_from_bits(f32_bits(x) & 0x7fffffffu);
}

QK_HD static constexpr float with_sign_of(float magnitude, float x) {
    return f32_from_bits((f32_bits(magnitude) & 0x7fffffffu) | (f32_bits(x) & 0x80000000u));
}

QK_HD static constexpr bool is_finite(float x) {
    return magnitude_of(x) < f32_from_bits(0x7f800000u);
}

struct GroupRange {
    float low = 0, high = 0, absmax = 0;
    bool nan = false;
    float most = 0;  // the first number of that magnitude; only Q4_0 asks

    QK_HD constexpr void add(float x) {
        const float magnitude = magnitude_of(x);
        if (x < low) low = x;
        if (x > high) high = x;
        if (magnitude > absmax) absmax = magnitude;
        nan |= !(x == x);
    }
};

// Coded scales stay as they are.
QK_HD static constexpr float rounded_to(qk_format format, float value) {
    switch (format) {
        case QK_FORMAT_F16: return f32_from_f16(f16_from_f32(value));
        case QK_FORMAT_BF16: return f32_from_bf16(bf16_from_f32(value));
        default: return value;
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

// Before it is rounded.
QK_HD static constexpr float exact_affine_scale(const GroupRange &range) {
    const float width = range.high - range.low;
    return (width > kAffineRangeFloor ? width : kAffineRangeFloor) / 15.0f;
}

// `scale`: that, rounded to the scale format.
QK_HD static constexpr GroupScale affine_scale(const GroupRange &range, float scale) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, 0};
    const int zero = clamp_to_int(-round_half_even(range.low / scale), 0, 15);
    return {scale, 0, scale, zero};
}

QK_HD static constexpr GroupScale divided_scale(const QuantizeRule &rule, const GroupRange &range,
                                                float largest, int zero) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, zero};
    const float scale = rounded_to(rule.scale_format, range.absmax / largest);
    return {scale, 0, scale, zero};
}

// ---- Rules of packages that round where PyTorch rounds: to the format of the numbers.

// From 1 to the next number: what compressed-tensors puts for a scale of 0.
QK_HD static constexpr float epsilon_of(qk_format format) {
    return format == QK_FORMAT_F16 ? 0x1p-10f : format == QK_FORMAT_BF16 ? 0x1p-7f : 0x1p-23f;
}

QK_HD static constexpr GroupScale whole_range_scale(const QuantizeRule &rule,
                                                    const GroupRange &range, float largest) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, 0};
    const float quotient = rounded_to(rule.from_format, range.absmax / largest);
    const float rounded = rounded_to(rule.scale_format, quotient);
    const float scale = rounded == 0 ? epsilon_of(rule.scale_format) : rounded;
    return {scale, 0, scale, 0};
}

// Of the smallest power of two above 4/7 of absmax, less the exponent of the largest entries.
QK_HD static constexpr int mx_exponent(const QuantizeRule &rule, float absmax) {
    const bool half = rule.from_format == QK_FORMAT_F16;
    const uint32_t bits = half ? f16_from_f32(absmax) : f32_bits(absmax);
    const int fraction = half ? 10 : 23, bias = half ? 15 : 127;
    const int offset = rule.format == QK_FORMAT_E4M3 ? 8 : 2;
    const int exponent = int((bits + (1u << (fraction - 2))) >> fraction);
    if (half && exponent == 0)
        return 127;  // the package's scale is 0 as f16, and 1 takes its place
    const int code = exponent - bias + 127 - offset;
    return code < 0 ? 0 : code > 254 - offset ? 254 - offset : code;
}

QK_HD static constexpr GroupScale coded_scale(float scale, int code) {
    return {scale, 0, scale, 0, uint8_t(code)};
}

// The GLOBAL number of a tensor, or a row, whose largest magnitude is `absmax`.
QK_HD static constexpr float global_of(const QuantizeRule &rule, float absmax) {
    if (!is_finite(absmax)) return 1;
    if (rule.by == Rule::kNvfp4Multiplies) {
        const float global = absmax / 2688.0f;  // 448 * 6
        return global == 0 ? 1 : global;
    }
    const float tiny = rule.from_format == QK_FORMAT_F16 ? 0x1p-14f : 0x1p-126f;
    const float inverse = rounded_to(rule.from_format, 1.0f / (absmax > tiny ? absmax : tiny));
    const float global = rounded_to(rule.from_format, 2688.0f * inverse);
    return is_finite(global) ? global : 1;
}

QK_HD static constexpr GroupScale nvfp4_scale(const QuantizeRule &rule, float absmax,
                                              float global) {
    if (rule.by == Rule::kNvfp4Divides) {
        const int code = e4m3_code(global * rounded_to(rule.from_format, absmax / 6.0f));
        const int used = code == 0 ? 0x20 : code;  // 0.125
        return coded_scale(e4m3_value(used) / global, used);
    }
    const float local = absmax / (6.0f * global);
    const int code = e4m3_code(local == 0 ? 1.0f : local);
    const int used = code == 0 ? 1 : code;  // the smallest, 2^-9
    return coded_scale(e4m3_value(used) * global, used);
}

QK_HD static constexpr GroupScale small_scale(const QuantizeRule &rule, const GroupRange &range,
                                              float global) {
    const bool mx = rule.by == Rule::kMx;
    if (range.nan || !is_finite(range.absmax)) {
        return {f32_from_bits(0x7fc00000u), 0, 0, 0, uint8_t(mx ? 0xff : 0x7f)};
    }
    if (!mx) return nvfp4_scale(rule, range.absmax, global);
    const int code = mx_exponent(rule, range.absmax);
    return coded_scale(e8m0_value(code), code);
}

// ggml multiplies by 1 / d before d is rounded to f16.
QK_HD static constexpr GroupScale ggml_scale(const GroupRange &range, float d) {
    if (range.nan) return {f32_from_bits(0x7fc00000u), 0, 0, 0};
    return {d, d == 0 ? 0.0f : 1.0f / d, 0, 0};
}

// `global`: the GLOBAL number of the group, 1 where there is none.
QK_HD static constexpr GroupScale scale_of_range(const QuantizeRule &rule, const GroupRange &range,
                                                 int64_t size, float global) {
    switch (rule.by) {
        case Rule::kAbsmax: return absmax_scale(rule, range, size);
        case Rule::kE2m1: return divided_scale(rule, range, 6, 0);
        case Rule::kAffine:
            return affine_scale(range, rounded_to(rule.scale_format, exact_affine_scale(range)));
        case Rule::kSymmetric: return divided_scale(rule, range, 7.5f, 8);
        case Rule::kS8: return divided_scale(rule, range, 127, 0);
        case Rule::kLut8: return {range.absmax, 1.0f / range.absmax, 0, 0};
        case Rule::kInt8: return whole_range_scale(rule, range, 127.5f);
        case Rule::kE4m3: return whole_range_scale(rule, range, 448);
        case Rule::kQ4_0: return ggml_scale(range, range.most / -8.0f);
        case Rule::kQ8_0: return ggml_scale(range, range.absmax / 127.0f);
        default: return small_scale(rule, range, global);
    }
}

QK_HD static constexpr float clamp_to_one(float s) {
    return s < -1.0f ? -1.0f : s > 1.0f ? 1.0f : s;
}

QK_HD static constexpr uint8_t absmax_code(const QuantizeRule &rule, float x, float quotient,
                                           const GroupScale &group) {
    if (!(group.scale == group.scale)) return table_code(rule.format, group.scale);
    const float s = group.divisor != 0 ? quotient : x * group.multiplier;
    return table_code(rule.format, clamp_to_one(s));
}

// The code of a quotient that has been rounded to the format of the numbers.
QK_HD static constexpr uint8_t code_of_quotient(const QuantizeRule &rule, float s) {
    return rule.format == QK_FORMAT_E4M3 ? e4m3_code(s + 0.0f) : fp4_e2m1_code_below_zero(s);
}

// `table`: LUT8's 256 values, ascending.
QK_HD static constexpr uint8_t code_of_value(const QuantizeRule &rule, float x,
                                             const GroupScale &group, const float *table) {
    // A scale of 0 or NaN cannot divide: every value counts as a zero of x's sign.
    const bool divides = group.divisor != 0 && group.divisor == group.divisor;
    const float quotient = divides ? x / group.divisor : with_sign_of(0.0f, x);
    const bool nan = !(group.scale == group.scale);
    switch (rule.by) {
        case Rule::kAbsmax: return absmax_code(rule, x, quotient, group);
        case Rule::kE2m1:
            // infinity / infinity is a NaN whose sign depends on the machine: take x's sign
            return nan ? 0 : table_code(rule.format, with_sign_of(quotient, x));
        case Rule::kAffine:
            return uint8_t(clamp_to_int(round_half_even(quotient) + float(group.zero), 0, 15));
        case Rule::kSymmetric: return uint8_t(clamp_to_int(round_half_even(quotient), -8, 7) + 8);
        case Rule::kS8: return uint8_t(int8_t(clamp_to_int(round_half_even(quotient), -127, 127)));
        case Rule::kLut8:
            return group.scale == 0 ? 0 : lut8_code(clamp_to_one(x * group.multiplier), table);
        case Rule::kInt8: {
            const float s = rounded_to(rule.from_format, quotient);
            return uint8_t(int8_t(clamp_to_int(round_half_even(s), -128, 127)));
        }
        case Rule::kE4m3:
            return nan ? 0x7f : code_of_quotient(rule, rounded_to(rule.from_format, quotient));
        case Rule::kMx:
            return nan ? 0 : code_of_quotient(rule, rounded_to(rule.from_format, quotient));
        case Rule::kQ4_0: return nan ? 8 : q4_0_code(x * group.multiplier);
        case Rule::kQ8_0: return nan ? 0 : q8_0_code(x * group.multiplier);
        default: return nan ? 0 : code_of_quotient(rule, quotient);
    }
}

}  // namespace
}  // namespace qk

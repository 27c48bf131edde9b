// Which code, scale and zero a number gets: docs/formats.md, "Quantizing".
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference.hpp"

namespace reference {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

struct Members {
    std::vector<float> x;
    bool full;  // group_size codes
};

struct GroupCodes {
    float scale;  // before it is rounded to the scale format or nested
    std::vector<uint8_t> codes;
    uint8_t zero = 0;
};

bool has_nan(const std::vector<float> &x) {
    return std::any_of(x.begin(), x.end(), [](float value) { return std::isnan(value); });
}

float largest_magnitude(const std::vector<float> &x) {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    return largest;
}

float clamp(float value, float low, float high) {  // NaN stays
    return value < low ? low : value > high ? high : value;
}

float number(float value) { return std::isnan(value) ? 0.0f : value; }

float rounded_scale(const Spec &spec, float scale) {
    return spec.nested ? scale : decode(spec.scale_format, encode(spec.scale_format, scale));
}

// The values of a codebook in ascending order with the codes that stand for them. FP4's two zeros
// are both there, as in bitsandbytes' own list: -0's code sits above the plus zero's.
struct Ladder {
    std::vector<uint8_t> codes;
    std::vector<float> steps;  // step j separates codes[j] from codes[j + 1]
};

Ladder ladder(Format format) {
    const std::array<float, 16> book = codebook(format);
    Ladder result;
    for (int code = 0; code < 16; ++code) result.codes.push_back(uint8_t(code));
    std::stable_sort(result.codes.begin(), result.codes.end(),
                     [&](uint8_t a, uint8_t b) { return book[a] < book[b]; });
    for (size_t j = 0; j + 1 < 16; ++j) {
        const double middle =
            (double(book[result.codes[j]]) + double(book[result.codes[j + 1]])) / 2;
        result.steps.push_back(float(middle));
    }
    return result;
}

GroupCodes quantize_bnb4(Format format, const Members &group) {
    static const Ladder nf4 = ladder(Format::nf4), fp4 = ladder(Format::fp4_bnb);
    const Ladder &rungs = format == Format::nf4 ? nf4 : fp4;
    const float least = 1e-38f;
    float absmax = has_nan(group.x) ? kNan : largest_magnitude(group.x);
    if (!group.full && absmax < least) absmax = least;
    const float reciprocal = 1.0f / (absmax < least ? least : absmax);
    GroupCodes result = {absmax, {}, 0};
    for (const float x : group.x) {
        const float s = clamp(group.full ? x * reciprocal : x / absmax, -1.0f, 1.0f);
        size_t rung = 0;
        while (rung < 15 && !(s <= rungs.steps[rung])) ++rung;
        result.codes.push_back(rungs.codes[rung]);
    }
    return result;
}

uint8_t e2m1_code(float s, bool negative) {
    const float magnitude = std::fabs(s);
    int code = 7;
    if (magnitude <= 5.0f) code = 6;
    if (magnitude < 3.5f) code = 5;
    if (magnitude <= 2.5f) code = 4;
    if (magnitude < 1.75f) code = 3;
    if (magnitude <= 1.25f) code = 2;
    if (magnitude < 0.75f) code = 1;
    if (magnitude <= 0.25f) code = 0;
    return uint8_t(code + (negative ? 8 : 0));
}

GroupCodes quantize_e2m1(const Spec &spec, const Members &group) {
    if (has_nan(group.x)) return {kNan, std::vector<uint8_t>(group.x.size(), 0), 0};
    const float raw = largest_magnitude(group.x) / 6.0f;
    const float scale = rounded_scale(spec, raw);
    GroupCodes result = {raw, {}, 0};
    for (const float x : group.x) {
        result.codes.push_back(e2m1_code(scale == 0 ? 0.0f : x / scale, std::signbit(x)));
    }
    return result;
}

GroupCodes quantize_affine(const Spec &spec, const Members &group) {
    if (has_nan(group.x)) return {kNan, std::vector<uint8_t>(group.x.size(), 0), 0};
    float low = 0, high = 0;
    for (const float x : group.x) {
        low = std::min(low, x);
        high = std::max(high, x);
    }
    const float range = high - low;
    const float raw = std::max(range, 1e-5f) / 15.0f;
    const float scale = rounded_scale(spec, raw);
    const float zero = clamp(-std::nearbyint(number(low / scale)), 0.0f, 15.0f);
    GroupCodes result = {raw, {}, uint8_t(zero)};
    for (const float x : group.x) {
        const float steps = std::nearbyint(number(x / scale));
        result.codes.push_back(uint8_t(clamp(steps + zero, 0.0f, 15.0f)));
    }
    return result;
}

// u4 without zeros (7.5 steps each way, zero at 8) and s8 (127 steps).
GroupCodes quantize_signed(const Spec &spec, const Members &group) {
    const bool four = spec.format == Format::u4;
    const uint8_t nothing = four ? 8 : 0;
    if (has_nan(group.x)) return {kNan, std::vector<uint8_t>(group.x.size(), nothing), 0};
    const float raw = largest_magnitude(group.x) / (four ? 7.5f : 127.0f);
    const float scale = rounded_scale(spec, raw);
    GroupCodes result = {raw, {}, 0};
    for (const float x : group.x) {
        const float steps = scale == 0 ? 0.0f : std::nearbyint(number(x / scale));
        const float code = four ? clamp(steps, -8.0f, 7.0f) + 8.0f : clamp(steps, -127.0f, 127.0f);
        result.codes.push_back(uint8_t(int8_t(code)));
    }
    return result;
}

// ---- Rules 8 to 12: what other packages make, with PyTorch's roundings to the type of x.

bool all_finite(const std::vector<float> &x) {
    return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

float round_as(Format format, double value) { return decode(format, encode(format, float(value))); }

// By search: the nearest of all magnitudes, the even code of two.
uint8_t nearest_e4m3(float value) {
    static const std::vector<double> magnitudes = [] {
        std::vector<double> all;
        for (int code = 0; code < 0x7f; ++code) all.push_back(decode_e4m3(uint8_t(code)));
        return all;
    }();
    if (std::isnan(value)) return 0x7f;
    const double x = std::min(std::fabs(double(value)), 448.0);
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), x);
    int code = int(above - magnitudes.begin());
    if (code > 0) {
        const double up = *above - x, down = x - *(above - 1);
        if (down < up || (down == up && code % 2 != 0)) --code;
    }
    return uint8_t(code + (std::signbit(value) ? 0x80 : 0));
}

uint8_t code_of_mx(Format format, float s) {
    return format == Format::e4m3 ? nearest_e4m3(s + 0.0f) : e2m1_code(s, s < 0);
}

struct Stored {
    GroupCodes group;
    uint32_t scale;  // bits of the SCALE plane
};

Stored quantize_mx(const Spec &spec, Format from, const std::vector<float> &x) {
    if (!all_finite(x)) return {{kNan, std::vector<uint8_t>(x.size(), 0), 0}, 255};
    const int fraction = from == Format::f16 ? 10 : from == Format::bf16 ? 7 : 23;
    const int bias = from == Format::f16 ? 15 : 127, offset = spec.format == Format::e4m3 ? 8 : 2;
    const uint32_t bits = encode(from, largest_magnitude(x));
    const int exponent = int((uint64_t(bits) + (1u << (fraction - 2))) >> fraction);
    int e = std::clamp(exponent - bias + 127 - offset, 0, 254 - offset);
    if (from == Format::f16 && exponent == 0) e = 127;
    Stored made = {{decode_e8m0(uint8_t(e)), {}, 0}, uint32_t(e)};
    for (const float value : x) {
        const float s = round_as(from, float(value / made.group.scale));
        made.group.codes.push_back(code_of_mx(spec.format, s));
    }
    return made;
}

bool divides(const Spec &spec) {
    return spec.global == Global::one_divides || spec.global == Global::rows_divide ||
           spec.global == Global::none;
}

float global_number(const Spec &spec, Format from, const std::vector<float> &x) {
    if (!all_finite(x)) return 1;
    const float largest = largest_magnitude(x);
    if (!divides(spec)) {
        const float global = largest / 2688.0f;
        return global == 0 ? 1.0f : global;
    }
    const float tiny = from == Format::f16 ? std::ldexp(1.0f, -14) : std::ldexp(1.0f, -126);
    const float inverse = round_as(from, 1.0f / std::max(largest, tiny));
    const float global = round_as(from, 2688.0f * inverse);
    return std::isfinite(global) ? global : 1.0f;
}

Stored quantize_nvfp4(const Spec &spec, Format from, const std::vector<float> &x, float global) {
    if (!all_finite(x)) return {{kNan, std::vector<uint8_t>(x.size(), 0), 0}, 0x7f};
    const float largest = largest_magnitude(x);
    uint8_t e;
    if (divides(spec)) {
        e = nearest_e4m3(global * round_as(from, largest / 6.0f));
        if (e == 0) e = nearest_e4m3(0.125f);
    } else {
        const float local = largest / (6.0f * global);
        e = nearest_e4m3(local == 0 ? 1.0f : std::max(local, std::ldexp(1.0f, -9)));
    }
    const float local = decode_e4m3(e);
    const float scale = divides(spec) ? local / global : local * global;
    Stored made = {{scale, {}, 0}, e};
    for (const float value : x) {
        const float s = scale == 0 ? 0.0f : value / scale;
        made.group.codes.push_back(e2m1_code(s, s < 0));
    }
    return made;
}

// s8 over its whole range, and codes of e4m3.
GroupCodes quantize_eight(const Spec &spec, Format from, const std::vector<float> &x) {
    const bool e4m3 = spec.format == Format::e4m3;
    if (has_nan(x)) return {kNan, std::vector<uint8_t>(x.size(), e4m3 ? 0x7f : 0), 0};
    const Format kept = spec.nested ? Format::f32 : spec.scale_format;
    float scale = round_as(from, largest_magnitude(x) / (e4m3 ? 448.0f : 127.5f));
    scale = round_as(kept, scale);
    if (scale == 0) {
        scale = std::ldexp(1.0f, kept == Format::f16 ? -10 : kept == Format::bf16 ? -7 : -23);
    }
    GroupCodes made = {scale, {}, 0};
    for (const float value : x) {
        const float s = round_as(from, value / scale);
        made.codes.push_back(
            e4m3 ? nearest_e4m3(s + 0.0f)
                 : uint8_t(int8_t(std::nearbyint(clamp(number(s), -128.0f, 127.0f)))));
    }
    return made;
}

// The GLOBAL plane.
std::vector<float> global_numbers(const Spec &spec, Format from, const std::vector<float> &x) {
    if (spec.global == Global::none) return {};
    const bool rows = spec.global == Global::rows || spec.global == Global::rows_divide;
    const size_t run = rows ? size_t(spec.k) : x.size();
    std::vector<float> numbers;
    for (size_t first = 0; first < x.size(); first += run) {
        const auto begin = x.begin() + int64_t(first);
        numbers.push_back(global_number(spec, from, {begin, begin + int64_t(run)}));
    }
    return numbers;
}

GroupCodes quantize_group(const Spec &spec, Format from, const Members &group,
                          const std::vector<float> &table) {
    if (spec.format == Format::e4m3 || spec.whole_range) {
        return quantize_eight(spec, from, group.x);
    }
    switch (spec.format) {
        case Format::nf4:
        case Format::fp4_bnb: return quantize_bnb4(spec.format, group);
        case Format::fp4_e2m1: return quantize_e2m1(spec, group);
        case Format::lut8: {
            const Block8 block = quantize_block8(group.x.data(), int64_t(group.x.size()), table);
            return {block.absmax, block.codes, 0};
        }
        case Format::u4:
            return spec.zeros ? quantize_affine(spec, group) : quantize_signed(spec, group);
        default: return quantize_signed(spec, group);
    }
}

void nest(const std::vector<float> &scales, const std::vector<float> &code, Weight *weight) {
    weight->scale_code = code;
    weight->scale_bias = cascade_sum(scales) / float(scales.size());
    std::vector<float> rest;
    for (const float scale : scales) rest.push_back(scale - weight->scale_bias);
    const size_t size = size_t(weight->spec.second_group);
    for (size_t first = 0; first < rest.size(); first += size) {
        const size_t count = std::min(size, rest.size() - first);
        const Block8 block = quantize_block8(&rest[first], int64_t(count), code);
        weight->second_scales.push_back(block.absmax);
        weight->scales.insert(weight->scales.end(), block.codes.begin(), block.codes.end());
    }
}

}  // namespace

Block8 quantize_block8(const float *x, int64_t count, const std::vector<float> &table) {
    Block8 block = {0, std::vector<uint8_t>(size_t(count), 0)};
    for (int64_t i = 0; i < count; ++i) {
        if (std::fabs(x[i]) > block.absmax) block.absmax = std::fabs(x[i]);
    }
    if (block.absmax == 0) return block;
    const float reciprocal = 1.0f / block.absmax;
    for (int64_t i = 0; i < count; ++i) {
        const float s = clamp(x[i] * reciprocal, -1.0f, 1.0f);
        if (std::isnan(s)) continue;
        const float half = (s + 1.0f) * 0.5f;
        const int bin = int(half * 65535.0f + 0.5f);
        const float grid = -1.0f + float(2 * bin) / 65535.0f;
        int code = 0;
        for (size_t j = 0; j + 1 < 256; ++j) code += 0.5f * (table[j] + table[j + 1]) < grid;
        block.codes[size_t(i)] = uint8_t(code);
    }
    return block;
}

Quantized quantize(const Spec &spec, const std::vector<float> &x, const std::vector<float> &table,
                   const std::vector<float> &scale_code, Format from) {
    const Groups groups = groups_of(spec);
    Weight weight;
    weight.spec = spec;
    weight.codes.resize(x.size());
    if (spec.format == Format::lut8) weight.table = table;
    weight.global = global_numbers(spec, from, x);
    const bool small = !spec.nested && bytes_of(spec.scale_format) == 1;
    std::vector<float> scales;
    for (size_t first = 0; first < x.size();) {  // a group's codes are neighbours in row order
        size_t last = first;
        while (last < x.size() && groups.of_code[last] == groups.of_code[first]) ++last;
        const Members group = {{x.begin() + int64_t(first), x.begin() + int64_t(last)},
                               int64_t(last - first) == groups.size};
        const size_t row = weight.global.size() > 1 ? first / size_t(spec.k) : 0;
        const float global = weight.global.empty() ? 1.0f : weight.global[row];
        const Stored stored = !small ? Stored{quantize_group(spec, from, group, table), 0}
                              : spec.scale_format == Format::e8m0
                                  ? quantize_mx(spec, from, group.x)
                                  : quantize_nvfp4(spec, from, group.x, global);
        const GroupCodes &made = stored.group;
        if (small) weight.scales.push_back(stored.scale);
        std::copy(made.codes.begin(), made.codes.end(), weight.codes.begin() + int64_t(first));
        scales.push_back(made.scale);
        if (spec.zeros) weight.zeros.push_back(made.zero);
        first = last;
    }
    if (spec.nested) {
        nest(scales, scale_code, &weight);
    } else if (!small) {
        for (const float scale : scales) weight.scales.push_back(encode(spec.scale_format, scale));
    }
    return {weight, uint8_t(spec.format == Format::nf4 ? 7 : 0)};
}

}  // namespace reference

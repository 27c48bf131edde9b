// The values of codes and scales.
#include <algorithm>
#include <bit>
#include <cmath>

#include "reference.hpp"

namespace reference {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// NF4 by the bits of bitsandbytes' sixteen numbers.
constexpr uint32_t kNf4[16] = {
    0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0x00000000,
    0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000,
};
// FP4 in 192nds: the eight magnitudes are {0, 1/16, 8, 12, 4, 6, 2, 3} / 12.
constexpr int kFp4In192nds[8] = {0, 1, 128, 192, 64, 96, 32, 48};

}  // namespace

std::array<float, 16> codebook(Format format) {
    std::array<float, 16> values = {};
    for (int code = 0; code < 16; ++code) {
        const int low = code % 8;
        const float sign = code < 8 ? 1.0f : -1.0f;
        float &value = values[size_t(code)];
        if (format == Format::nf4) value = from_bits(kNf4[code]);
        if (format == Format::fp4_bnb) value = sign * (float(kFp4In192nds[low]) / 192.0f);
        if (format == Format::fp4_e2m1) {  // two bits of exponent, one of fraction, bias 1
            const int exponent = low / 2, fraction = low % 2;
            const double magnitude =
                exponent == 0 ? 0.5 * fraction : std::ldexp(2.0 + fraction, exponent - 2);
            value = sign * float(magnitude);
        }
    }
    constexpr int iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
    constexpr int ggml[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (size_t code = 0; code < 16; ++code) {
        if (format == Format::iq4_nl) values[code] = float(iq4_nl[code]);
        if (format == Format::fp4_ggml) values[code] = float(ggml[code]);
    }
    if (format == Format::fp4_bnb) values[8] = 0.0f;  // plus zero, as the files' own table has it
    return values;
}

std::vector<float> dynamic_table() {
    std::vector<float> table = {0.0f, 1.0f};
    for (int i = 0; i < 7; ++i) {
        const int intervals = 1 << i;
        const float step = (1.0f - 0.1f) / float(intervals);
        std::vector<float> border;
        for (int j = 0; j <= intervals; ++j) {
            const bool lower_half = 2 * j < intervals + 1;
            border.push_back(lower_half ? std::fma(step, float(j), 0.1f)
                                        : std::fma(-step, float(intervals - j), 1.0f));
        }
        for (int j = 0; j < intervals; ++j) {
            const float middle = (border[size_t(j)] + border[size_t(j) + 1]) / 2.0f;
            const float value = float(std::pow(10.0, i - 6)) * middle;
            table.push_back(value);
            table.push_back(-value);
        }
    }
    std::sort(table.begin(), table.end());
    return table;
}

// One rounding: to f32.
static float with_global(const Weight &weight, size_t group, float scale) {
    const Global kind = weight.spec.global;
    if (kind == Global::none) return scale;
    const bool rows = kind == Global::rows || kind == Global::rows_divide;
    const size_t per_row = size_t(groups_of(weight.spec).per_row);
    const float global = weight.global[rows ? group / per_row : 0];
    if (kind == Global::one || kind == Global::rows) return float(double(scale) * double(global));
    return scale / global;
}

// What is stored for a group, or its minimum, is widened, or multiplied by a second scale.
static float stored_value(const Spec &spec, const std::vector<float> &second, size_t group,
                          uint32_t bits) {
    if (spec.scale_format == Format::i8)
        return float(int(int8_t(bits))) * second[group / size_t(spec.second_group)];
    if (spec.format == Format::fp4_ggml) return float(std::ldexp(1.0, int(bits) - 128));
    return decode(spec.scale_format, bits);
}

std::vector<float> minimum_values(const Weight &weight) {
    std::vector<float> values;
    for (size_t group = 0; group < weight.minima.size(); ++group) {
        values.push_back(
            stored_value(weight.spec, weight.second_minima, group, weight.minima[group]));
    }
    return values;
}

std::vector<float> scale_values(const Weight &weight) {
    std::vector<float> values;
    for (size_t group = 0; group < weight.scales.size(); ++group) {
        const uint32_t bits = weight.scales[group];
        if (!weight.spec.nested) {
            const float scale = stored_value(weight.spec, weight.second_scales, group, bits);
            values.push_back(with_global(weight, group, scale));
            continue;
        }
        const float second = weight.second_scales[group / size_t(weight.spec.second_group)];
        const float product = weight.scale_code[bits] * second;
        values.push_back(product + weight.scale_bias);
    }
    return values;
}

std::vector<float> entries(const Weight &weight) {
    const Spec &spec = weight.spec;
    const Groups groups = groups_of(spec);
    const std::array<float, 16> book = codebook(spec.format);
    std::vector<float> values(weight.codes.size());
    for (size_t i = 0; i < values.size(); ++i) {
        const uint8_t code = weight.codes[i];
        switch (spec.format) {
            case Format::u4: {
                if (spec.float_min) {
                    values[i] = float(code);
                    break;
                }
                const int zero = spec.zeros ? weight.zeros[size_t(groups.of_code[i])] : 8;
                values[i] = float(code - zero);
                break;
            }
            case Format::lut4:
            case Format::lut8: values[i] = weight.table[code]; break;
            case Format::e4m3: values[i] = decode_e4m3(code); break;
            case Format::s8: values[i] = float(code < 128 ? code : code - 256); break;
            default: values[i] = book[code]; break;
        }
    }
    return values;
}

std::vector<uint32_t> dequantize(const Weight &weight, Format to) {
    const Groups groups = groups_of(weight.spec);
    const std::vector<float> scales = scale_values(weight), values = entries(weight);
    const std::vector<float> minima = minimum_values(weight);
    std::vector<uint32_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        // Exact in double (24 + 24 bits), so this is the f32 product: one rounding.
        const size_t group = size_t(groups.of_code[i]);
        const float product = float(double(values[i]) * double(scales[group]));
        const float value = minima.empty() ? product : product - minima[group];
        size_t at = i;
        if (weight.spec.ordered) {
            const size_t k = size_t(weight.spec.k), stored = i % k;
            at = i - stored + size_t(weight.order[stored]);
        }
        bits[at] = encode(to, value);
    }
    return bits;
}

}  // namespace reference

// Numbers of 16 bits, by their definition: sign * significand * 2^exponent, all in double.
#include <bit>
#include <cmath>
#include <limits>

#include "reference.hpp"

namespace reference {
namespace {

struct Kind {
    int fraction_bits, exponent_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};
constexpr Kind kHalf = {10, 5}, kBrain = {7, 8};

double decode_kind(Kind kind, uint16_t bits) {
    const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude > kind.infinity()) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude == kind.infinity()) return sign * std::numeric_limits<double>::infinity();
    const int exponent = int(magnitude >> kind.fraction_bits);
    const int fraction = int(magnitude & ((1u << kind.fraction_bits) - 1));
    const int hidden = exponent == 0 ? 0 : 1 << kind.fraction_bits;
    const int power = (exponent == 0 ? 1 : exponent) - kind.bias() - kind.fraction_bits;
    return sign * std::ldexp(double(hidden + fraction), power);
}

uint16_t encode_kind(Kind kind, double value) {
    const uint32_t sign = std::signbit(value) ? 0x8000u : 0;
    if (std::isnan(value)) return uint16_t(sign | kind.infinity() | 1u << (kind.fraction_bits - 1));
    const double magnitude = std::fabs(value);
    if (std::isinf(magnitude)) return uint16_t(sign | kind.infinity());
    const int smallest = 1 - kind.bias();
    const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
    // In units of the last place; a carry moves into the exponent field by itself.
    const double units = std::nearbyint(std::ldexp(magnitude, kind.fraction_bits - exponent));
    const double bits = std::ldexp(double(exponent - smallest), kind.fraction_bits) + units;
    if (bits >= kind.infinity()) return uint16_t(sign | kind.infinity());
    return uint16_t(sign | uint32_t(bits));
}

std::vector<float> all_of(Kind kind) {
    std::vector<float> values(65536);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        values[bits] = float(decode_kind(kind, uint16_t(bits)));
    }
    return values;
}

}  // namespace

float decode_f16(uint16_t bits) {
    static const std::vector<float> values = all_of(kHalf);
    return values[bits];
}
float decode_bf16(uint16_t bits) {
    static const std::vector<float> values = all_of(kBrain);
    return values[bits];
}
uint16_t encode_f16(double value) { return encode_kind(kHalf, value); }
uint16_t encode_bf16(double value) { return encode_kind(kBrain, value); }

float decode_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return float(bits >> 7 != 0 ? -magnitude : magnitude);
}

float decode_e8m0(uint8_t bits) {
    if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
    return float(std::ldexp(1.0, int(bits) - 127));
}

float decode(Format format, uint32_t bits) {
    if (format == Format::e4m3) return decode_e4m3(uint8_t(bits));
    if (format == Format::e8m0) return decode_e8m0(uint8_t(bits));
    if (format == Format::f16) return decode_f16(uint16_t(bits));
    if (format == Format::bf16) return decode_bf16(uint16_t(bits));
    return std::bit_cast<float>(bits);
}

uint32_t encode(Format format, float value) {
    if (format == Format::f16) return encode_f16(value);
    if (format == Format::bf16) return encode_bf16(value);
    return std::bit_cast<uint32_t>(value);
}

int bytes_of(Format format) {
    if (format == Format::e4m3 || format == Format::e8m0 || format == Format::i8) return 1;
    return format == Format::f32 ? 4 : 2;
}

bool same(Format format, uint32_t a, uint32_t b) {
    return a == b || (std::isnan(decode(format, a)) && std::isnan(decode(format, b)));
}

const char *name(Format format) {
    static const char *const names[] = {"f32",  "f16",  "bf16", "u4",     "nf4",
                                        "fp4",  "e2m1", "lut8", "s8",     "lut4",
                                        "e4m3", "e8m0", "i8",   "iq4_nl", "fp4_ggml"};
    return names[int(format)];
}

const char *name(Layout layout) {
    static const char *const names[] = {
        "row",  "row_high", "awq_gemm", "awq_gemv", "gptq",  "gptq_v1", "word", "q4_0", "q4_1",
        "q5_0", "q5_1",     "q8_0",     "iq4_nl",   "mxfp4", "q4_k",    "q5_k", "q6_k", "iq4_xs"};
    return names[int(layout)];
}

}  // namespace reference

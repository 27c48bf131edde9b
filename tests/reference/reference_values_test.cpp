// The reference against docs/formats.md: the numbers here are the numbers printed there.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "reference.hpp"

namespace {

using namespace reference;
using Bits = std::vector<uint32_t>;

const Bits kNf4 = {0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F,
                   0xBDBA7871, 0x00000000, 0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A,
                   0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000};
const Bits kFp4 = {0x00000000, 0x3BAAAAAB, 0x3F2AAAAB, 0x3F800000, 0x3EAAAAAB, 0x3F000000,
                   0x3E2AAAAB, 0x3E800000, 0x00000000, 0xBBAAAAAB, 0xBF2AAAAB, 0xBF800000,
                   0xBEAAAAAB, 0xBF000000, 0xBE2AAAAB, 0xBE800000};

template <class Floats>
Bits bits_of(const Floats &values) {
    Bits bits;
    for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
    return bits;
}

TEST(ReferenceValues, Codebooks) {
    EXPECT_EQ(bits_of(codebook(Format::nf4)), kNf4);
    EXPECT_EQ(bits_of(codebook(Format::fp4_bnb)), kFp4);
    const std::array<float, 16> e2m1 = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                        -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    EXPECT_EQ(bits_of(codebook(Format::fp4_e2m1)), bits_of(e2m1));
}

uint32_t crc32(const void *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; ++i) {
        crc ^= static_cast<const uint8_t *>(data)[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

TEST(ReferenceValues, DynamicTable) {
    const std::vector<float> table = dynamic_table();
    ASSERT_EQ(table.size(), 256u);
    EXPECT_EQ(crc32(table.data(), 1024), 0x1b137aebu);
    EXPECT_EQ(table[127], 0.0f);
    EXPECT_EQ(table[255], 1.0f);
}

struct Example {
    const char *title;
    Format format, scale_format;
    uint32_t scale;
    std::vector<uint8_t> codes;
    Bits f32, f16, bf16;
};

const Example kExamples[] = {
    {"U4_AFFINE",
     Format::u4,
     Format::f16,
     0x211F,
     {0, 1, 7, 8, 9, 13, 14, 15},
     {0xBDA3E000, 0xBD8F6400, 0xBC23E000, 0x00000000, 0x3C23E000, 0x3D4CD800, 0x3D75D000,
      0x3D8F6400},
     {0xAD1F, 0xAC7B, 0xA11F, 0x0000, 0x211F, 0x2A67, 0x2BAE, 0x2C7B},
     {0xBDA4, 0xBD8F, 0xBC24, 0x0000, 0x3C24, 0x3D4D, 0x3D76, 0x3D8F}},
    {"NF4",
     Format::nf4,
     Format::f32,
     0x3DCCCCCD,
     {0, 1, 6, 7, 8, 9, 14, 15},
     {0xBDCCCCCD, 0xBD8E948E, 0xBC152D27, 0x00000000, 0x3C026266, 0x3C83D583, 0x3D940FC3,
      0x3DCCCCCD},
     {0xAE66, 0xAC75, 0xA0A9, 0x0000, 0x2013, 0x241F, 0x2CA0, 0x2E66},
     {0xBDCD, 0xBD8F, 0xBC15, 0x0000, 0x3C02, 0x3C84, 0x3D94, 0x3DCD}},
    {"FP4_BNB",
     Format::fp4_bnb,
     Format::f32,
     0x3DCCCCCD,
     {0, 1, 2, 3, 8, 9, 12, 15},
     {0x00000000, 0x3A088889, 0x3D888889, 0x3DCCCCCD, 0x00000000, 0xBA088889, 0xBD088889,
      0xBCCCCCCD},
     {0x0000, 0x1044, 0x2C44, 0x2E66, 0x0000, 0x9044, 0xA844, 0xA666},
     {0x0000, 0x3A09, 0x3D89, 0x3DCD, 0x0000, 0xBA09, 0xBD09, 0xBCCD}},
    {"FP4_E2M1",
     Format::fp4_e2m1,
     Format::bf16,
     0x3DCD,
     {0, 1, 3, 7, 8, 9, 12, 15},
     {0x00000000, 0x3D4D0000, 0x3E19C000, 0x3F19C000, 0x80000000, 0xBD4D0000, 0xBE4D0000,
      0xBF19C000},
     {0x0000, 0x2A68, 0x30CE, 0x38CE, 0x8000, 0xAA68, 0xB268, 0xB8CE},
     {0x0000, 0x3D4D, 0x3E1A, 0x3F1A, 0x8000, 0xBD4D, 0xBE4D, 0xBF1A}},
    {"LUT8",
     Format::lut8,
     Format::f32,
     0x3DCCCCCD,
     {0, 1, 127, 128, 131, 200, 254, 255},
     {0xBDCB5C29, 0xBDC87AE2, 0x00000000, 0x336C3925, 0x360E9B38, 0x3CBF5C29, 0x3DCB5C29,
      0x3DCCCCCD},
     {0xAE5B, 0xAE44, 0x0000, 0x0001, 0x0024, 0x25FB, 0x2E5B, 0x2E66},
     {0xBDCB, 0xBDC8, 0x0000, 0x336C, 0x360F, 0x3CBF, 0x3DCB, 0x3DCD}},
    {"S8",
     Format::s8,
     Format::f32,
     0x3DCCCCCD,
     {0x00, 0x01, 0xFF, 0x40, 0x7F, 0x81, 0x80, 0x05},
     {0x00000000, 0x3DCCCCCD, 0xBDCCCCCD, 0x40CCCCCD, 0x414B3333, 0xC14B3333, 0xC14CCCCD,
      0x3F000000},
     {0x0000, 0x2E66, 0xAE66, 0x4666, 0x4A5A, 0xCA5A, 0xCA66, 0x3800},
     {0x0000, 0x3DCD, 0xBDCD, 0x40CD, 0x414B, 0xC14B, 0xC14D, 0x3F00}},
};

TEST(ReferenceValues, EightOfEachFormat) {
    for (const Example &example : kExamples) {
        SCOPED_TRACE(example.title);
        Weight weight;
        weight.spec.format = example.format;
        weight.spec.scale_format = example.scale_format;
        weight.spec.k = 8;
        weight.codes = example.codes;
        weight.scales = {example.scale};
        if (example.format == Format::lut8) weight.table = dynamic_table();
        EXPECT_EQ(dequantize(weight, Format::f32), example.f32);
        EXPECT_EQ(dequantize(weight, Format::f16), example.f16);
        EXPECT_EQ(dequantize(weight, Format::bf16), example.bf16);
    }
}

TEST(ReferenceValues, NestedScale) {
    Weight weight;
    weight.spec.nested = true;
    weight.scales = {200};
    weight.scale_code = dynamic_table();
    weight.second_scales = {std::bit_cast<float>(0x3CF5C28Fu)};
    weight.scale_bias = std::bit_cast<float>(0x3DE147AEu);
    EXPECT_EQ(bits_of(scale_values(weight)), Bits{0x3DEFA1CB});
}

TEST(ReferenceValues, GlobalScale) {
    Weight weight;
    weight.spec.format = Format::fp4_e2m1;
    weight.spec.scale_format = Format::e4m3;
    weight.codes = {3};
    weight.scales = {0x2F};
    weight.spec.global = Global::one;
    weight.global = {std::bit_cast<float>(0x3DCCCCCDu)};
    EXPECT_EQ(dequantize(weight, Format::f32), Bits{0x3D900000});
    weight.spec.global = Global::one_divides;
    weight.global = {std::bit_cast<float>(0x3E99999Au)};
    EXPECT_EQ(bits_of(scale_values(weight)), Bits{0x3FC7FFFF});
    EXPECT_EQ(dequantize(weight, Format::f32), Bits{0x4015FFFF});
}

TEST(ReferenceValues, SmallFloats) {
    EXPECT_EQ(decode_e4m3(0x01), std::ldexp(1.0f, -9));
    EXPECT_EQ(decode_e4m3(0x07), std::ldexp(7.0f, -9));
    EXPECT_EQ(decode_e4m3(0x08), std::ldexp(1.0f, -6));
    EXPECT_EQ(decode_e4m3(0x7E), 448.0f);
    EXPECT_EQ(decode_e4m3(0xB8), -1.0f);
    EXPECT_TRUE(std::isnan(decode_e4m3(0x7F)) && std::isnan(decode_e4m3(0xFF)));
    EXPECT_EQ(std::bit_cast<uint32_t>(decode_e4m3(0x80)), 0x80000000u);
    EXPECT_EQ(std::bit_cast<uint32_t>(decode_e8m0(0)), 0x00400000u);
    EXPECT_EQ(decode_e8m0(127), 1.0f);
    EXPECT_EQ(decode_e8m0(254), std::ldexp(1.0f, 127));
    EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(ReferenceValues, HalfEdges) {
    EXPECT_EQ(decode_f16(0x3C00), 1.0f);
    EXPECT_EQ(decode_f16(0x0001), std::ldexp(1.0f, -24));
    EXPECT_EQ(decode_f16(0x7BFF), 65504.0f);
    EXPECT_EQ(encode_f16(65519.99), 0x7BFF);
    EXPECT_EQ(encode_f16(65520.0), 0x7C00);
    EXPECT_EQ(encode_f16(-std::ldexp(1.0, -25)), 0x8000);         // tie to even: zero
    EXPECT_EQ(encode_f16(std::ldexp(1.5, -24)), 0x0002);          // tie to even
    EXPECT_EQ(encode_f16(1 + std::ldexp(1.0, -11)), 0x3C00);      // tie to even
    EXPECT_EQ(encode_f16(1 + 3 * std::ldexp(1.0, -11)), 0x3C02);  // tie to even
    EXPECT_EQ(encode_f16(std::ldexp(1.0, -14) - std::ldexp(1.0, -26)), 0x0400);  // carry
    EXPECT_TRUE(std::isnan(decode_f16(encode_f16(std::nan("")))));
    EXPECT_EQ(encode_bf16(1 + std::ldexp(1.0, -8)), 0x3F80);
    EXPECT_EQ(encode_bf16(double(std::bit_cast<float>(0x7F7FFFFFu))), 0x7F80);
    EXPECT_EQ(decode_bf16(0x0001), std::ldexp(1.0f, -133));
}

// Against a second way of saying nearest: the exact values on both sides.
TEST(ReferenceValues, EncodeIsNearestEven) {
    for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
        const double low = decode_f16(uint16_t(bits)),
                     high = bits == 0x7BFF ? 65536.0 : double(decode_f16(uint16_t(bits + 1)));
        const double middle = (low + high) / 2;
        ASSERT_EQ(encode_f16(low), bits);
        ASSERT_EQ(encode_f16(middle), bits % 2 == 0 ? bits : bits + 1);
        ASSERT_EQ(encode_f16(std::nextafter(middle, 0.0)), bits);
        ASSERT_EQ(encode_f16(std::nextafter(middle, 1e9)), bits + 1);
    }
}

TEST(ReferenceValues, QuantizerThresholds) {
    const Bits nf4 = {0xBF591CD8, 0xBF1C5270, 0xBEEB8480, 0xBEADEA76, 0xBE703CEC,
                      0xBE0D38BC, 0xBD3A7871, 0x3D22FAFF, 0x3DF64862, 0x3E5067E0,
                      0x3E9582D4, 0x3EC753F9, 0x3F006D04, 0x3F248DAF, 0x3F5C89DA};
    const Bits fp4 = {0xBF555556, 0xBF155556, 0xBED55556, 0xBE955556, 0xBE555556,
                      0xBDB00000, 0xBB2AAAAB, 0x00000000, 0x3B2AAAAB, 0x3DB00000,
                      0x3E555556, 0x3E955556, 0x3ED55556, 0x3F155556, 0x3F555556};
    const std::vector<uint8_t> fp4_order = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};
    Spec spec;
    spec.scale_format = Format::f32;
    spec.k = 3;
    for (size_t j = 0; j < 15; ++j) {  // a group led by 1, so s = x: at and just above a threshold
        const float t4 = std::bit_cast<float>(nf4[j]), t = std::bit_cast<float>(fp4[j]);
        spec.format = Format::nf4;
        const auto a = quantize(spec, {1.0f, t4, std::nextafter(t4, 2.0f)}, {}, {}).weight.codes;
        EXPECT_EQ(a, (std::vector<uint8_t>{15, uint8_t(j), uint8_t(j + 1)}));
        spec.format = Format::fp4_bnb;
        const auto b = quantize(spec, {1.0f, t, std::nextafter(t, 2.0f)}, {}, {}).weight.codes;
        EXPECT_EQ(b, (std::vector<uint8_t>{3, fp4_order[j], fp4_order[j + 1]}));
    }
}

struct QuantizeExample {
    Format format, scale_format;
    bool zeros;
    uint32_t scale;
    std::vector<uint8_t> zero, codes;
};

uint8_t s(int value) { return uint8_t(value); }

TEST(ReferenceValues, EightNumbersQuantized) {
    const std::vector<float> x = {-1, -0.5f, 0, 0.25f, 0.5f, 1, 1.5f, 2};
    const QuantizeExample examples[] = {
        {Format::u4, Format::f16, true, 0x3266, {5}, {0, 2, 5, 6, 8, 10, 13, 15}},
        {Format::u4, Format::f16, false, 0x3444, {}, {4, 6, 8, 9, 10, 12, 14, 15}},
        {Format::s8, Format::f32, false, 0x3C810204, {}, {s(-64), s(-32), 0, 16, 32, 64, 95, 127}},
        {Format::fp4_e2m1, Format::bf16, false, 0x3EAB, {}, {13, 11, 0, 1, 3, 5, 6, 7}},
        {Format::nf4, Format::f32, false, 0x40000000, {}, {2, 4, 7, 9, 10, 12, 14, 15}},
        {Format::fp4_bnb, Format::f32, false, 0x40000000, {}, {13, 15, 0, 6, 7, 5, 2, 3}},
        {Format::lut8, Format::f32, false, 0x40000000, {}, {35, 53, 131, 192, 201, 219, 237, 255}},
    };
    for (const QuantizeExample &example : examples) {
        Spec spec;
        spec.format = example.format;
        spec.scale_format = example.scale_format;
        spec.zeros = example.zeros;
        spec.k = 8;
        SCOPED_TRACE(name(spec.format));
        const Weight weight = quantize(spec, x, dynamic_table(), {}).weight;
        EXPECT_EQ(weight.codes, example.codes);
        EXPECT_EQ(weight.scales, Bits{example.scale});
        EXPECT_EQ(weight.zeros, example.zero);
    }
}

TEST(ReferenceValues, Fp4Corners) {
    Spec spec;
    spec.format = Format::fp4_bnb;
    spec.scale_format = Format::f32;
    spec.k = 8;
    const std::vector<float> x = {0.005f, -0.005f, 0.006f, -0.006f, 2, 0, -0.0f, 1};
    const std::vector<uint8_t> codes = {8, 0, 1, 9, 3, 0, 0, 5};
    EXPECT_EQ(quantize(spec, x, {}, {}).weight.codes, codes);
}

TEST(ReferenceValues, BitsandbytesExample) {
    Spec spec;
    spec.format = Format::nf4;
    spec.layout = Layout::row_high;
    spec.scale_format = Format::f32;
    spec.group_size = 64;
    spec.flat = true;
    spec.k = 64;
    std::vector<float> x(64);
    x[0] = 0.5f, x[1] = -1, x[2] = 0.125f, x[3] = 2;
    const Weight weight = quantize(spec, x, {}, {}).weight;
    std::vector<uint8_t> bytes(32, 0x77);
    bytes[0] = 0xA2, bytes[1] = 0x8F;
    EXPECT_EQ(pack(weight).data, bytes);
    EXPECT_EQ(weight.scales, Bits{0x40000000});
    const Bits values = dequantize(weight, Format::f32);
    const float expected[5] = {0.4922246f, -1.0501461f, 0.1591606f, 2, 0};
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(std::bit_cast<float>(values[i]), expected[i]);
}

TEST(ReferenceValues, NestedExample) {
    Spec spec;
    spec.format = Format::nf4;
    spec.nested = true;
    spec.group_size = 16;
    spec.k = 48;
    std::vector<float> x(48);
    x[0] = 1, x[17] = -2, x[40] = 4;
    const Weight weight = quantize(spec, x, {}, dynamic_table()).weight;
    EXPECT_EQ(bits_of(std::vector<float>{weight.scale_bias}), Bits{0x40155555});
    EXPECT_EQ(bits_of(weight.second_scales), Bits{0x3FD55556});
    EXPECT_EQ(weight.scales, (Bits{0x0E, 0x38, 0xFF}));
}

TEST(ReferenceValues, SumOrder) {
    // By hand: 20 numbers are 2 vectors of 8 and 4 scalars; row 0 holds both vectors.
    std::vector<float> x;
    for (int i = 0; i < 20; ++i) x.push_back(i < 8 ? 16777216.0f : 1.0f);
    // Lanes: 2^24 + 1 rounds to 2^24. Sum: 4, then 8 times + 2^24, the 4 kept up to 2^26 ulps.
    float sum = 4;
    for (int lane = 0; lane < 8; ++lane) sum += 16777216.0f;
    EXPECT_EQ(cascade_sum(x), sum);
    std::vector<float> ones(100003, 1.0f);
    EXPECT_EQ(cascade_sum(ones), 100003.0f);
}

}  // namespace

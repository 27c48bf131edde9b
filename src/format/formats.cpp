#include "format/formats.hpp"

#include "format/scale_tables.hpp"

namespace qk {

static constexpr Format kFormats[] = {
    {QK_FORMAT_F32, "f32", FormatKind::kFloat, 32, nullptr, 0},
    {QK_FORMAT_F16, "f16", FormatKind::kFloat, 16, nullptr, 0},
    {QK_FORMAT_BF16, "bf16", FormatKind::kFloat, 16, nullptr, 0},
    {QK_FORMAT_I8, "i8", FormatKind::kInteger, 8, nullptr, 0},
    {QK_FORMAT_I16, "i16", FormatKind::kInteger, 16, nullptr, 0},
    {QK_FORMAT_I32, "i32", FormatKind::kInteger, 32, nullptr, 0},
    {QK_FORMAT_U4_AFFINE, "u4", FormatKind::kU4, 4, nullptr, 0},
    {QK_FORMAT_NF4, "nf4", FormatKind::kLut4, 4, nf4_value, 1},
    {QK_FORMAT_FP4_BNB, "fp4", FormatKind::kLut4, 4, fp4_bnb_value, 1},
    {QK_FORMAT_FP4_E2M1, "e2m1", FormatKind::kLut4, 4, fp4_e2m1_value, 6},
    {QK_FORMAT_LUT4, "lut4", FormatKind::kLut4, 4, nullptr, 0},
    {QK_FORMAT_IQ4_NL, "iq4_nl", FormatKind::kLut4, 4, iq4_nl_value, 0},
    {QK_FORMAT_FP4_GGML, "fp4_ggml", FormatKind::kLut4, 4, fp4_ggml_value, 0},
    {QK_FORMAT_LUT8, "lut8", FormatKind::kLut8, 8, nullptr, 1},
    {QK_FORMAT_S8, "s8", FormatKind::kS8, 8, nullptr, 127},
    {QK_FORMAT_E4M3, "e4m3", FormatKind::kLut8, 8, nullptr, 448},
    {QK_FORMAT_E8M0, "e8m0", FormatKind::kScale, 8, nullptr, 0},
};

constexpr ScaleTables kScaleTables = make_scale_tables();

const Format *find_format(qk_format id) {
    for (const Format &format : kFormats) {
        if (format.id == id) return &format;
    }
    return nullptr;
}

}  // namespace qk

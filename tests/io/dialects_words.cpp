// AutoAWQ, GPTQ and compressed-tensors: what is recognised, what is refused and why.
#include "layers.hpp"

namespace {

using namespace io_test;

TEST_F(Dialects, SquareLayersByConfiguration) {
    takes(awq_gemm(128, 128, 128), kAwq128, QK_DIALECT_AWQ_GEMM, 128, 128, 128);
    takes(gptq(128, 128, 128), kGptq128, QK_DIALECT_GPTQ_V1, 128, 128, 128);
    takes(awq_gemv(128, 128, 1),
          "{\"w_bit\":4,\"q_group_size\":128,\"version\":\"GEMV\",\"zero_point\":true}",
          QK_DIALECT_AWQ_GEMV, 128, 128, 128);
}

TEST_F(Dialects, SquareLayersByScales) {
    takes(awq_gemm(256, 256, 128), "", QK_DIALECT_AWQ_GEMM, 256, 256, 128);
    takes(awq_gemv(256, 256, 1), kAwq128, QK_DIALECT_AWQ_GEMV, 256, 256, 128);
    refuses(gptq(256, 256, 128), "", QK_ERROR_UNSUPPORTED, "without a configuration");
    Parts p = gptq(256, 256, 128);
    p.remove("x.g_idx");
    refuses(p, "", QK_ERROR_UNSUPPORTED, "whose qweight");
    refuses(awq_gemv(256, 256, 1), "", QK_ERROR_UNSUPPORTED, "group_size");
}

TEST_F(Dialects, ConfigurationIsTrustedOverShapes) {
    const std::string gemv =
        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"version\":\"gemv\"}";
    refuses(awq_gemm(128, 128, 128), gemv, QK_ERROR_CORRUPT, "AutoAWQ gemv, group_size 128");
    refuses(gptq(128, 128, 128), kAwq128, QK_ERROR_CORRUPT, "neither");
}

TEST_F(Dialects, AwqRefusals) {
    const auto config = [](const char *more) {
        return std::string("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128") + more + "}";
    };
    const Parts good = awq_gemm(64, 256, 128);
    takes(good, config(""), QK_DIALECT_AWQ_GEMM, 64, 256, 128);
    refuses(good, "{\"quant_method\":\"awq\",\"bits\":8,\"group_size\":128}", QK_ERROR_UNSUPPORTED,
            "8 bits");
    refuses(good, config(",\"version\":\"marlin\""), QK_ERROR_UNSUPPORTED, "\"marlin\"");
    refuses(good, config(",\"version\":\"gemv_fast\""), QK_ERROR_UNSUPPORTED, "\"gemv_fast\"");
    refuses(good, config(",\"version\":\"next\""), QK_ERROR_UNSUPPORTED, "\"next\"");
    refuses(good, "{\"quant_method\":\"awq\",\"group_size\":64}", QK_ERROR_CORRUPT,
            "do not fit together");
    refuses(good, "{\"quant_method\":\"awq\",\"group_size\":-2}", QK_ERROR_CORRUPT,
            "group_size -2");
    refuses(good, "{\"quant_method\":\"awq\",\"group_size\":8}", QK_ERROR_UNSUPPORTED,
            "groups of 8");
    refuses(good, "{\"quant_method\":\"next\"}", QK_ERROR_UNSUPPORTED, "\"next\"");
    Parts p = good;
    p.remove("x.qzeros");
    refuses(p, config(""), QK_ERROR_CORRUPT, "qzeros absent");
    p = good;
    p.remove("x.scales");
    refuses(p, config(""), QK_ERROR_CORRUPT, "scales absent");
    p = good;
    set_words(&p, "x.qzeros", 3, 8);
    refuses(p, config(""), QK_ERROR_CORRUPT, "qzeros I32 [3,8]");
    p = good;
    p["x.scales"].dtype = "I16";
    refuses(p, config(""), QK_ERROR_CORRUPT, "scales I16");
    p = awq_gemv(64, 256, 2);
    refuses(p, config(",\"version\":\"gemv\""), QK_ERROR_CORRUPT, "needs");
    p = good;
    p.set("x.qweight", "I16", {64, 256}, zeros(64 * 256 * 2));
    refuses(p, config(",\"version\":\"gemm\""), QK_ERROR_UNSUPPORTED, "gemv_fast");
}

TEST_F(Dialects, GptqVersions) {
    const Parts good = gptq(64, 256, 128);
    takes(good, gptq_config(""), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    EXPECT_EQ(QK_LAYOUT_GPTQ_V1, layer.desc.layout);
    takes(good, gptq_config(",\"checkpoint_format\":\"gptq\""), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    takes(good, gptq_config(",\"checkpoint_format\":\"gptq_v2\""), QK_DIALECT_GPTQ_V2, 64, 256,
          128);
    EXPECT_EQ(QK_LAYOUT_GPTQ, layer.desc.layout);
    for (const char *format : {"marlin", "gptq_p", "bitblas"}) {
        refuses(good, gptq_config(std::string(",\"checkpoint_format\":\"") + format + "\""),
                QK_ERROR_UNSUPPORTED, format);
    }
    refuses(good, gptq_config(",\"is_marlin_format\":true"), QK_ERROR_UNSUPPORTED, "marlin");
    for (const char *bits : {"2", "3"}) {
        refuses(good,
                std::string("{\"quant_method\":\"gptq\",\"group_size\":128,\"bits\":") + bits + "}",
                QK_ERROR_UNSUPPORTED, "bits; qk loads 4 and 8");
    }
    takes(gptq(64, 256, 256), "{\"bits\":4,\"group_size\":-1,\"desc_act\":false}",
          QK_DIALECT_GPTQ_V1, 64, 256, QK_GROUP_ROW);
    takes(gptq(64, 192, 128), gptq_config(""), QK_DIALECT_GPTQ_V1, 64, 192, 128);  // last one short
}

TEST_F(Dialects, GptqOrder) {
    const Parts good = gptq(64, 256, 128);
    // desc_act with rows in order is as good as without.
    takes(good, gptq_config(",\"desc_act\":true"), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    Parts p = good;
    p.remove("x.g_idx");
    takes(p, gptq_config(",\"desc_act\":false"), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    refuses(p, gptq_config(",\"desc_act\":true"), QK_ERROR_CORRUPT, "no g_idx");
    p = good;
    p["x.g_idx"].bytes[4 * 7] = 1;
    refuses(p, gptq_config(""), QK_ERROR_UNSUPPORTED, "more than 128 columns into group 1");
    p["x.g_idx"].bytes[4 * 200] = 0;  // as many in each as before
    takes(p, gptq_config(",\"desc_act\":false"), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    EXPECT_EQ(QK_TENSOR_ORDERED, layer.desc.flags);
    p["x.g_idx"].bytes[4 * 7] = 2;
    refuses(p, gptq_config(""), QK_ERROR_CORRUPT, "there are 2 groups");
    p["x.g_idx"].bytes.replace(4 * 7, 4, "\xff\xff\xff\xff");
    refuses(p, gptq_config(""), QK_ERROR_CORRUPT, "g_idx[7] is -1");
    p = good;
    p.set("x.g_idx", "I32", {255}, zeros(255 * 4));
    refuses(p, gptq_config(""), QK_ERROR_CORRUPT, "g_idx is I32 [255]");
    p = good;
    set_halves(&p, "x.scales", 3, 64);
    refuses(p, gptq_config(""), QK_ERROR_CORRUPT, "scales F16 [3,64]");
}

TEST_F(Dialects, GptqNotesOfZerosStoredAs15) {
    Parts p = gptq(64, 256, 128);
    open(p, gptq_config(""));
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_STREQ("", message.text);
    p["x.qzeros"].bytes[3] = '\x1f';
    p["x.qzeros"].bytes[5] = '\xf0';
    open(p, gptq_config(""));
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_NE(nullptr, strstr(message.text, "2 zeros are stored as 0xF")) << message.text;
    open(p, gptq_config(",\"checkpoint_format\":\"gptq_v2\""));
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_STREQ("", message.text);
}

TEST_F(Dialects, CompressedTensors) {
    const std::string g32 =
        ct_config("\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32");
    const Parts good = compressed(9, 70, 3);
    takes(good, g32, QK_DIALECT_COMPRESSED_TENSORS, 9, 70, 32);
    EXPECT_EQ(QK_TENSOR_SYMMETRIC, layer.desc.flags);
    EXPECT_EQ(QK_LAYOUT_WORD, layer.desc.layout);
    takes(compressed(9, 70, 1), ct_config("\"symmetric\":true,\"strategy\":\"channel\""),
          QK_DIALECT_COMPRESSED_TENSORS, 9, 70, QK_GROUP_ROW);
    takes(compressed(8, 64, 2), "", QK_DIALECT_COMPRESSED_TENSORS, 8, 64, 32);
    refuses(good, "", QK_ERROR_UNSUPPORTED, "do not divide");
    refuses(good, kAwq128, QK_ERROR_UNSUPPORTED, "quant_method is \"awq\"");
    refuses(good, ct_config("\"symmetric\":true,\"strategy\":\"group\",\"group_size\":64"),
            QK_ERROR_UNSUPPORTED, "no config group");
    refuses(good, ct_config("\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32"),
            QK_ERROR_UNSUPPORTED, "no config group");
    Parts p = good;
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({9, 73}));
    refuses(p, g32, QK_ERROR_CORRUPT, "neither 4 nor 8 bits of weight_shape [9,73]");
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({9, -70}));
    refuses(p, g32, QK_ERROR_CORRUPT, "sizes are at least 1");
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({INT64_MAX, INT64_MAX}));
    refuses(p, g32, QK_ERROR_CORRUPT, "neither 4 nor 8 bits");
    p.remove("x.weight_shape");
    refuses(p, g32, QK_ERROR_CORRUPT, "weight_shape is absent");
    p = good;
    set_halves(&p, "x.weight_scale", 8, 3);
    refuses(p, g32, QK_ERROR_CORRUPT, "weight_scale is F16 [8,3]");
    p = good;
    p.set("x.weight_packed", "U8", {9, 35}, zeros(9 * 35));
    refuses(p, g32, QK_ERROR_UNSUPPORTED, "weight_packed is U8");
}

TEST_F(Dialects, CompressedTensorsOrderAndZeros) {
    const std::string order = ct_config(
        "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32,"
        "\"actorder\":\"group\"");
    Parts p = compressed(9, 70, 3);
    refuses(p, order, QK_ERROR_CORRUPT, "without a weight_g_idx");
    std::vector<int32_t> g_idx;
    for (int i = 0; i < 70; ++i) g_idx.push_back(i / 32);
    p.set("x.weight_g_idx", "I32", {70}, bytes_of(g_idx));
    takes(p, order, QK_DIALECT_COMPRESSED_TENSORS, 9, 70, 32);
    p["x.weight_g_idx"].bytes[4 * 69] = 0;
    refuses(p, order, QK_ERROR_UNSUPPORTED, "more than 32 columns into group 0");
    p["x.weight_g_idx"].bytes.replace(4 * 69, 4, "\xff\xff\xff\xff");  // never filled in
    takes(p, order, QK_DIALECT_COMPRESSED_TENSORS, 9, 70, 32);
    EXPECT_EQ(QK_TENSOR_SYMMETRIC, layer.desc.flags);
    const std::string zeros32 =
        ct_config("\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32");
    p = compressed(9, 70, 3);
    set_words(&p, "x.weight_zero_point", 2, 3);
    takes(p, zeros32, QK_DIALECT_COMPRESSED_TENSORS, 9, 70, 32);
    EXPECT_EQ(0u, layer.desc.flags);
    set_words(&p, "x.weight_zero_point", 3, 3);
    refuses(p, zeros32, QK_ERROR_CORRUPT, "weight_zero_point is I32 [3,3]");
}

// One scale for all: the only plane that qk has to make itself.
TEST_F(Dialects, CompressedTensorsWholeTensorScale) {
    Parts p = compressed(9, 70, 1);
    p.set("x.weight_scale", "F16", {1}, bytes_of<uint16_t>({0x3800}));
    p["x.weight_packed"].bytes = std::string(9 * 9 * 4, '\x99');
    takes(p, ct_config("\"symmetric\":true,\"strategy\":\"tensor\""), QK_DIALECT_COMPRESSED_TENSORS,
          9, 70, QK_GROUP_ROW);
    qk_context *context = nullptr;
    ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
    qk_tensor *weight = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, "x", QK_LOAD_IN_PLACE, &weight,
                                        nullptr, &message))
        << message.text;
    uint16_t scales[9] = {};
    ASSERT_EQ(QK_OK, qk_tensor_download(context, weight, QK_PLANE_SCALE, scales, sizeof scales));
    for (uint16_t scale : scales) EXPECT_EQ(0x3800, scale);
    qk_tensor_destroy(weight);
    qk_context_destroy(context);
}

}  // namespace

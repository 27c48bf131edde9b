// Layers of 8 bits: which are taken, what their planes become, and what is refused.
#include <cmath>

#include "layers.hpp"

namespace {

using namespace io_test;

std::string floats(const std::vector<float> &values) { return bytes_of(values); }

Parts llm_int8(int64_t n, int64_t k) {
    Parts p;
    p.set("x.weight", "I8", {n, k}, zeros(n * k));
    p.set("x.SCB", "F32", {n}, bytes_of(std::vector<float>(static_cast<size_t>(n), 2.5f)));
    p.set("x.weight_format", "U8", {}, std::string(1, '\0'));
    return p;
}

Parts scaled(int64_t n, int64_t k, const std::vector<int64_t> &shape, const std::string &scales) {
    Parts p;
    p.set("x.weight", "I8", {n, k}, zeros(n * k));
    p.set("x.weight_scale", "F16", shape, scales);
    return p;
}

Parts gptq8(int64_t n, int64_t k, int64_t group, char zero) {
    Parts p;
    const int64_t groups = k / group;
    set_words(&p, "x.qweight", k / 4, n);
    p.set("x.qzeros", "I32", {groups, n / 4}, std::string(static_cast<size_t>(groups * n), zero));
    set_halves(&p, "x.scales", groups, n);
    return p;
}

const std::string kInt8 =
    R"({"quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",)"
    R"("config_groups":{"g":{"weights":{"num_bits":8,"type":"int","strategy":")";

class EightBits : public Dialects {
  protected:
    void SetUp() override { ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context)); }
    void TearDown() override {
        Dialects::TearDown();
        qk_context_destroy(context);
    }
    // A plane of the layer, loaded either way.
    std::string plane(qk_plane which, uint32_t flags) {
        qk_tensor *weight = nullptr;
        EXPECT_EQ(QK_OK,
                  qk_checkpoint_load(checkpoint, context, "x", flags, &weight, nullptr, &message))
            << message.text;
        size_t size = 0;
        EXPECT_EQ(QK_OK, qk_tensor_plane_bytes(&layer.desc, which, &size));
        std::string found(size, '\xa5');
        EXPECT_EQ(QK_OK, qk_tensor_download(context, weight, which, &found[0], size));
        qk_tensor_destroy(weight);
        return found;
    }
    void has(qk_plane which, const std::string &expected) {
        EXPECT_EQ(expected, plane(which, 0));
        EXPECT_EQ(expected, plane(which, QK_LOAD_IN_PLACE));
    }
    qk_context *context = nullptr;
};

TEST_F(EightBits, LlmInt8) {
    Parts p = llm_int8(3, 5);
    p.set("x.SCB", "F32", {3}, floats({127.0f, 1.0f, 13.0f}));
    takes(p, "", QK_DIALECT_BITSANDBYTES, 3, 5, QK_GROUP_ROW);
    EXPECT_STREQ("LLM.int8", qk_checkpoint_layer_method(checkpoint, "x"));
    EXPECT_EQ(QK_FORMAT_S8, layer.desc.format);
    EXPECT_EQ(QK_FORMAT_F16, layer.dense_format);
    has(QK_PLANE_SCALE, bytes_of<uint32_t>({0x3f800000, 0x3c010204, 0x3dd1a346}));
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    takes(llm_int8(3, 5), R"({"torch_dtype":"bfloat16"})", QK_DIALECT_BITSANDBYTES, 3, 5,
          QK_GROUP_ROW);
    EXPECT_EQ(QK_FORMAT_BF16, layer.dense_format);
    p.remove("x.weight_format");  // of the first versions
    takes(p, "", QK_DIALECT_BITSANDBYTES, 3, 5, QK_GROUP_ROW);
    p.set("x.weight_format", "U8", {}, "\2");
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight_format 2");
    p.set("x.weight_format", "I32", {}, zeros(4));
    refuses(p, "", QK_ERROR_CORRUPT, "weight_format is I32");
    p = llm_int8(3, 5);
    p.set("x.SCB", "F32", {4}, zeros(16));
    refuses(p, "", QK_ERROR_CORRUPT, "SCB is F32 [4]");
    p.set("x.SCB", "F16", {3}, zeros(6));
    refuses(p, "", QK_ERROR_CORRUPT, "SCB is F16 [3]");
    p.set("x.SCB", "F32", {3}, floats({1, NAN, 1}));
    takes(p, "", QK_DIALECT_BITSANDBYTES, 3, 5, QK_GROUP_ROW);
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_NE(nullptr, strstr(message.text, "scale 1 is not a finite")) << message.text;
}

TEST_F(EightBits, ScalesByTheirShape) {
    const auto ct = QK_DIALECT_COMPRESSED_TENSORS;
    takes(scaled(3, 40, {3, 1}, half_ones(3)), "", ct, 3, 40, QK_GROUP_ROW);
    takes(scaled(3, 40, {3}, half_ones(3)), "", ct, 3, 40, QK_GROUP_ROW);
    takes(scaled(3, 40, {3, 2}, half_ones(6)), "", ct, 3, 40, 20);
    refuses(scaled(3, 40, {3, 3}, half_ones(9)), "", QK_ERROR_UNSUPPORTED,
            "which of weight I8 [3,40] share one");
    refuses(scaled(3, 40, {2, 1}, half_ones(2)), "", QK_ERROR_UNSUPPORTED,
            "which of weight I8 [3,40] share one");
    refuses(scaled(3, 40, {3, 1, 1}, half_ones(3)), "", QK_ERROR_UNSUPPORTED,
            "which of weight I8 [3,40] share one");
    for (const std::vector<int64_t> &shape :
         {std::vector<int64_t>{}, std::vector<int64_t>{1}, std::vector<int64_t>{1, 1}}) {
        takes(scaled(3, 40, shape, half_ones(1)), "", ct, 3, 40, QK_GROUP_ROW);
        has(QK_PLANE_SCALE, half_ones(3));
    }
}

TEST_F(EightBits, ScalesByTheConfiguration) {
    const auto ct = QK_DIALECT_COMPRESSED_TENSORS;
    takes(scaled(3, 40, {3, 1}, half_ones(3)), kInt8 + "channel\"}}}}}", ct, 3, 40, QK_GROUP_ROW);
    takes(scaled(3, 40, {3, 3}, half_ones(9)), kInt8 + "group\",\"group_size\":16}}}}}", ct, 3, 40,
          16);
    refuses(scaled(3, 40, {3, 1}, half_ones(3)), kInt8 + "tensor\"}}}}}", QK_ERROR_UNSUPPORTED,
            "no config group is symmetric 8-bit int with scales F16 [3,1]");
    const std::vector<uint16_t> block = {0x3c00, 0x4000, 0x4200, 0x4400};  // 1 2 3 4
    for (const char *size : {"[2,32]", "\"2x32\""}) {
        takes(scaled(3, 40, {2, 2}, bytes_of(block)),
              kInt8 + "block\",\"block_structure\":" + size + "}}}}}", ct, 3, 40, 32);
        has(QK_PLANE_SCALE, bytes_of<uint16_t>({0x3c00, 0x4000, 0x3c00, 0x4000, 0x4200, 0x4400}));
    }
    refuses(scaled(3, 40, {2, 2}, bytes_of(block)),
            kInt8 + "block\",\"block_structure\":[2,0]}}}}}", QK_ERROR_UNSUPPORTED,
            "no config group");
    Parts p = scaled(3, 40, {3, 1}, half_ones(3));
    p.set("x.weight_zero_point", "I8", {3, 1}, zeros(3));
    takes(p, kInt8 + "channel\",\"symmetric\":false}}}}}", ct, 3, 40, QK_GROUP_ROW);
    EXPECT_EQ(QK_FORMAT_F16, layer.desc.scale_format);
    p.set("x.weight_zero_point", "I8", {3, 1}, std::string("\0\xfb\1", 3));
    p.set("x.weight_scale", "F16", {3, 1}, bytes_of<uint16_t>({0x3c00, 0x4000, 0x3801}));
    takes(p, kInt8 + "channel\",\"symmetric\":false}}}}}", ct, 3, 40, QK_GROUP_ROW);
    EXPECT_EQ(QK_TENSOR_FLOAT_MIN, layer.desc.flags);
    has(QK_PLANE_SCALE, floats({1, 2, 0.50048828125f}));
    has(QK_PLANE_ZERO, floats({0, -10, 0.50048828125f}));
    refuses(p, kInt8 + "channel\"}}}}}", QK_ERROR_UNSUPPORTED, "no config group is asymmetric");
    p.set("x.weight_scale", "F32", {3, 1}, floats({1, 2, 3}));
    refuses(p, kInt8 + "channel\",\"symmetric\":false}}}}}", QK_ERROR_UNSUPPORTED,
            "asymmetric 8-bit codes with F32 scales");
    p.set("x.weight_zero_point", "I8", {2, 1}, zeros(2));
    refuses(p, kInt8 + "channel\",\"symmetric\":false}}}}}", QK_ERROR_CORRUPT,
            "weight_zero_point is I8 [2,1]");
}

Parts fp8(int64_t n, int64_t k, const char *name, const char *dtype,
          const std::vector<int64_t> &shape, const std::string &scales) {
    Parts p;
    p.set("x.weight", "F8_E4M3", {n, k}, zeros(n * k));
    p.set(name, dtype, shape, scales);
    return p;
}

TEST_F(EightBits, Fp8ByItsShapes) {
    const std::string two = floats({2.0f}), inv = "x.weight_scale_inv", scale = "x.weight_scale";
    const std::string modelopt = R"({"quant_method":"modelopt","quant_algo":"FP8"})";
    Parts p = fp8(3, 40, scale.c_str(), "F32", {}, two);
    p.set("x.input_scale", "F32", {}, two);
    takes(p, modelopt, QK_DIALECT_FP8, 3, 40, QK_GROUP_ROW);
    EXPECT_EQ(120 + 4 + 4, layer.bytes);
    EXPECT_EQ(QK_FORMAT_E4M3, layer.desc.format);
    has(QK_PLANE_SCALE, floats({2, 2, 2}));
    p.set("x.pre_quant_scale", "F32", {40}, zeros(160));
    refuses(p, modelopt, QK_ERROR_UNSUPPORTED, "transform of the activations (pre_quant_scale)");
    takes(fp8(3, 40, scale.c_str(), "F32", {3, 1}, floats({1, 2, 3})),
          R"({"quant_method":"fbgemm_fp8"})", QK_DIALECT_FP8, 3, 40, QK_GROUP_ROW);
    has(QK_PLANE_SCALE, floats({1, 2, 3}));
    // Blocks of 128 where nothing says how large they are, or of the size that it says.
    takes(fp8(130, 140, inv.c_str(), "F32", {2, 2}, floats({1, 2, 3, 4})), "", QK_DIALECT_FP8, 130,
          140, 128);
    std::string repeated;
    for (int row = 0; row < 130; ++row) repeated += row < 128 ? floats({1, 2}) : floats({3, 4});
    has(QK_PLANE_SCALE, repeated);
    takes(fp8(3, 40, inv.c_str(), "BF16", {2, 2}, zeros(8)),
          R"({"quant_method":"fp8","weight_block_size":[2,32]})", QK_DIALECT_FP8, 3, 40, 32);
    refuses(fp8(3, 40, inv.c_str(), "F32", {2, 3}, zeros(24)),
            R"({"quant_method":"fp8","weight_block_size":[2,32]})", QK_ERROR_UNSUPPORTED,
            "neither the configuration nor their shape");
    takes(fp8(4, 64, inv.c_str(), "F8_E8M0", {2, 2}, "\x7f\x80\x81\x82"),
          R"({"quant_method":"fp8","weight_block_size":[2,32]})", QK_DIALECT_FP8, 4, 64, 32);
    EXPECT_EQ(QK_FORMAT_E8M0, layer.desc.scale_format);
    has(QK_PLANE_SCALE, "\x7f\x80\x7f\x80\x81\x82\x81\x82");
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message)) << message.text;
    takes(fp8(4, 64, inv.c_str(), "F8_E8M0", {2, 2}, "\x7f\x80\xff\xfe"),
          R"({"quant_method":"fp8","weight_block_size":[2,32]})", QK_DIALECT_FP8, 4, 64, 32);
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_NE(nullptr, strstr(message.text, "scale 2 is not")) << message.text;
    takes(fp8(4, 64, "x.scale", "F8_E8M0", {1, 1}, "\x7f"), "", QK_DIALECT_FP8, 4, 64,
          QK_GROUP_ROW);
}

TEST_F(EightBits, Fp8Refused) {
    const Parts bare = fp8(3, 40, "x.other", "F32", {}, zeros(4));
    refuses(bare, "", QK_ERROR_UNSUPPORTED, "whose scales are absent");
    refuses(fp8(3, 40, "x.weight_scale", "F64", {}, zeros(8)), "", QK_ERROR_UNSUPPORTED,
            "whose scales are F64 []");
    Parts p = fp8(3, 40, "x.weight_scale", "F32", {}, zeros(4));
    p.set("x.weight", "F8_E5M2", {3, 40}, zeros(120));
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is F8_E5M2), which qk does not load");
    p = fp8(3, 40, "x.weight_scale", "F32", {3, 1}, floats({1, INFINITY, 1}));
    takes(p, "", QK_DIALECT_FP8, 3, 40, QK_GROUP_ROW);
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    const std::string ct =
        R"({"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized",)"
        R"("config_groups":{"g":{"weights":{"num_bits":8,"type":"float","strategy":"channel"}}}}})";
    takes(p, ct, QK_DIALECT_COMPRESSED_TENSORS, 3, 40, QK_GROUP_ROW);
    p.set("x.weight_scale", "F32", {}, zeros(4));
    refuses(p, ct, QK_ERROR_UNSUPPORTED, "no config group is symmetric 8-bit float");
}

TEST_F(EightBits, GptqWordsAreTransposed) {
    const std::string v1 = R"({"quant_method":"gptq","bits":8,"group_size":16})";
    const std::string v2 =
        R"({"quant_method":"gptq","bits":8,"group_size":16,"checkpoint_format":"gptq_v2"})";
    Parts p = gptq8(4, 32, 16, '\x7f');
    std::string codes, scales, expected, expected_scales;
    for (int line = 0; line < 8; ++line) {
        for (int row = 0; row < 4; ++row) {
            for (int i = 0; i < 4; ++i) codes += static_cast<char>(line * 4 + i + row * 64);
        }
    }
    for (int row = 0; row < 4; ++row) {
        for (int column = 0; column < 32; ++column) {
            expected += static_cast<char>(column + row * 64 - 128);
        }
        expected_scales +=
            bytes_of<uint16_t>({static_cast<uint16_t>(row + 1), static_cast<uint16_t>(row + 5)});
    }
    p["x.qweight"].bytes = codes;
    p["x.scales"].bytes = bytes_of<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8});
    takes(p, v1, QK_DIALECT_GPTQ_V1, 4, 32, 16);
    has(QK_PLANE_DATA, expected);
    has(QK_PLANE_SCALE, expected_scales);
    takes(p, v2, QK_DIALECT_GPTQ_V2, 4, 32, 16);  // zeros of 127
    EXPECT_EQ(QK_TENSOR_FLOAT_MIN, layer.desc.flags);
    has(QK_PLANE_ZERO, floats({-0x1p-24f, -0x5p-24f, -0x2p-24f, -0x6p-24f, -0x3p-24f, -0x7p-24f,
                               -0x4p-24f, -0x8p-24f}));
    has(QK_PLANE_SCALE,
        floats({0x1p-24f, 0x5p-24f, 0x2p-24f, 0x6p-24f, 0x3p-24f, 0x7p-24f, 0x4p-24f, 0x8p-24f}));
    takes(gptq8(4, 32, 16, '\x80'), v2, QK_DIALECT_GPTQ_V2, 4, 32, 16);
    takes(gptq8(4, 32, 16, '\xff'), v1, QK_DIALECT_GPTQ_V1, 4, 32, 16);  // zeros of 0
    has(QK_PLANE_ZERO, floats(std::vector<float>(8, -128.0f)));
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    takes(gptq8(4, 32, 32, '\x7f'), R"({"quant_method":"gptq","bits":8,"group_size":-1})",
          QK_DIALECT_GPTQ_V1, 4, 32, QK_GROUP_ROW);
    refuses(gptq8(4, 32, 32, '\x7f'), v1, QK_ERROR_CORRUPT, "do not fit together");
    p = gptq8(8, 32, 16, '\x7f');
    p.set("x.g_idx", "I32", {32}, zeros(128));
    refuses(p, v1, QK_ERROR_UNSUPPORTED, "more than 16 columns into group 0");
}

TEST_F(EightBits, PackedBytesLoseTheirOffset) {
    const std::string config =
        R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized",)"
        R"("config_groups":{"g":{"weights":{"num_bits":8,"type":"int","strategy":"channel"}}}}})";
    Parts p;
    p.set("x.weight_packed", "I32", {2, 2},
          std::string("\x80\x81\x7f\0\xff\1\2\3\5\6\7\x08\x09\4\4\4", 16));
    p.set("x.weight_scale", "F16", {2, 1}, half_ones(2));
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({2, 5}));
    takes(p, config, QK_DIALECT_COMPRESSED_TENSORS, 2, 5, QK_GROUP_ROW);
    EXPECT_EQ(QK_FORMAT_S8, layer.desc.format);
    has(QK_PLANE_DATA, std::string("\0\1\xff\x80\x7f\x85\x86\x87\x88\x89", 10));
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({3, 5}));
    refuses(p, config, QK_ERROR_CORRUPT, "neither 4 nor 8 bits");
}

TEST_F(EightBits, HalvesOfNestedScalesAreWidened) {
    const std::vector<uint16_t> f16 = {0x0001, 0x8001, 0x03ff, 0x3555, 0x7bff, 0xfc00, 0x8000};
    const std::vector<uint32_t> wide = {0x33800000, 0xb3800000, 0x387fc000, 0x3eaaa000,
                                        0x477fe000, 0xff800000, 0x80000000};
    Parts p = bnb_nested(8, 64, 32);
    std::vector<uint16_t> table(256, 0);
    std::vector<uint32_t> expected(256, 0);
    for (size_t i = 0; i < f16.size(); ++i) table[i] = f16[i], expected[i] = wide[i];
    p.set("x.weight.nested_quant_map", "F16", {256}, bytes_of(table));
    p.set("x.weight.nested_absmax", "BF16", {1}, bytes_of<uint16_t>({0x3f81}));
    takes(p, "", QK_DIALECT_BITSANDBYTES, 8, 64, 32);
    has(QK_PLANE_SCALE_CODE, bytes_of(expected));
    has(QK_PLANE_SCALE2, bytes_of<uint32_t>({0x3f810000}));
    p.set("x.weight.nested_absmax", "BF16", {2}, zeros(4));
    refuses(p, "", QK_ERROR_CORRUPT, "second scales");
}

}  // namespace

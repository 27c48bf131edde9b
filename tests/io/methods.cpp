// What the library says of methods: the layer's, the configuration's, and AutoRound's two.
#include "layers.hpp"

namespace io_test {
namespace {

using Methods = Dialects;

std::string auto_round(const std::string &packing, const std::string &more = "") {
    return R"({"quantization_config":{"quant_method":"auto-round","bits":4,"group_size":128,)"
           R"("packing_format":")" +
           packing + "\"" + more + "}}";
}

Parts eetq() {
    Parts p;
    p.set("x.weight", "I8", {4, 8}, std::string(32, '\1'));
    p.set("x.weight_scales", "F32", {4}, std::string(16, '\0'));
    p.set("x.weight_format", "U8", {}, "\1");
    p.set("xy.weight", "F32", {1, 1}, std::string(4, '\0'));
    return p;
}

TEST_F(Methods, OfALayer) {
    open(eetq());
    EXPECT_STREQ("EETQ", qk_checkpoint_layer_method(checkpoint, "x"));
    EXPECT_STREQ("dense", qk_checkpoint_layer_method(checkpoint, "xy"));
    EXPECT_EQ(nullptr, qk_checkpoint_layer_method(checkpoint, "y"));
    EXPECT_EQ(nullptr, qk_checkpoint_layer_method(checkpoint, nullptr));
    EXPECT_EQ(nullptr, qk_checkpoint_layer_method(nullptr, "x"));
    EXPECT_EQ(32 + 16 + 1, layer.bytes);  // not those of xy
    EXPECT_EQ(QK_DIALECT_UNKNOWN, layer.dialect);
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, layer.status);
    open(gptq(64, 256, 128), gptq_config(""));
    EXPECT_STREQ("GPTQ v1", qk_checkpoint_layer_method(checkpoint, "x"));
}

TEST_F(Methods, OfTheConfiguration) {
    const char *name = nullptr;
    open(gptq(64, 256, 128), gptq_config(""));
    EXPECT_EQ(QK_OK, qk_checkpoint_method(checkpoint, &name, &message));
    EXPECT_STREQ("gptq", name);
    Parts dense;
    dense.set("x.weight", "F32", {1, 1}, std::string(4, '\0'));
    open(dense);
    EXPECT_EQ(QK_OK, qk_checkpoint_method(checkpoint, &name, &message));
    EXPECT_STREQ("", name);
    open(dense, R"({"quantization_config":{"quant_method":"next"}})");
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, qk_checkpoint_method(checkpoint, &name, &message));
    EXPECT_STREQ("next", name);
    EXPECT_NE(nullptr, strstr(message.text, "quant_method \"next\"")) << message.text;
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_method(nullptr, &name, &message));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_method(checkpoint, nullptr, &message));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, qk_checkpoint_method(checkpoint, &name, nullptr));
    // A layer that loads is a better witness than the configuration.
    open(awq_gemm(64, 256, 128), R"({"quant_method":"next","q_group_size":128})");
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, layer.status);  // qweight of an unknown method is nobody's
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, qk_checkpoint_method(checkpoint, &name, &message));
}

TEST_F(Methods, ALongWordIsCut) {
    const std::string word(300, 'z');
    const char *name = nullptr;
    open(eetq(), "{\"quant_method\":\"" + word + "\"}");
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, qk_checkpoint_method(checkpoint, &name, &message));
    EXPECT_EQ(word.substr(0, 47), name);
    EXPECT_NE(nullptr, strstr(layer.reason, name)) << layer.reason;
}

TEST_F(Methods, AutoRoundIsGptqOrAwq) {
    const Parts words = gptq(64, 256, 128);
    for (const char *form : {"auto_round:auto_gptq", "auto_round:gptq"}) {
        takes(words, auto_round(form), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    }
    for (const char *form : {"auto_round", "auto_round:gptqmodel"}) {
        takes(words, auto_round(form), QK_DIALECT_GPTQ_V2, 64, 256, 128);
    }
    for (const char *form : {"auto_round:auto_awq", "auto_round:awq"}) {
        takes(awq_gemm(64, 256, 128), auto_round(form), QK_DIALECT_AWQ_GEMM, 64, 256, 128);
    }
    takes(words, R"({"quant_method":"intel/auto-round","bits":4,"group_size":128})",
          QK_DIALECT_GPTQ_V1, 64, 256, 128);
    refuses(words, auto_round("auto_round:next"), QK_ERROR_UNSUPPORTED, "auto_round:next");
}

TEST_F(Methods, SettingsOfSingleLayers) {
    const std::string extra = R"(,"extra_config":{"x":{"group_size":64}})";
    const std::string form = "auto_round:auto_gptq", awq = "auto_round:auto_awq";
    takes(gptq(64, 256, 64), auto_round(form, extra), QK_DIALECT_GPTQ_V1, 64, 256, 64);
    takes(gptq(64, 256, 128), auto_round(form, extra), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    takes(awq_gemm(64, 256, 64), auto_round(awq, extra), QK_DIALECT_AWQ_GEMM, 64, 256, 64);
    takes(gptq(64, 256, 32), gptq_config(R"(,"dynamic":{"+:x":{"group_size":32}})"),
          QK_DIALECT_GPTQ_V1, 64, 256, 32);
    takes(gptq(64, 256, 256), auto_round(form, extra), QK_DIALECT_GPTQ_V1, 64, 256, QK_GROUP_ROW);
    // Without such settings the two contradict each other.
    refuses(gptq(64, 256, 64), auto_round(form), QK_ERROR_CORRUPT, "do not fit together");
    refuses(gptq(64, 256, 64), auto_round(form, R"(,"extra_config":{})"), QK_ERROR_CORRUPT,
            "do not fit together");
}

Parts nvfp4(int64_t n, int64_t k) {
    Parts p;
    p.set("x.weight", "U8", {n, k / 2}, zeros(n * k / 2));
    p.set("x.weight_scale", "F8_E4M3", {n, k / 16}, zeros(n * k / 16));
    p.set("x.weight_scale_2", "F32", {}, bytes_of<float>({0.5f}));
    return p;
}

TEST_F(Methods, ModelOptsFp4) {
    takes(nvfp4(5, 48), R"({"quant_method":"modelopt"})", QK_DIALECT_MODELOPT, 5, 48, 16);
    EXPECT_STREQ("NVFP4", qk_checkpoint_layer_method(checkpoint, "x"));
    EXPECT_EQ(QK_TENSOR_GLOBAL, layer.desc.flags);  // multiplies
    EXPECT_EQ(5 * 24 + 5 * 3 + 4, layer.bytes);
    Parts p = nvfp4(5, 48);
    p.set("x.weight_scale_2", "F32", {2}, bytes_of<float>({1, 1}));
    refuses(p, "", QK_ERROR_CORRUPT, "weight_scale_2 is F32 [2]; expected one F32");
    p = nvfp4(5, 48);
    p.set("x.weight_scale", "F8_E4M3", {5, 4}, zeros(20));
    refuses(p, "", QK_ERROR_CORRUPT, "scales are F8_E4M3 [5,4]; weight [5,48] needs 5 x 3");
    p.set("x.weight_scale", "F8_E4M3", {128, 4}, zeros(512));
    refuses(p, "", QK_ERROR_UNSUPPORTED, "in tiles of 128 x 4");
    p = nvfp4(5, 48);
    p.set("x.weight", "U8", {0, 24}, "");
    refuses(p, "", QK_ERROR_UNSUPPORTED,
            "weight is U8 [0,24]; a weight of qk has at least 1 of each");
}

TEST_F(Methods, DeepSeeksFp4) {
    Parts p;
    p.set("x.weight", "I8", {5, 32}, zeros(5 * 32));
    p.set("x.scale", "F8_E8M0", {5, 2}, zeros(10));
    takes(p, "", QK_DIALECT_DEEPSEEK, 5, 64, 32);
    EXPECT_EQ(5 * 32 + 10, layer.bytes);
    p.set("x.scale", "F8_E8M0", {1, 1}, zeros(1));
    refuses(p, "", QK_ERROR_CORRUPT, "needs 5 x 2");
}

TEST_F(Methods, ExpertsOfGptOss) {
    Parts p;
    p.set("x_blocks", "U8", {2, 3, 2, 16}, zeros(2 * 3 * 2 * 16));
    p.set("x_scales", "U8", {2, 3, 2}, zeros(12));
    p.set("x_bias", "F32", {2, 3}, zeros(24));
    takes(p, "", QK_DIALECT_GPT_OSS, 6, 64, 32);
    EXPECT_EQ(1, layer.has_bias);
    p.set("x_bias", "F32", {3, 3}, zeros(36));
    refuses(p, "", QK_ERROR_CORRUPT, "bias is F32 [3,3]; expected F32, F16 or BF16 [2,3]");
    p.set("x_bias", "F32", {2, 2}, zeros(16));
    refuses(p, "", QK_ERROR_CORRUPT, "bias is F32 [2,2]; expected F32, F16 or BF16 [2,3]");
    p.remove("x_bias");
    p.set("x_scales", "U8", {2, 2, 3}, zeros(12));
    refuses(p, "", QK_ERROR_CORRUPT, "scales U8 [2,2,3]");
    p.set("x_blocks", "U8", {0, 3, 2, 16}, "");
    p.set("x_scales", "U8", {0, 3, 2}, "");
    refuses(p, "", QK_ERROR_UNSUPPORTED,
            "weight is U8 [0,3,2,16]; a weight of qk has at least 1 of each");
}

}  // namespace
}  // namespace io_test

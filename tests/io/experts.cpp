// Experts of every dialect as one tensor: the values of the single layers, gate and up joined, and
// what has no tensor in common.
#include "experts.hpp"

namespace {

using namespace io_test;

const std::string kSymmetric =
    ct_config("\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32");
const std::string kZeros =
    ct_config("\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32");

Parts nvfp4(int64_t n, int64_t k) {
    Parts p;
    p.set("x.weight", "U8", {n, k / 2}, zeros(n * k / 2));
    p.set("x.weight_scale", "F8_E4M3", {n, k / 16}, zeros(n * k / 16));
    p.set("x.weight_scale_2", "F32", {}, zeros(4));
    return p;
}

// A weight of bytes and its scales, under the names of a dialect.
Parts with_scales(const char *dtype, int64_t n, int64_t bytes, const char *scale,
                  const char *scale_dtype, const std::vector<int64_t> &scales) {
    Parts p;
    int64_t count = 1;
    for (const int64_t size : scales) count *= size;
    const int64_t width = std::string(scale_dtype) == "F32" ? 4 : 1;
    p.set("x.weight", dtype, {n, bytes}, zeros(n * bytes));
    p.set(std::string("x.") + scale, scale_dtype, scales, zeros(count * width));
    return p;
}

TEST_F(Experts, OfDeepSeekHaveTheValuesOfTheirLayers) {
    joins(with_scales("I8", 6, 32, "scale", "F8_E8M0", {6, 2}), "", 6, 64);
    const std::string blocks =
        R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";
    joins(with_scales("F8_E4M3", 256, 256, "weight_scale_inv", "F32", {2, 2}), blocks, 256, 256);
    joins(with_scales("F8_E4M3", 40, 200, "weight_scale_inv", "F32", {1, 2}), blocks, 40, 200);
}

TEST_F(Experts, HaveTheValuesOfTheirLayers) {
    joins(awq_gemm(64, 256, 128), kAwq128, 64, 256);
    joins(awq_gemv(64, 256, 1), kAwq128, 64, 256);
    joins(gptq(64, 256, 128), kGptq128, 64, 256);
    joins(gptq(64, 256, 128), gptq_config(",\"checkpoint_format\":\"gptq_v2\""), 64, 256);
    joins(compressed(20, 64, 2), kSymmetric, 20, 64);
    Parts asymmetric = compressed(20, 64, 2);  // words of zeros end within an expert
    set_words(&asymmetric, "x.weight_zero_point", 3, 2);
    joins(asymmetric, kZeros, 20, 64);
    asymmetric = compressed(24, 64, 2);
    set_words(&asymmetric, "x.weight_zero_point", 3, 2);
    joins(asymmetric, kZeros, 24, 64);
    joins(bnb(6, 64, 64), "", 6, 64);
    joins(bnb_nested(6, 64, 64), "", 6, 64);
    Parts half = bnb_nested(6, 64, 64);  // nested scales in half precision
    half.set("x.weight.nested_absmax", "F16", {1}, half_ones(1));
    half.set("x.weight.nested_quant_map", "F16", {256}, half_ones(256));
    joins(half, "", 6, 64);
    joins(nvfp4(5, 48), "", 5, 48);
    Parts dense;
    dense.set("x.weight", "F32", {4, 8}, zeros(128));
    dense.set("x.bias", "F32", {4}, zeros(16));
    joins(dense, "", 4, 8);
}

TEST_F(Experts, WithoutATensorInCommonAreRefused) {
    const Parts good = as_experts(compressed(16, 64, 2));
    Parts bad = good;
    for (const char *suffix : {"_packed", "_scale", "_shape"}) {
        bad.remove(std::string("m.experts.1.up_proj.weight") + suffix);
    }
    refuses(bad, kSymmetric, QK_ERROR_CORRUPT, "expert 1 is missing; there is an expert 2");
    bad.set("m.experts.1.up_proj.weight", "F16", {16, 64}, half_ones(16 * 64));
    refuses(bad, kSymmetric, QK_ERROR_UNSUPPORTED,
            "expert 1 is dense f16 [16,64], expert 0 compressed-tensors u4 [16,64] in groups of 32 "
            "with f16 scales; one tensor is of one kind");
    bad = good;
    set_words(&bad, "m.experts.2.up_proj.weight_packed", 24, 8);
    set_halves(&bad, "m.experts.2.up_proj.weight_scale", 24, 2);
    bad.set("m.experts.2.up_proj.weight_shape", "I64", {2}, bytes_of<int64_t>({24, 64}));
    refuses(bad, kSymmetric, QK_ERROR_CORRUPT, "expert 2 is compressed-tensors u4 [24,64]");
    bad = good;
    set_halves(&bad, "m.experts.0.up_proj.weight_scale", 15, 2);
    refuses(bad, kSymmetric, QK_ERROR_CORRUPT, "expert 0: ");
    bad = good;
    bad.set("m.experts.2.up_proj.bias", "F16", {16}, half_ones(16));
    refuses(bad, kSymmetric, QK_ERROR_UNSUPPORTED,
            "the bias of expert 2 is F16 [16], that of expert 0 absent");
    bad = as_experts(gptq(64, 256, 128));
    std::vector<int32_t> order;
    for (int32_t i = 0; i < 256; ++i) order.push_back(i % 2);
    bad.set("m.experts.1.up_proj.g_idx", "I32", {256}, bytes_of(order));
    refuses(bad, gptq_config(",\"desc_act\":true"), QK_ERROR_UNSUPPORTED,
            "expert 1 has another order of columns (act-order) than expert 0");
    refuses(as_experts(bnb(3, 32, 64)), "", QK_ERROR_UNSUPPORTED, "share a byte or a group of 64");
}

TEST_F(Experts, AreFoundByTheirNames) {
    Parts parts;
    for (const char *name : {"experts.0.w1", "a.experts.0.w1", "a.experts.1.w1", "a.experts.01.w1",
                             "a.experts.0", "shared_experts.0.w1", "a.experts.x.w1",
                             "b.experts.0.c.experts.0.w1", "a.experts.1234567890.w1"}) {
        parts.set(std::string(name) + ".weight", "F32", {1, 1}, zeros(4));
    }
    open(parts.build(), "");
    std::string names;
    for (int64_t i = 0; i < qk_checkpoint_expert_layer_count(checkpoint); ++i) {
        qk_layer layer;
        ASSERT_EQ(QK_OK, qk_checkpoint_expert_layer(checkpoint, i, &layer, sizeof layer));
        names += std::string(layer.name) + " " + std::to_string(layer.desc.shape[0]) + "\n";
    }
    EXPECT_EQ("a.experts.*.w1 2\nb.experts.0.c.experts.*.w1 1\nexperts.*.w1 1\n", names);
}

TEST_F(Experts, RefuseWhatIsWrongWithACall) {
    Parts parts = as_experts(compressed(16, 64, 2));
    set_words(&parts, "m.experts.0.down_proj.weight_packed", 64, 2);
    set_halves(&parts, "m.experts.0.down_proj.weight_scale", 64, 1);
    parts.set("m.experts.0.down_proj.weight_shape", "I64", {2}, bytes_of<int64_t>({64, 16}));
    open(parts.build(), kSymmetric);
    const char *const up = "m.experts.*.up_proj";
    qk_tensor *weight = nullptr;
    qk_layer layer;
    const auto call = [&](const char *name, const char *second, uint32_t flags) {
        const qk_status status = qk_checkpoint_load_experts(checkpoint, context, name, second,
                                                            flags, &weight, nullptr, &message);
        EXPECT_EQ(nullptr, weight);
        EXPECT_NE('\0', message.text[0]);
        return status;
    };
    EXPECT_EQ(QK_ERROR_ARGUMENT, call("m.experts.0.up_proj", nullptr, 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, call(up, "m.experts.*.no_proj", 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, call(up, nullptr, 2));
    EXPECT_EQ(QK_ERROR_NULL, call(nullptr, nullptr, 0));
    EXPECT_EQ(QK_ERROR_SHAPE, call(up, "m.experts.*.down_proj", 0));
    EXPECT_EQ(0, qk_checkpoint_expert_layer_count(nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_expert_layer(checkpoint, 0, nullptr, sizeof layer));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_expert_layer(checkpoint, 9, &layer, sizeof layer));
    EXPECT_EQ(QK_ERROR_ABI, qk_checkpoint_expert_layer(checkpoint, 0, &layer, 8));
    EXPECT_EQ(QK_ERROR_ARGUMENT,
              qk_checkpoint_find_expert_layer(checkpoint, "x", &layer, sizeof layer));
    EXPECT_EQ(QK_ERROR_NULL,
              qk_checkpoint_find_expert_layer(checkpoint, nullptr, &layer, sizeof layer));
}

}  // namespace

// Experts of every dialect as one tensor: the values of the single layers, gate and up joined, and
// what has no tensor in common.
#include "layers.hpp"
#include "maker_gguf.hpp"

namespace {

using namespace io_test;

constexpr int64_t kExperts = 3;

// Codes, zeros and scales of one's own, which stay numbers.
std::string varied(const Parts::Part &part, unsigned seed) {
    std::string bytes = part.bytes;
    const auto next = [&seed] {
        seed = seed * 1664525 + 1013904223;
        return seed >> 24;
    };
    const bool kept = part.dtype == "I64" || part.name.find("quant_") != std::string::npos ||
                      part.name.find("g_idx") != std::string::npos;
    if (kept) return bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
        const unsigned byte = next();
        if (part.dtype == "F32") {  // 0.5 .. 2
            const unsigned char one[4] = {static_cast<unsigned char>(byte), 0, 0x40, 0x3f};
            bytes[i] = static_cast<char>(one[i % 4]);
        } else if (part.dtype == "F16") {
            bytes[i] = static_cast<char>(i % 2 == 0 ? byte : 0x3c);
        } else if (part.dtype == "F8_E4M3" || part.dtype == "F8_E8M0") {
            bytes[i] = static_cast<char>(byte & 0x3f);
        } else {
            bytes[i] = static_cast<char>(byte);
        }
    }
    return bytes;
}

// The layer "x" as experts of two projections.
Parts as_experts(const Parts &one) {
    Parts all;
    unsigned seed = 1;
    for (int64_t e = 0; e < kExperts; ++e) {
        for (const char *projection : {".gate_proj", ".up_proj"}) {
            const std::string module = "m.experts." + std::to_string(e) + projection;
            for (const Parts::Part &part : one.parts) {
                all.set(module + part.name.substr(1), part.dtype, part.shape, varied(part, ++seed));
            }
        }
    }
    return all;
}

class Experts : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context)); }
    void TearDown() override {
        qk_checkpoint_destroy(checkpoint);
        qk_context_destroy(context);
    }
    void open(const std::string &bytes, const std::string &config) {
        qk_checkpoint_destroy(checkpoint);
        checkpoint = nullptr;
        file = bytes;
        ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(file.data(), file.size(),
                                                   config.empty() ? nullptr : config.data(),
                                                   config.size(), nullptr, &checkpoint, &message))
            << message.text;
    }
    std::vector<float> values(qk_tensor *tensor) {
        qk_tensor_desc from = QK_TENSOR_DESC_INIT, to = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(QK_OK, qk_tensor_describe(tensor, &from));
        if (from.format == QK_FORMAT_F32) return raw(tensor);
        int64_t count = 1;
        to.rank = from.rank;
        for (int32_t i = 0; i < from.rank; ++i) count *= to.shape[i] = from.shape[i];
        std::vector<float> made(static_cast<size_t>(count));
        void *planes[] = {made.data()};
        qk_tensor *dense = nullptr;
        EXPECT_EQ(QK_OK, qk_tensor_wrap(context, &to, planes, 1, &dense));
        EXPECT_EQ(QK_OK, qk_dequantize(context, tensor, dense)) << qk_context_error(context);
        qk_tensor_destroy(dense);
        qk_tensor_destroy(tensor);
        return made;
    }
    // Weights, and behind them biases where the layers have some.
    std::vector<float> layer_values(const std::string &name) {
        qk_tensor *weight = nullptr, *bias = nullptr;
        EXPECT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, name.c_str(), 0, &weight, &bias,
                                            &message))
            << message.text;
        biases = bias == nullptr ? std::vector<float>() : raw(bias);
        return values(weight);
    }
    std::vector<float> raw(qk_tensor *dense) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(QK_OK, qk_tensor_describe(dense, &desc));
        int64_t count = 1;
        for (int32_t i = 0; i < desc.rank; ++i) count *= desc.shape[i];
        std::vector<float> made(static_cast<size_t>(count));
        EXPECT_EQ(QK_FORMAT_F32, desc.format);
        EXPECT_EQ(QK_OK,
                  qk_tensor_download(context, dense, QK_PLANE_DATA, made.data(), made.size() * 4));
        qk_tensor_destroy(dense);
        return made;
    }
    void loads(const std::string &name, const char *up, const std::vector<float> &expected,
               const std::vector<float> &expected_bias, const std::vector<int64_t> &shape) {
        for (const uint32_t flags : {0u, QK_LOAD_IN_PLACE}) {
            qk_tensor *weight = nullptr, *bias = nullptr;
            ASSERT_EQ(QK_OK, qk_checkpoint_load_experts(checkpoint, context, name.c_str(), up,
                                                        flags, &weight, &bias, &message))
                << message.text;
            qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
            ASSERT_EQ(QK_OK, qk_tensor_describe(weight, &desc));
            EXPECT_EQ(shape, std::vector<int64_t>(desc.shape, desc.shape + desc.rank));
            EXPECT_EQ(expected, values(weight)) << name << (up == nullptr ? "" : " and up");
            EXPECT_EQ(expected_bias.empty(), bias == nullptr);
            if (bias != nullptr) {
                EXPECT_EQ(expected_bias, raw(bias));
            }
        }
    }
    // All experts have the values of their layers, alone and as gate and up.
    void joins(const Parts &one, const std::string &config, int64_t n, int64_t k) {
        open(as_experts(one).build(), config);
        ASSERT_EQ(2, qk_checkpoint_expert_layer_count(checkpoint));
        qk_layer found;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_expert_layer(checkpoint, "m.experts.*.up_proj", &found,
                                                         sizeof found));
        ASSERT_EQ(QK_OK, found.status) << found.reason;
        EXPECT_EQ(kExperts, found.desc.shape[0]);
        std::vector<float> up, both, up_bias, both_bias;
        const auto append = [](std::vector<float> *to, const std::vector<float> &more) {
            to->insert(to->end(), more.begin(), more.end());
        };
        for (int64_t e = 0; e < kExperts; ++e) {
            const std::string expert = "m.experts." + std::to_string(e);
            append(&both, layer_values(expert + ".gate_proj"));
            append(&both_bias, biases);
            const std::vector<float> own = layer_values(expert + ".up_proj");
            append(&both, own), append(&both_bias, biases);
            append(&up, own), append(&up_bias, biases);
        }
        loads("m.experts.*.up_proj", nullptr, up, up_bias, {kExperts, n, k});
        loads("m.experts.*.gate_proj", "m.experts.*.up_proj", both, both_bias,
              {kExperts, 2 * n, k});
        EXPECT_EQ(found.dialect == QK_DIALECT_DENSE, message.text[0] != 0) << message.text;
    }
    // The experts of a projection have no tensor, and both the list and loading say why.
    void refuses(const Parts &parts, const std::string &config, qk_status status,
                 const char *reason) {
        open(parts.build(), config);
        qk_layer found;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_expert_layer(checkpoint, "m.experts.*.up_proj", &found,
                                                         sizeof found));
        EXPECT_EQ(status, found.status);
        EXPECT_EQ(0, found.desc.rank);
        EXPECT_NE(nullptr, strstr(found.reason, reason)) << found.reason;
        qk_tensor *weight = nullptr;
        EXPECT_EQ(status, qk_checkpoint_load_experts(checkpoint, context, "m.experts.*.up_proj",
                                                     nullptr, 0, &weight, nullptr, &message));
        EXPECT_NE(nullptr, strstr(message.text, reason)) << message.text;
        EXPECT_EQ(nullptr, weight);
    }

    std::string file;
    qk_context *context = nullptr;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
    std::vector<float> biases;  // of the last layer
};

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

TEST_F(Experts, OfOneTensorStayAsTheyAre) {
    Parts one;
    one.set("m.experts.gate_up_proj_blocks", "U8", {2, 3, 2, 16}, zeros(192));
    one.set("m.experts.gate_up_proj_scales", "U8", {2, 3, 2}, std::string(12, '\x7f'));
    one.set("m.experts.gate_up_proj_bias", "F32", {2, 3}, zeros(24));
    Parts parts;
    unsigned seed = 9;
    for (const Parts::Part &part : one.parts) {
        const bool scales = part.name.find("scales") != std::string::npos;
        parts.set(part.name, part.dtype, part.shape, scales ? part.bytes : varied(part, ++seed));
    }
    open(parts.build(), "");
    const std::vector<float> expected = layer_values("m.experts.gate_up_proj");
    loads("m.experts.gate_up_proj", nullptr, expected, biases, {2, 3, 64});
}

// Q8_0: blocks of an f16 scale and 32 codes.
TEST_F(Experts, OfGgufAreJoined) {
    const auto blocks = [](unsigned seed) {
        std::string bytes(size_t{2} * 3 * 34, '\0');
        for (size_t i = 0; i < bytes.size(); ++i) {
            seed = seed * 1664525 + 1013904223;
            bytes[i] = static_cast<char>(i % 34 == 1 ? 0x3c : seed >> 24);
        }
        return bytes;
    };
    const std::string bias = bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6});
    Gguf gguf;
    for (const char *name : {"blk.0.ffn_gate_exps", "blk.0.ffn_up_exps"}) {
        gguf.tensor(name + std::string(".weight"), {32, 3, 2}, 8, blocks(name[10]));
        gguf.tensor(name + std::string(".bias"), {3, 2}, 0, bias);
    }
    open(gguf.build(), "");
    ASSERT_EQ(2, qk_checkpoint_expert_layer_count(checkpoint));
    const std::vector<float> gate = layer_values("blk.0.ffn_gate_exps");
    EXPECT_EQ((std::vector<float>{1, 2, 3, 4, 5, 6}), biases);
    const std::vector<float> up = layer_values("blk.0.ffn_up_exps");
    loads("blk.0.ffn_up_exps", nullptr, up, biases, {2, 3, 32});
    std::vector<float> both;
    for (int e = 0; e < 2; ++e) {
        both.insert(both.end(), gate.begin() + e * 96, gate.begin() + e * 96 + 96);
        both.insert(both.end(), up.begin() + e * 96, up.begin() + e * 96 + 96);
    }
    loads("blk.0.ffn_gate_exps", "blk.0.ffn_up_exps", both, {1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6},
          {2, 6, 32});
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

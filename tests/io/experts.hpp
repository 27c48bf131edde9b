// A fixture that loads the experts of a checkpoint as one tensor, and layers as experts.
#pragma once
#include "layers.hpp"

namespace io_test {

constexpr int64_t kExperts = 3;

// Codes, zeros and scales of one's own, which stay numbers.
inline std::string varied(const Parts::Part &part, unsigned seed) {
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
inline Parts as_experts(const Parts &one) {
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

}  // namespace io_test

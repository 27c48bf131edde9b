// Small layers of every dialect, and a fixture that opens one and asks about it.
#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "maker.hpp"
#include "qk_io.h"

namespace io_test {

// Tensors by name, so that a test can change or remove one.
struct Parts {
    struct Part {
        std::string name, dtype;
        std::vector<int64_t> shape;
        std::string bytes;
    };
    std::vector<Part> parts;

    Part &operator[](const std::string &name) {
        for (Part &part : parts) {
            if (part.name == name) return part;
        }
        parts.push_back({name, "", {}, ""});
        return parts.back();
    }
    void set(const std::string &name, const std::string &dtype, std::vector<int64_t> shape,
             const std::string &bytes) {
        (*this)[name] = {name, dtype, std::move(shape), bytes};
    }
    void remove(const std::string &name) {
        for (size_t i = 0; i < parts.size(); ++i) {
            if (parts[i].name == name) parts.erase(parts.begin() + static_cast<long>(i));
        }
    }
    std::string build() const {
        Maker maker;
        for (const Part &part : parts) maker.add(part.name, part.dtype, part.shape, part.bytes);
        return maker.build();
    }
};

inline std::string zeros(int64_t bytes) { return std::string(static_cast<size_t>(bytes), '\0'); }

inline std::string half_ones(int64_t count) {
    return bytes_of(std::vector<uint16_t>(static_cast<size_t>(count), 0x3c00));
}

inline void set_words(Parts *p, const std::string &name, int64_t rows, int64_t columns) {
    p->set(name, "I32", {rows, columns}, zeros(rows * columns * 4));
}

inline void set_halves(Parts *p, const std::string &name, int64_t rows, int64_t columns) {
    p->set(name, "F16", {rows, columns}, half_ones(rows * columns));
}

inline Parts awq_gemm(int64_t n, int64_t k, int64_t group) {
    Parts p;
    set_words(&p, "x.qweight", k, n / 8);
    set_words(&p, "x.qzeros", k / group, n / 8);
    set_halves(&p, "x.scales", k / group, n);
    return p;
}

inline Parts awq_gemv(int64_t n, int64_t k, int64_t zero_words) {
    Parts p;
    set_words(&p, "x.qweight", n, k / 8);
    set_words(&p, "x.qzeros", n, zero_words);
    set_halves(&p, "x.scales", n, zero_words * 8);
    return p;
}

inline Parts gptq(int64_t n, int64_t k, int64_t group) {
    Parts p;
    const int64_t groups = (k + group - 1) / group;
    set_words(&p, "x.qweight", k / 8, n);
    set_words(&p, "x.qzeros", groups, n / 8);
    set_halves(&p, "x.scales", groups, n);
    std::vector<int32_t> order;
    for (int64_t i = 0; i < k; ++i) order.push_back(static_cast<int32_t>(i / group));
    p.set("x.g_idx", "I32", {k}, bytes_of(order));
    return p;
}

inline Parts compressed(int64_t n, int64_t k, int64_t groups) {
    Parts p;
    set_words(&p, "x.weight_packed", n, (k + 7) / 8);
    set_halves(&p, "x.weight_scale", n, groups);
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({n, k}));
    return p;
}

inline const std::vector<float> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

inline void set_state(Parts *p, const std::string &json) {
    p->set("x.weight.quant_state.bitsandbytes__nf4", "U8", {static_cast<int64_t>(json.size())},
           json);
}

inline Parts bnb(int64_t n, int64_t k, int64_t block) {
    Parts p;
    const int64_t blocks = (n * k + block - 1) / block;
    p.set("x.weight", "U8", {(n * k + 1) / 2, 1}, zeros((n * k + 1) / 2));
    p.set("x.weight.absmax", "F32", {blocks},
          bytes_of(std::vector<float>(static_cast<size_t>(blocks), 1.0f)));
    p.set("x.weight.quant_map", "F32", {16}, bytes_of(kNf4));
    set_state(&p, "{\"quant_type\":\"nf4\",\"blocksize\":" + std::to_string(block) +
                      ",\"dtype\":\"float16\",\"shape\":[" + std::to_string(n) + "," +
                      std::to_string(k) + "]}");
    return p;
}

inline Parts bnb_nested(int64_t n, int64_t k, int64_t block) {
    Parts p = bnb(n, k, block);
    const int64_t blocks = (n * k + block - 1) / block;
    const int64_t seconds = (blocks + 255) / 256;
    p.set("x.weight.absmax", "U8", {blocks}, zeros(blocks));
    p.set("x.weight.nested_absmax", "F32", {seconds}, zeros(seconds * 4));
    p.set("x.weight.nested_quant_map", "F32", {256}, zeros(1024));
    std::string json = p["x.weight.quant_state.bitsandbytes__nf4"].bytes;
    json.pop_back();
    set_state(&p, json +
                      ",\"nested_blocksize\":256,\"nested_dtype\":\"float32\","
                      "\"nested_offset\":0.5}");
    return p;
}

inline const std::string kAwq128 =
    "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}}";
inline const std::string kGptq128 =
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}";

inline std::string gptq_config(const std::string &more) {
    return "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128" + more + "}";
}

inline std::string ct_config(const std::string &weights) {
    return "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
           "\"pack-quantized\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
           "\"weights\":{\"num_bits\":4,\"type\":\"int\"," +
           weights + "}}}}}";
}

class Dialects : public testing::Test {
  protected:
    void TearDown() override { qk_checkpoint_destroy(checkpoint); }

    void open(const Parts &parts, const std::string &config = "") {
        qk_checkpoint_destroy(checkpoint);
        checkpoint = nullptr;
        const std::string file = parts.build();
        bytes.reset(new char[file.size()]);
        memcpy(bytes.get(), file.data(), file.size());
        ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(bytes.get(), file.size(),
                                                   config.empty() ? nullptr : config.data(),
                                                   config.size(), nullptr, &checkpoint, &message))
            << message.text;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(checkpoint, "x", &layer, sizeof layer));
        EXPECT_EQ(layer.status == QK_OK, layer.reason[0] == 0) << layer.reason;
    }
    void takes(const Parts &parts, const std::string &config, qk_dialect dialect, int64_t n,
               int64_t k, int32_t group) {
        open(parts, config);
        EXPECT_EQ(QK_OK, layer.status) << layer.reason;
        EXPECT_EQ(dialect, layer.dialect);
        EXPECT_EQ(n, layer.desc.shape[0]);
        EXPECT_EQ(k, layer.desc.shape[1]);
        EXPECT_EQ(group, layer.desc.group_size);
    }
    void refuses(const Parts &parts, const std::string &config, qk_status status,
                 const char *piece) {
        open(parts, config);
        EXPECT_EQ(status, layer.status) << layer.reason;
        EXPECT_NE(nullptr, strstr(layer.reason, piece)) << layer.reason;
        EXPECT_EQ(0, layer.desc.rank);
        // Loading gives the same answer and sets nothing.
        qk_context *context = nullptr;
        ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
        qk_tensor *weight = nullptr, *bias = nullptr;
        EXPECT_EQ(status,
                  qk_checkpoint_load(checkpoint, context, "x", 0, &weight, &bias, &message));
        EXPECT_NE(nullptr, strstr(message.text, piece)) << message.text;
        EXPECT_EQ(nullptr, weight);
        EXPECT_EQ(nullptr, bias);
        qk_context_destroy(context);
    }

    std::unique_ptr<char[]> bytes;
    qk_checkpoint *checkpoint = nullptr;
    qk_layer layer = {};
    qk_io_message message = {};
};

// n = k: qweight alone fits two arrangements; the configuration, then the scales, tell.

}  // namespace io_test

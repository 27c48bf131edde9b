// What is recognised, what is refused and why: small layers of every dialect, then one thing
// wrong at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "maker.hpp"
#include "qk_io.h"

namespace {

using io_test::bytes_of;
using io_test::Maker;

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

std::string zeros(int64_t bytes) {
    return std::string(static_cast<size_t>(bytes), '\0');
}

std::string half_ones(int64_t count) {
    return bytes_of(std::vector<uint16_t>(static_cast<size_t>(count), 0x3c00));
}

void set_words(Parts *p, const std::string &name, int64_t rows, int64_t columns) {
    p->set(name, "I32", {rows, columns}, zeros(rows * columns * 4));
}

void set_halves(Parts *p, const std::string &name, int64_t rows, int64_t columns) {
    p->set(name, "F16", {rows, columns}, half_ones(rows * columns));
}

Parts awq_gemm(int64_t n, int64_t k, int64_t group) {
    Parts p;
    set_words(&p, "x.qweight", k, n / 8);
    set_words(&p, "x.qzeros", k / group, n / 8);
    set_halves(&p, "x.scales", k / group, n);
    return p;
}

Parts awq_gemv(int64_t n, int64_t k, int64_t zero_words) {
    Parts p;
    set_words(&p, "x.qweight", n, k / 8);
    set_words(&p, "x.qzeros", n, zero_words);
    set_halves(&p, "x.scales", n, zero_words * 8);
    return p;
}

Parts gptq(int64_t n, int64_t k, int64_t group) {
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

Parts compressed(int64_t n, int64_t k, int64_t groups) {
    Parts p;
    set_words(&p, "x.weight_packed", n, (k + 7) / 8);
    set_halves(&p, "x.weight_scale", n, groups);
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({n, k}));
    return p;
}

const std::vector<float> kNf4 = {-1.0f,
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

void set_state(Parts *p, const std::string &json) {
    p->set("x.weight.quant_state.bitsandbytes__nf4", "U8", {static_cast<int64_t>(json.size())},
           json);
}

Parts bnb(int64_t n, int64_t k, int64_t block) {
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

Parts bnb_nested(int64_t n, int64_t k, int64_t block) {
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

const std::string kAwq128 =
    "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}}";
const std::string kGptq128 =
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}";

std::string gptq_config(const std::string &more) {
    return "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128" + more + "}";
}

std::string ct_config(const std::string &weights) {
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
    for (const char *bits : {"2", "3", "8"}) {
        refuses(good,
                std::string("{\"quant_method\":\"gptq\",\"group_size\":128,\"bits\":") + bits + "}",
                QK_ERROR_UNSUPPORTED, "bits; 4");
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
    refuses(p, gptq_config(""), QK_ERROR_UNSUPPORTED, "row 7 into group 1");
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
    refuses(p, g32, QK_ERROR_CORRUPT, "not 4 bits of weight_shape [9,73]");
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({9, -70}));
    refuses(p, g32, QK_ERROR_CORRUPT, "sizes are at least 1");
    p.set("x.weight_shape", "I64", {2}, bytes_of<int64_t>({INT64_MAX, INT64_MAX}));
    refuses(p, g32, QK_ERROR_CORRUPT, "not 4 bits");
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
    refuses(p, order, QK_ERROR_UNSUPPORTED, "column 69 into group 0");
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

TEST_F(Dialects, BitsandbytesStates) {
    takes(bnb(5, 33, 64), "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    EXPECT_EQ(QK_FORMAT_F16, layer.dense_format);
    takes(bnb_nested(5, 33, 32), "", QK_DIALECT_BITSANDBYTES, 5, 33, 32);
    EXPECT_EQ(256, layer.desc.scale_group_size);
    const struct {
        const char *json;
        qk_status status;
        const char *piece;
    } cases[] = {
        {"", QK_ERROR_CORRUPT, "not valid JSON"},
        {"[]", QK_ERROR_CORRUPT, "quant_type must be a string"},
        {"{\"quant_type\":\"nf4\"}", QK_ERROR_CORRUPT, "dtype must be"},
        {"{\"quant_type\":\"int8\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[5,33]}",
         QK_ERROR_UNSUPPORTED, "quant_type \"int8\""},
        {"{\"quant_type\":\"fp4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[5,33]}",
         QK_ERROR_CORRUPT, "its tensor's name differs"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":48,\"dtype\":\"float16\",\"shape\":[5,33]}",
         QK_ERROR_CORRUPT, "blocksize 48"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64.0,\"dtype\":\"float16\",\"shape\":[5,33]}",
         QK_ERROR_CORRUPT, "blocksize must be"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"int8\",\"shape\":[5,33]}",
         QK_ERROR_UNSUPPORTED, "dtype \"int8\""},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[165]}",
         QK_ERROR_CORRUPT, "shape must be"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[5,-33]}",
         QK_ERROR_CORRUPT, "size of shape"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[5,35]}",
         QK_ERROR_CORRUPT, "not 4 bits of shape [5,35]"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\","
         "\"shape\":[4294967296,4294967296,4]}",
         QK_ERROR_CORRUPT, "overflows"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\","
         "\"shape\":[4294967296,4294967296]}",
         QK_ERROR_CORRUPT, "not 4 bits"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":32,\"dtype\":\"float16\",\"shape\":[5,33]}",
         QK_ERROR_CORRUPT, "scales: the file has 12 bytes"},
        {"{\"quant_type\":\"nf4\",\"quant_type\":\"nf4\"}", QK_ERROR_CORRUPT, "duplicate"},
        {"{\"quant_type\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
         "}",
         QK_ERROR_CORRUPT, "nested deeper"},
    };
    for (const auto &c : cases) {
        Parts p = bnb(5, 33, 64);
        set_state(&p, c.json);
        refuses(p, "", c.status, c.piece);
    }
    Parts p = bnb(5, 33, 64);
    set_state(&p, p["x.weight.quant_state.bitsandbytes__nf4"].bytes + std::string(4096, ' '));
    refuses(p, "", QK_ERROR_CORRUPT, "at most 4096");
}

TEST_F(Dialects, BitsandbytesNestedStates) {
    const auto with = [](const char *tail) {
        Parts p = bnb_nested(5, 33, 32);
        set_state(&p, std::string("{\"quant_type\":\"nf4\",\"blocksize\":32,\"dtype\":\"float16\","
                                  "\"shape\":[5,33],\"nested_blocksize\":") +
                          tail + "}");
        return p;
    };
    takes(with("256,\"nested_dtype\":\"float32\",\"nested_offset\":-1e-3"), "",
          QK_DIALECT_BITSANDBYTES, 5, 33, 32);
    refuses(with("0,\"nested_dtype\":\"float32\",\"nested_offset\":0.5"), "", QK_ERROR_CORRUPT,
            "nested_blocksize must be");
    refuses(with("4294967552,\"nested_dtype\":\"float32\",\"nested_offset\":0.5"), "",
            QK_ERROR_CORRUPT, "too large");
    refuses(with("256,\"nested_dtype\":\"float16\",\"nested_offset\":0.5"), "",
            QK_ERROR_UNSUPPORTED, "nested_dtype");
    refuses(with("256,\"nested_dtype\":\"float32\""), "", QK_ERROR_CORRUPT, "nested_offset must");
    refuses(with("256,\"nested_dtype\":\"float32\",\"nested_offset\":1e39"), "", QK_ERROR_CORRUPT,
            "nested_offset must");
    refuses(with("256,\"nested_dtype\":\"float32\",\"nested_offset\":\"0\""), "", QK_ERROR_CORRUPT,
            "nested_offset must");
    Parts p = bnb_nested(5, 33, 32);
    p.remove("x.weight.nested_absmax");
    refuses(p, "", QK_ERROR_CORRUPT, "nested_absmax is absent");
    p = bnb_nested(5, 33, 32);
    p.set("x.weight.nested_absmax", "F32", {2}, zeros(8));
    refuses(p, "", QK_ERROR_CORRUPT, "second scales: the file has 8 bytes");
    p = bnb_nested(5, 33, 32);
    p.set("x.weight.absmax", "F32", {6}, zeros(24));
    refuses(p, "", QK_ERROR_CORRUPT, "absmax is F32 [6]; expected U8");
}

TEST_F(Dialects, BitsandbytesTables) {
    Parts p = bnb(5, 33, 64);
    std::vector<float> table = kNf4;
    table[7] = -0.0f;  // either zero
    p["x.weight.quant_map"].bytes = bytes_of(table);
    takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    table[3] = std::nextafter(kNf4[3], 0.0f);
    p["x.weight.quant_map"].bytes = bytes_of(table);
    refuses(p, "", QK_ERROR_UNSUPPORTED, "quant_map[3]");
    p.remove("x.weight.quant_map");
    refuses(p, "", QK_ERROR_CORRUPT, "quant_map is absent");
}

TEST_F(Dialects, BitsandbytesStorageOfOtherTypes) {
    Parts p = bnb(5, 33, 64);  // 83 bytes of codes
    p.set("x.weight", "BF16", {42, 1}, zeros(84));
    takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    p.set("x.weight", "F32", {21, 1}, zeros(84));
    takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    p.set("x.weight", "BF16", {43, 1}, zeros(86));
    refuses(p, "", QK_ERROR_CORRUPT, "not 4 bits");
    p.set("x.weight", "BF16", {41, 1}, zeros(82));
    refuses(p, "", QK_ERROR_CORRUPT, "not 4 bits");
    p.set("x.weight", "U8", {84, 1}, zeros(84));
    refuses(p, "", QK_ERROR_CORRUPT, "not 4 bits");
}

TEST_F(Dialects, DenseAndStrangers) {
    Parts p;
    p.set("x.weight", "BF16", {3, 5}, zeros(30));
    takes(p, "", QK_DIALECT_DENSE, 3, 5, 0);
    p.set("x.bias", "F32", {3}, zeros(12));
    takes(p, "", QK_DIALECT_DENSE, 3, 5, 0);
    EXPECT_NE(0, layer.has_bias);
    EXPECT_EQ(42, layer.bytes);
    p.set("x.bias", "F32", {4}, zeros(16));
    refuses(p, "", QK_ERROR_CORRUPT, "bias is F32 [4]");
    p.remove("x.bias");
    p.set("x.weight", "F8_E4M3", {3, 5}, zeros(15));
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is F8_E4M3 [3,5]");
    p.set("x.weight", "F32", {0, 5}, "");
    open(p);
    EXPECT_NE(QK_OK, layer.status);
    p.set("x.weight", "NEW", {3, 5}, zeros(7));
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is NEW");
}

TEST_F(Dialects, VerifyFindsWhatIsNotFinite) {
    const auto damaged = [&](Parts p, const char *name, size_t at, const std::string &with,
                             const char *piece) {
        p[name].bytes.replace(at, with.size(), with);
        open(p, kAwq128);
        ASSERT_EQ(QK_OK, layer.status) << layer.reason;
        EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(checkpoint, "x", &message));
        EXPECT_NE(nullptr, strstr(message.text, piece)) << message.text;
    };
    const std::string f16_inf("\x00\x7c", 2), f16_nan("\x01\xfe", 2), f32_inf("\0\0\x80\xff", 4);
    damaged(awq_gemm(64, 256, 128), "x.scales", 2 * 77, f16_inf, "scale 77 is not");
    damaged(awq_gemm(64, 256, 128), "x.scales", 0, f16_nan, "scale 0 is not");
    damaged(bnb(5, 33, 64), "x.weight.absmax", 8, f32_inf, "scale 2 is not");
    damaged(bnb_nested(5, 33, 64), "x.weight.nested_absmax", 0, f32_inf, "second scale 0");
    damaged(bnb_nested(5, 33, 64), "x.weight.nested_quant_map", 1020, f32_inf, "table 255");
    Parts p = bnb(5, 33, 64);
    p.set("x.bias", "BF16", {5}, zeros(10));
    damaged(p, "x.bias", 8, std::string("\x80\x7f", 2), "bias 4 is not");
}

}  // namespace

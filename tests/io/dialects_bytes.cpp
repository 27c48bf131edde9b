// bitsandbytes, dense layers and unknown ones: what is recognised, what is refused and why.
#include <cmath>

#include "layers.hpp"

namespace {

using namespace io_test;

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
    p = bnb(5, 33, 64);
    p.set("x.weight.quant_state.bitsandbytes__fp4", "U8", {2}, "{}");
    refuses(p, "", QK_ERROR_CORRUPT, "two quant_states");
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
    EXPECT_EQ(QK_FORMAT_NF4, layer.desc.format);
    table[3] = std::nextafter(kNf4[3], 0.0f);
    p["x.weight.quant_map"].bytes = bytes_of(table);
    takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    EXPECT_EQ(QK_FORMAT_LUT4, layer.desc.format);
    table[3] = INFINITY;
    p["x.weight.quant_map"].bytes = bytes_of(table);
    takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_NE(nullptr, strstr(message.text, "entry of the code table 3")) << message.text;
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
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is F8_E4M3");
    p.set("x.weight", "F32", {0, 5}, "");
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is [0,5]");
    p.set("x.weight", "NEW", {3, 5}, zeros(7));
    refuses(p, "", QK_ERROR_UNSUPPORTED, "weight is NEW");
}

TEST_F(Dialects, VerifyFindsWhatIsNotFinite) {
    const auto damaged =
        [&](Parts p, const char *name, size_t at, const std::string &with, const char *piece) {
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

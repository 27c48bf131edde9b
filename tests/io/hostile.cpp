// One file for every rule of the format: each gives its status and a sentence that says why.
#include <gtest/gtest.h>

#include <memory>

#include "maker.hpp"
#include "qk_io.h"
#include "refused.hpp"

namespace {

using io_test::expect_refused_from_disk;
using io_test::Maker;
using io_test::raw_file;

struct Case {
    const char *name;
    std::string bytes;
    const char *sentence;  // a piece of it
};

void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

// One tensor "t" with this dtype, shape and offsets, and this much data.
std::string entry(const char *rest, size_t data = 4) {
    return raw_file(std::string("{\"t\":{") + rest + "}}", std::string(data, '\0'));
}

std::string u64(uint64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
    return bytes;
}

std::string nested(int depth) {
    std::string text = "{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"more\":";
    text += std::string(static_cast<size_t>(depth), '[');
    text += std::string(static_cast<size_t>(depth), ']') + "}}";
    return raw_file(text, "1234");
}

std::string two(const char *a, const char *b, size_t data) {
    return raw_file(
        std::string("{\"a\":{\"dtype\":\"U8\",") + a + "},\"b\":{\"dtype\":\"U8\"," + b + "}}",
        std::string(data, '\0'));
}

std::string many_values() {
    std::string text = "{\"t\":{\"dtype\":\"U8\",\"shape\":[1";
    for (int i = 0; i < 2000; ++i) text += ",1";
    return raw_file(text + "],\"data_offsets\":[0,1]}}", "1");
}

std::string rank(int count) {
    std::string text = "{\"t\":{\"dtype\":\"U8\",\"shape\":[1";
    for (int i = 1; i < count; ++i) text += ",1";
    return raw_file(text + "],\"data_offsets\":[0,1]}}", "1");
}

std::string long_name(size_t bytes) {
    return Maker().add(std::string(bytes, 'n'), "U8", {1}, "1").build();
}

#define SHAPE4 "\"dtype\":\"U8\",\"shape\":[4]"
#define OFFSETS4 "\"data_offsets\":[0,4]"

std::vector<Case> cases() {
    return {
        {"empty", "", "at least 8"},
        {"seven_bytes", "1234567", "at least 8"},
        {"header_past_end", u64(3) + "{}", "does not fit"},
        {"header_of_all_ones", u64(UINT64_MAX) + "{}", "at most 100000000"},
        {"header_above_the_limit", u64(100000001) + "{}", "at most 100000000"},
        {"header_empty", raw_file(""), "begin with '{'"},
        {"space_before", raw_file(" {}"), "begin with '{'"},
        {"array", raw_file("[]"), "begin with '{'"},
        {"unclosed", raw_file("{"), "closing brace"},
        {"garbage_after", raw_file("{}x"), "follows the closing brace"},
        {"nul_after", raw_file(std::string("{}\0", 3)), "follows the closing brace"},
        {"name_not_quoted", raw_file("{t:{}}"), "name in quotes"},
        {"name_unclosed", raw_file("{\"t"), "closing quote"},
        {"name_ends_in_backslash", raw_file("{\"t\\"), "closing quote"},
        {"no_colon", raw_file("{\"t\"}"), "colon"},
        {"no_value", raw_file("{\"t\":}"), "not valid JSON"},
        {"value_cut", raw_file("{\"t\":{"), "middle of a value"},
        {"no_comma", raw_file("{\"__metadata__\":{} \"b\":{}}"), "comma"},
        {"comma_first", raw_file("{,}"), "name in quotes"},
        {"comma_last", raw_file("{\"__metadata__\":{},}"), "name in quotes"},
        {"brackets_crossed", raw_file("{\"t\":[}]}"), "not valid JSON"},
        {"not_utf8", raw_file("{\"t\xff\":{}}"), "not valid JSON"},
        {"overlong_utf8", raw_file("{\"t\xc0\xaf\":{}}"), "not valid JSON"},
        {"nul_in_name", raw_file("{\"t\\u0000\":{}}"), "not valid JSON"},
        {"control_in_name", raw_file("{\"t\n\":{}}"), "not valid JSON"},
        {"long_name", long_name(1025), "longer than 1024"},
        {"depth", nested(40), "nested deeper"},
        {"depth_of_millions", nested(1000000), "nested deeper"},
        {"values", many_values(), "more than 1024 values"},
        {"rank", rank(33), "rank 33; at most 32"},
        {"tensor_twice", Maker().add("t", "U8", {1}, "1").add("t", "U8", {1}, "1").build(),
         "tensor \"t\" twice"},
        {"tensor_twice_escaped",
         Maker().add("t", "U8", {1}, "1").add("\\u0074", "U8", {1}, "1").build(),
         "tensor \"t\" twice"},
        {"key_twice", entry(SHAPE4 ",\"shape\":[4]," OFFSETS4), "duplicate"},
        {"entry_is_a_number", raw_file("{\"t\":4}"), "not an object"},
        {"entry_is_null", raw_file("{\"t\":null}"), "not an object"},
        {"no_dtype", entry("\"shape\":[4]," OFFSETS4), "dtype"},
        {"dtype_is_a_number", entry("\"dtype\":8,\"shape\":[4]," OFFSETS4), "dtype"},
        {"no_shape", entry("\"dtype\":\"U8\"," OFFSETS4), "shape"},
        {"shape_is_an_object", entry("\"dtype\":\"U8\",\"shape\":{}," OFFSETS4), "shape"},
        {"no_offsets", entry(SHAPE4), "data_offsets"},
        {"one_offset", entry(SHAPE4 ",\"data_offsets\":[0]"), "[begin, end]"},
        {"three_offsets", entry(SHAPE4 ",\"data_offsets\":[0,4,4]"), "[begin, end]"},
        {"size_with_exponent", entry("\"dtype\":\"U8\",\"shape\":[4e0]," OFFSETS4), "plain"},
        {"size_with_point", entry("\"dtype\":\"U8\",\"shape\":[4.0]," OFFSETS4), "plain"},
        {"size_in_quotes", entry("\"dtype\":\"U8\",\"shape\":[\"4\"]," OFFSETS4), "plain"},
        {"size_negative", entry("\"dtype\":\"U8\",\"shape\":[-4]," OFFSETS4), "minus"},
        {"size_minus_zero", entry("\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]", 0),
         "minus"},
        {"size_true", entry("\"dtype\":\"U8\",\"shape\":[true]," OFFSETS4), "plain"},
        {"size_of_2_to_63", entry("\"dtype\":\"U8\",\"shape\":[9223372036854775808]," OFFSETS4),
         "not valid JSON"},
        {"offset_negative", entry(SHAPE4 ",\"data_offsets\":[-4,0]"), "minus"},
        {"offset_with_point", entry(SHAPE4 ",\"data_offsets\":[0,4.0]"), "plain"},
        {"shape_overflows", entry("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296]," OFFSETS4),
         "overflows"},
        {"shape_overflows_past_zero",
         entry("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]", 0),
         "overflows"},
        {"bits_overflow", entry("\"dtype\":\"F64\",\"shape\":[1152921504606846976]," OFFSETS4),
         "overflows"},
        {"half_a_byte", entry("\"dtype\":\"F4\",\"shape\":[7]," OFFSETS4), "whole bytes"},
        {"six_bits", entry("\"dtype\":\"F6_E2M3\",\"shape\":[5]," OFFSETS4), "whole bytes"},
        {"shape_too_small", entry("\"dtype\":\"U8\",\"shape\":[3]," OFFSETS4), "need 3 bytes"},
        {"shape_too_large", entry("\"dtype\":\"U8\",\"shape\":[5]," OFFSETS4), "need 5 bytes"},
        {"end_before_begin", entry(SHAPE4 ",\"data_offsets\":[4,0]"), "before they begin"},
        {"starts_late", entry(SHAPE4 ",\"data_offsets\":[4,8]", 8), "a hole"},
        {"hole",
         two("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[4],\"data_offsets\":[5,9]", 9),
         "a hole"},
        {"overlap",
         two("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[4],\"data_offsets\":[3,7]", 7),
         "an overlap"},
        {"same_place",
         two("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[4],\"data_offsets\":[0,4]", 4),
         "an overlap"},
        {"past_the_end", entry(SHAPE4 "," OFFSETS4, 3), "past the end"},
        {"past_the_end_by_far",
         entry("\"dtype\":\"NEW\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]"),
         "past the end"},
        {"bytes_left_over", entry(SHAPE4 "," OFFSETS4, 5), "but 5 follow"},
        {"only_data", raw_file("{}", "1234"), "but 4 follow"},
        {"metadata_number", raw_file("{\"__metadata__\":{\"a\":1}}"), "strings to strings"},
        {"metadata_object", raw_file("{\"__metadata__\":{\"a\":{}}}"), "strings to strings"},
        {"metadata_array", raw_file("{\"__metadata__\":[]}"), "__metadata__"},
        {"metadata_key_twice", raw_file("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}"),
         "\"a\" twice"},
        {"metadata_twice", raw_file("{\"__metadata__\":{},\"__metadata__\":{}}"), "twice"},
    };
}

class Hostile : public testing::TestWithParam<Case> {};

TEST_P(Hostile, IsRefusedWithASentence) {
    const Case &c = GetParam();
    // Exactly as large as the file: what reads past it is seen by the sanitizers.
    const size_t size = c.bytes.size();
    std::unique_ptr<char[]> bytes(new char[size]);
    memcpy(bytes.get(), c.bytes.data(), size);
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(bytes.get(), size, nullptr, 0, nullptr,
                                                          &checkpoint, &message));
    EXPECT_EQ(nullptr, checkpoint);
    EXPECT_NE(nullptr, strstr(message.text, c.sentence)) << message.text;
    EXPECT_NE('\0', message.text[0]);
}

TEST_P(Hostile, IsRefusedFromDiskBothWays) {
    expect_refused_from_disk("model.safetensors", GetParam().bytes, QK_ERROR_CORRUPT);
}

INSTANTIATE_TEST_SUITE_P(Rules, Hostile, testing::ValuesIn(cases()),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Limits, AreTheCallers) {
    const std::string bytes = Maker().add("a", "U8", {1}, "1").add("b", "U8", {1}, "2").build();
    qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    options.max_tensors = 1;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                          &options, &checkpoint, &message));
    EXPECT_NE(nullptr, strstr(message.text, "more than 1 tensors")) << message.text;
    options.max_tensors = 2;
    options.max_header_bytes = static_cast<int64_t>(bytes.size() - 8 - 2 - 1);
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                          &options, &checkpoint, &message));
    options.max_header_bytes += 1;
    options.max_json_depth = 2;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                          &options, &checkpoint, &message));
    options.max_json_depth = 3;
    EXPECT_EQ(QK_OK, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0, &options,
                                               &checkpoint, &message))
        << message.text;
    qk_checkpoint_destroy(checkpoint);
}

// What is odd but legal is read.
TEST(Legal, ScalarsEmptyTensorsSpacesAndUnknownTypes) {
    const std::string header =
        "{ \"b\" : {\"dtype\":\"F8_NEW\",\"shape\":[3],\"data_offsets\":[4,6],\"x\":[{}]},\n"
        "\"__metadata__\":{\"z\":\"\\u00e9\",\"a\":\"\"},"
        "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[6,8]},"
        "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[6,6]} } \n\t  ";
    const std::string bytes = raw_file(header, "12345678");
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0, nullptr,
                                               &checkpoint, &message))
        << message.text;
    EXPECT_STREQ("", message.text);
    ASSERT_EQ(4, qk_checkpoint_tensor_count(checkpoint));
    const char *names[] = {"b", "f4", "none", "s"};
    qk_file_tensor t;
    for (int64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(QK_OK, qk_checkpoint_tensor(checkpoint, i, &t));
        EXPECT_STREQ(names[i], t.name);
    }
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "b", &t));
    EXPECT_EQ(QK_DTYPE_UNKNOWN, t.dtype);
    EXPECT_STREQ("F8_NEW", t.dtype_name);
    EXPECT_EQ(2, t.bytes);
    EXPECT_EQ(0, memcmp(t.data, "56", 2));
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "s", &t));
    EXPECT_EQ(0, t.rank);
    EXPECT_EQ(4, t.bytes);
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "none", &t));
    EXPECT_EQ(0, t.bytes);
    EXPECT_EQ(7, t.shape[1]);
    ASSERT_EQ(2, qk_checkpoint_metadata_count(checkpoint));
    const char *key, *value;
    ASSERT_EQ(QK_OK, qk_checkpoint_metadata(checkpoint, 1, &key, &value));
    EXPECT_STREQ("z", key);
    EXPECT_STREQ("\xc3\xa9", value);
    qk_checkpoint_destroy(checkpoint);
}

TEST(Messages, HoldNoControlCharactersOfTheFile) {
    const std::string bytes = raw_file("{\"\\u001b[31m\\u009b\\u007f\":4}");
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                          nullptr, &checkpoint, &message));
    EXPECT_NE(nullptr, strstr(message.text, "\"?[31m???\"")) << message.text;
}

}  // namespace

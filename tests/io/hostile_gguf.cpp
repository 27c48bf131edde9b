// GGUF: each rule of the format broken once, with its status and sentence; what is odd but legal;
// models in several files.
#include <gtest/gtest.h>

#include <memory>

#include "maker.hpp"
#include "maker_gguf.hpp"
#include "qk_io.h"
#include "refused.hpp"

namespace {

using io_test::expect_refused_from_disk;
using io_test::Folder;
using io_test::Gguf;
using io_test::gguf_string;
using io_test::gguf_text;
using io_test::gguf_u32;
using io_test::little;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_K = 12, kIQ2_XXS = 16, kI8 = 24;

struct Case {
    const char *name;
    std::string bytes;
    const char *sentence;  // a piece of it
    qk_status status = QK_ERROR_CORRUPT;
};

void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

std::string counts(uint64_t tensors, uint64_t pairs) {
    return "GGUF" + little(3, 4) + little(tensors, 8) + little(pairs, 8);
}
std::string version(uint32_t number) {
    Gguf file;
    file.version = number;
    return file.build();
}
std::string value(const std::string &bytes) { return Gguf().pair("a", bytes).build(); }
std::string array(uint32_t type, uint64_t count, const std::string &bytes = "") {
    return value(little(9, 4) + little(type, 4) + little(count, 8) + bytes);
}
std::string aligned_to(const std::string &value) {
    return Gguf().pair("general.alignment", value).tensor("t", {4}, kI8, "1234").build();
}
std::string shape(const std::vector<uint64_t> &ne, uint32_t type = kF32) {
    return Gguf().info("t", ne, type, 0).build() + std::string(64, '\0');
}
std::string two(uint64_t second, size_t data) {
    Gguf file;
    file.info("a", {4}, kF32, 0).info("b", {4}, kF32, second);
    return file.build() + std::string(data, '\0');
}
std::string cut(const std::string &bytes, size_t by) { return bytes.substr(0, bytes.size() - by); }
std::string plain() { return Gguf().tensor("t", {32}, kF32, std::string(128, '1')).build(); }

constexpr uint64_t kHuge = uint64_t{1} << 62;

std::vector<Case> cases() {
    return {
        {"magic_alone", "GGUF", "the version needs 4 bytes"},
        {"version_0", version(0), "version 0", QK_ERROR_UNSUPPORTED},
        {"version_1", version(1), "version 1; qk reads versions 2 and 3", QK_ERROR_UNSUPPORTED},
        {"version_4", version(4), "version 4", QK_ERROR_UNSUPPORTED},
        {"big_endian", version(3u << 24), "big-endian", QK_ERROR_UNSUPPORTED},
        {"no_counts", "GGUF" + little(3, 4), "the number of tensors"},
        {"tensors_without_end", counts(UINT64_MAX, 0), "a tensor's name needs 8 bytes where 0"},
        {"pairs_without_end", counts(0, UINT64_MAX), "a key needs 8 bytes where 0"},
        {"key_past_the_end", counts(0, 1) + little(65535, 8), "a key needs 65535 bytes"},
        {"key_of_exabytes", counts(0, 1) + little(UINT64_MAX, 8), "longer than 65535"},
        {"key_empty", Gguf().pair("", gguf_u32(1)).build(), "a key is empty"},
        {"key_with_zero", Gguf().pair(std::string("a\0b", 3), gguf_u32(1)).build(), "zero byte"},
        {"key_not_utf8", Gguf().pair("a\xff", gguf_u32(1)).build(), "not UTF-8"},
        {"key_twice", Gguf().pair("a", gguf_u32(1)).pair("a", gguf_u32(1)).build(), "\"a\" is th"},
        {"value_of_no_type", value(little(13, 4)), "has type 13; the last one is 12"},
        {"value_cut", counts(0, 1) + gguf_text("a") + little(10, 4) + "1234567", "needs 8 bytes"},
        {"string_of_exabytes", value(little(8, 4) + little(UINT64_MAX, 8)), "where"},
        {"string_not_utf8", value(gguf_string("\xc0\xaf")), "not UTF-8"},
        {"string_with_zero", value(gguf_string(std::string("\0", 1))), "zero byte"},
        {"array_of_arrays", array(9, 1), "an array of arrays"},
        {"array_of_no_type", array(13, 1), "an array of an unknown type"},
        {"array_without_end", array(10, UINT64_MAX), "where"},
        {"array_whose_bytes_wrap", array(10, uint64_t{1} << 61), "where"},
        {"array_of_strings_without_end", array(8, UINT64_MAX), "where"},
        {"array_of_strings_cut", array(8, 2, little(1, 8) + "x"), "where"},
        {"alignment_0", aligned_to(gguf_u32(0)), "general.alignment is 0"},
        {"alignment_24", aligned_to(gguf_u32(24)), "a power of two"},
        {"alignment_of_gigabytes", aligned_to(gguf_u32(1u << 31)), "up to 1048576"},
        {"alignment_is_text", aligned_to(gguf_string("32")), "no u32"},
        {"alignment_is_u64", aligned_to(little(10, 4) + little(32, 8)), "no u32"},
        {"name_long", Gguf().tensor(std::string(1025, 'n'), {4}, kI8, "1234").build(), "1024"},
        {"name_with_zero", Gguf().tensor(std::string("a\0", 2), {4}, kI8, "1234").build(), "zero"},
        {"name_not_utf8", Gguf().tensor("\x80", {4}, kI8, "1234").build(), "not UTF-8"},
        {"name_twice", Gguf().tensor("t", {4}, kI8, "1234").tensor("t", {4}, kI8, "1234").build(),
         "\"t\" twice"},
        {"rank_5", shape({1, 1, 1, 1, 1}), "rank 5; at most 4"},
        {"rank_of_billions", counts(1, 0) + gguf_text("t") + little(UINT32_MAX, 4), "at most 4"},
        {"size_negative", shape({UINT64_MAX}), "2^63 or more"},
        {"size_wraps", shape({kHuge, 4}), "overflows"},
        {"size_wraps_to_little", shape({uint64_t{1} << 32, uint64_t{1} << 32, 4}), "overflows"},
        {"blocks_wrap", shape({kHuge, 8}, kQ4_0), "overflows"},
        {"size_past_the_end", shape({kHuge >> 3}), "past the end"},
        {"no_whole_block", shape({48}, kQ4_0), "rows of 48 are no blocks of 32, Q4_0's"},
        {"no_whole_superblock", shape({128}, kQ4_K), "rows of 128 are no blocks of 256"},
        {"info_cut", cut(counts(1, 0) + gguf_text("t") + little(1, 4) + little(4, 8), 3), "where"},
        {"offset_unaligned", two(17, 64), "no multiple of the alignment 32"},
        {"offset_negative", two(0 - uint64_t{32}, 64), "no multiple"},
        {"hole", two(64, 128), "a hole"},
        {"overlap",
         Gguf().info("a", {16}, kF32, 0).info("b", {4}, kF32, 32).build() + std::string(96, '\0'),
         "an overlap"},
        {"same_place", two(0, 64), "an overlap"},
        {"starts_late", Gguf().info("t", {4}, kF32, 32).build() + std::string(64, '\0'), "a hole"},
        {"data_cut", cut(plain(), 1), "past the end of the file: it is cut short"},
        {"no_data", cut(plain(), 128), "past the end"},
        {"no_padding_before_the_data", cut(plain(), 130), "past the end"},
        {"bytes_left_over", plain() + "x", "but 129 follow"},
        {"unknown_type_at_the_end", Gguf().info("t", {4}, 99, 32).build(), "a hole"},
        {"parts_none", Gguf().pair("split.count", gguf_string("2")).build(), "is a string"},
        {"part_past_the_last",
         Gguf().pair("split.count", gguf_u32(2)).pair("split.no", gguf_u32(2)).build(),
         "part 3 of 2"},
        {"part_from_memory", Gguf().pair("split.count", gguf_u32(2)).build(), "is part 1 of 2",
         QK_ERROR_UNSUPPORTED},
    };
}

class HostileGguf : public testing::TestWithParam<Case> {};

TEST_P(HostileGguf, IsRefusedWithASentence) {
    const Case &c = GetParam();
    // Exactly as large as the file: what reads past it is seen by the sanitizers.
    const size_t size = c.bytes.size();
    std::unique_ptr<char[]> bytes(new char[size]);
    memcpy(bytes.get(), c.bytes.data(), size);
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    EXPECT_EQ(c.status, qk_checkpoint_open_memory(bytes.get(), size, nullptr, 0, nullptr,
                                                  &checkpoint, &message));
    EXPECT_EQ(nullptr, checkpoint);
    EXPECT_NE(nullptr, strstr(message.text, c.sentence)) << message.text;
}

TEST_P(HostileGguf, IsRefusedFromDiskBothWays) {
    expect_refused_from_disk("model.gguf", GetParam().bytes, GetParam().status);
}

INSTANTIATE_TEST_SUITE_P(Rules, HostileGguf, testing::ValuesIn(cases()),
                         [](const auto &info) { return std::string(info.param.name); });

// Every prefix of a file with one of everything is refused, and never read past its end.
TEST(GgufCut, AnywhereIsRefused) {
    Gguf file;
    file.pair("general.alignment", gguf_u32(64)).pair("name", gguf_string("x"));
    file.pair("list", little(9, 4) + little(8, 4) + little(2, 8) + gguf_text("a") + gguf_text("b"));
    file.alignment = 64;
    file.tensor("a.weight", {32, 2}, kQ4_0, std::string(36, 'a'));
    file.tensor("b", {64}, kI8, std::string(64, 'b'));
    const std::string whole = file.build();
    for (size_t size = 4; size <= whole.size(); ++size) {
        std::unique_ptr<char[]> bytes(new char[size]);
        memcpy(bytes.get(), whole.data(), size);
        qk_checkpoint *checkpoint = nullptr;
        EXPECT_EQ(
            size < whole.size() ? QK_ERROR_CORRUPT : QK_OK,
            qk_checkpoint_open_memory(bytes.get(), size, nullptr, 0, nullptr, &checkpoint, nullptr))
            << size;
        qk_checkpoint_destroy(checkpoint);
    }
}

struct Opened {
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
    qk_status status;
    explicit Opened(const std::string &path)
        : status(qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message)) {}
    Opened(const Opened &) = delete;
    ~Opened() { qk_checkpoint_destroy(checkpoint); }
    std::string metadata(const std::string &wanted) const {
        const char *key, *value;
        for (int64_t i = 0; i < qk_checkpoint_metadata_count(checkpoint); ++i) {
            qk_checkpoint_metadata(checkpoint, i, &key, &value);
            if (wanted == key) return value;
        }
        return "absent";
    }
};

TEST(LegalGguf, ValuesAreTexts) {
    Gguf file;
    file.version = 2;
    file.pair("u8", little(0, 4) + "\xff").pair("i8", little(1, 4) + "\x80");
    file.pair("u16", little(2, 4) + little(65535, 2)).pair("i16", little(3, 4) + little(65535, 2));
    file.pair("u32", gguf_u32(4294967295u)).pair("i32", little(5, 4) + little(1u << 31, 4));
    file.pair("f32", little(6, 4) + little(0x3dcccccd, 4)).pair("bool", little(7, 4) + "\1");
    file.pair("text", gguf_string("h\xc3\xa9")).pair("no text", gguf_string(""));
    file.pair("list", little(9, 4) + little(5, 4) + little(3, 8) + std::string(12, 'x'));
    file.pair("names", little(9, 4) + little(8, 4) + little(1, 8) + gguf_text(std::string(1, 0)));
    file.pair("u64", little(10, 4) + little(UINT64_MAX, 8));
    file.pair("i64", little(11, 4) + little(UINT64_MAX, 8));
    file.pair("f64", little(12, 4) + little(0x3fb999999999999a, 8));
    const Folder folder;
    folder.write("m.gguf", file.build());
    const Opened opened(folder.path());
    ASSERT_EQ(QK_OK, opened.status) << opened.message.text;
    const char *const expected[][2] = {{"u8", "255"},
                                       {"i8", "-128"},
                                       {"u16", "65535"},
                                       {"i16", "-1"},
                                       {"u32", "4294967295"},
                                       {"i32", "-2147483648"},
                                       {"f32", "0.100000001"},
                                       {"bool", "true"},
                                       {"text", "h\xc3\xa9"},
                                       {"no text", ""},
                                       {"list", "[3 i32s]"},
                                       {"names", "[1 strings]"},
                                       {"u64", "18446744073709551615"},
                                       {"i64", "-1"},
                                       {"f64", "0.10000000000000001"}};
    for (const auto &pair : expected) EXPECT_EQ(pair[1], opened.metadata(pair[0])) << pair[0];
}

// One of a type that is not known yet has the bytes up to the next; nothing else suffers.
TEST(LegalGguf, TypesThatAreNotLoadedLeaveTheRest) {
    Gguf file;
    file.tensor("new.weight", {7, 3}, 99, std::string(32, 'n'));
    file.tensor("old.weight", {256, 2}, kIQ2_XXS, std::string(132, 'o'));
    file.tensor("dense.weight", {3, 2}, kF16, std::string(12, '\0'));
    file.tensor("dense.bias", {2}, kF32, std::string(8, '\0'));
    file.tensor("none", {0, 7}, kF32, "").tensor("scalar", {}, kF32, "1234");
    const Folder folder;
    folder.write("m.gguf", file.build().substr(0, file.build().size() - 28));  // no last padding
    folder.write("config.json", R"({"quantization_config": {"quant_method": "awq"}})");
    const Opened opened(folder.path());
    ASSERT_EQ(QK_OK, opened.status) << opened.message.text;
    const qk_checkpoint *c = opened.checkpoint;
    EXPECT_EQ(6, qk_checkpoint_tensor_count(c));
    qk_file_tensor t;
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(c, "new.weight", &t));
    EXPECT_STREQ("type 99", t.dtype_name);
    EXPECT_EQ(QK_DTYPE_UNKNOWN, t.dtype);
    EXPECT_EQ(32, t.bytes);
    EXPECT_EQ(3, t.shape[0]);
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(c, "old.weight", &t));
    EXPECT_EQ(QK_DTYPE_GGUF + static_cast<qk_dtype>(kIQ2_XXS), t.dtype);
    EXPECT_STREQ("IQ2_XXS", qk_dtype_name(t.dtype));
    EXPECT_EQ(132, t.bytes);
    ASSERT_EQ(3, qk_checkpoint_layer_count(c));
    qk_layer layer;
    ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(c, "dense", &layer, sizeof layer));
    EXPECT_EQ(QK_OK, layer.status) << layer.reason;
    EXPECT_EQ(QK_DIALECT_DENSE, layer.dialect);
    EXPECT_EQ(2, layer.desc.shape[0]);
    EXPECT_EQ(3, layer.desc.shape[1]);
    EXPECT_EQ(1, layer.has_bias);
    for (const char *name : {"new", "old"}) {
        ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(c, name, &layer, sizeof layer));
        EXPECT_EQ(QK_ERROR_UNSUPPORTED, layer.status);
    }
    EXPECT_NE(nullptr, strstr(layer.reason, "IQ2_XXS")) << layer.reason;
    EXPECT_STREQ("IQ2_XXS", qk_checkpoint_layer_method(c, "old"));
    const char *method;
    EXPECT_EQ(QK_OK, qk_checkpoint_method(c, &method, nullptr));
    EXPECT_STREQ("gguf", method);
}

TEST(LegalGguf, ScalesThatAreNoNumbersAreFoundByVerifying) {
    Gguf file;
    const std::string half("\0\x3c", 2), infinite("\0\x7c", 2), nan("\1\xfc", 2);
    const std::string codes(16, 'c');
    file.tensor("good.weight", {64, 1}, kQ4_0, half + codes + half + codes);
    file.tensor("infinite.weight", {64, 1}, kQ4_0, half + codes + infinite + codes);
    file.tensor("nan.weight", {32, 2}, 3, half + half + codes + half + nan + codes);
    const Folder folder;
    folder.write("m.gguf", file.build());
    const Opened opened(folder.path());
    ASSERT_EQ(QK_OK, opened.status) << opened.message.text;
    qk_io_message message = {};
    EXPECT_EQ(QK_OK, qk_checkpoint_verify_layer(opened.checkpoint, "good", &message));
    EXPECT_EQ(QK_ERROR_CORRUPT,
              qk_checkpoint_verify_layer(opened.checkpoint, "infinite", &message));
    EXPECT_NE(nullptr, strstr(message.text, "the scale of block 1")) << message.text;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_verify_layer(opened.checkpoint, "nan", &message));
    EXPECT_NE(nullptr, strstr(message.text, "the minimum of block 1")) << message.text;
}

// Part `number` (from 0) of `count` with one tensor.
std::string part(uint32_t number, uint32_t count, uint32_t tensors) {
    Gguf file;
    file.pair("split.no", little(2, 4) + little(number, 2));
    file.pair("split.count", little(2, 4) + little(count, 2));
    file.pair("split.tensors.count", little(5, 4) + little(tensors, 4));
    return file.tensor("t" + std::to_string(number), {4}, kI8, "1234").build();
}

TEST(GgufParts, AnyOfThemOpensAll) {
    const Folder folder;
    for (uint32_t i = 0; i < 3; ++i) {
        folder.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", part(i, 3, 3));
    }
    for (const char *name : {"", "m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
        const Opened opened(folder.path(name));
        ASSERT_EQ(QK_OK, opened.status) << opened.message.text;
        EXPECT_EQ(3, qk_checkpoint_tensor_count(opened.checkpoint));
        qk_file_tensor t;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(opened.checkpoint, "t1", &t));
        EXPECT_STREQ("m-00002-of-00003.gguf", t.file);
    }
}

TEST(GgufParts, ThatDoNotBelongTogetherAreRefused) {
    struct Bad {
        std::string second, first_name, said;
        qk_status status;
    };
    const std::string name = "m-00001-of-00002.gguf";
    const Bad bads[] = {
        {part(1, 2, 3), name, "2 tensors in all parts; the header says 3", QK_ERROR_CORRUPT},
        {part(1, 2, 2), name, "not what its name or the other parts say", QK_ERROR_CORRUPT},
        {part(0, 2, 3), name, "its header says part 1 of 2", QK_ERROR_CORRUPT},
        {part(1, 3, 3), name, "its header says part 2 of 3", QK_ERROR_CORRUPT},
        {"xxxx", name, "does not begin as a GGUF file", QK_ERROR_CORRUPT},
        {"", name, "does not begin as a GGUF file", QK_ERROR_CORRUPT},
        {part(1, 2, 3), "m.gguf", "where names end as in -00001-of-00002.gguf",
         QK_ERROR_UNSUPPORTED},
        {part(1, 2, 3), "m-00002-of-00002.gguf", "its header says part 1 of 2", QK_ERROR_CORRUPT},
    };
    for (const Bad &bad : bads) {
        const Folder folder;
        folder.write("m-00002-of-00002.gguf", bad.second);
        folder.write(bad.first_name, part(0, 2, 3));
        const Opened opened(folder.path(bad.first_name));
        EXPECT_EQ(bad.status, opened.status) << bad.said;
        EXPECT_NE(nullptr, strstr(opened.message.text, bad.said.c_str())) << opened.message.text;
    }
    const Folder folder;
    folder.write(name, part(0, 2, 2));
    const Opened opened(folder.path(name));
    EXPECT_EQ(QK_ERROR_FILE, opened.status) << opened.message.text;
}

TEST(GgufDirectories, HoldOneModel) {
    const Folder folder;
    folder.write("a.gguf", plain());
    EXPECT_EQ(QK_OK, Opened(folder.path()).status);
    folder.write("b.gguf", plain());
    const Opened two(folder.path());
    EXPECT_EQ(QK_ERROR_FILE, two.status);
    EXPECT_NE(nullptr, strstr(two.message.text, "2 other *.gguf instead of one"))
        << two.message.text;
    folder.write("c.safetensors", io_test::raw_file("{}"));
    EXPECT_EQ(QK_OK, Opened(folder.path()).status);
}

}  // namespace

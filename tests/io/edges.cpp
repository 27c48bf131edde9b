// One step past what is accepted, and answers that depend on an order: cases that tests with round
// numbers let through.
#include "layers.hpp"

namespace {

using namespace io_test;

TEST_F(Dialects, BitsThatAreNotFour) {
    for (const char *bits : {"2", "3", "5", "8"}) {
        const std::string config =
            std::string("{\"quant_method\":\"awq\",\"group_size\":128,\"bits\":") + bits + "}";
        refuses(awq_gemm(64, 256, 128), config, QK_ERROR_UNSUPPORTED, "bits");
    }
}

TEST_F(Dialects, BlocksOfBitsandbytesStartAt32) {
    refuses(bnb(4, 32, 16), "", QK_ERROR_CORRUPT, "blocksize 16");
    takes(bnb(4, 4096, 4096), "", QK_DIALECT_BITSANDBYTES, 4, 4096, 4096);
    Parts p = bnb(4, 8192, 4096);
    set_state(&p,
              "{\"quant_type\":\"nf4\",\"blocksize\":8192,\"dtype\":\"float16\","
              "\"shape\":[4,8192]}");
    refuses(p, "", QK_ERROR_CORRUPT, "blocksize 8192");
}

TEST_F(Dialects, EveryEntryOfTheTableIsCompared) {
    for (const size_t entry : {size_t{0}, size_t{8}, size_t{15}}) {
        Parts p = bnb(5, 33, 64);
        std::vector<float> table = kNf4;
        table[entry] *= 0.5f;
        p["x.weight.quant_map"].bytes = bytes_of(table);
        takes(p, "", QK_DIALECT_BITSANDBYTES, 5, 33, 64);
        EXPECT_EQ(QK_FORMAT_LUT4, layer.desc.format) << entry;
    }
}

TEST_F(Dialects, ActorderAsABoolean) {
    const std::string start = "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32,";
    const Parts p = compressed(9, 70, 3);
    refuses(p, ct_config(start + "\"actorder\":true"), QK_ERROR_CORRUPT, "without a weight_g_idx");
    takes(p, ct_config(start + "\"actorder\":false"), QK_DIALECT_COMPRESSED_TENSORS, 9, 70, 32);
}

TEST_F(Dialects, ConfigGroupsThatDoNotAgree) {
    const auto group = [](const char *name, int size) {
        return std::string("\"") + name +
               "\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\","
               "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":" +
               std::to_string(size) + "}}";
    };
    const auto config = [&](int first, int second) {
        return "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
               "\"config_groups\":{" +
               group("a", first) + "," + group("b", second) + "}}";
    };
    refuses(compressed(9, 100, 2), config(64, 80), QK_ERROR_UNSUPPORTED, "both give 2 groups");
    takes(compressed(9, 100, 2), config(64, 32), QK_DIALECT_COMPRESSED_TENSORS, 9, 100, 64);
    takes(compressed(9, 60, 1), config(64, 80), QK_DIALECT_COMPRESSED_TENSORS, 9, 60, QK_GROUP_ROW);
}

TEST_F(Dialects, GroupsLongerThanQkTakes) {
    const auto config = [](int64_t group) {
        return "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":" + std::to_string(group) +
               "}";
    };
    takes(gptq(8, 4096, 4096), config(4096), QK_DIALECT_GPTQ_V1, 8, 4096, 4096);
    takes(gptq(8, 4104, 8192), config(8192), QK_DIALECT_GPTQ_V1, 8, 4104, QK_GROUP_ROW);
    refuses(gptq(8, 8208, 4104), config(4104), QK_ERROR_UNSUPPORTED, "groups of 4104");
}

// A layer that is stored twice is found quantized.
TEST_F(Dialects, QuantizedBeforeADenseLeftover) {
    Parts p = gptq(64, 256, 128);
    p.set("x.weight", "F16", {64, 256}, zeros(64 * 256 * 2));
    takes(p, gptq_config(""), QK_DIALECT_GPTQ_V1, 64, 256, 128);
    p = compressed(8, 64, 2);
    p.set("x.weight", "F16", {8, 64}, zeros(8 * 64 * 2));
    takes(p, "", QK_DIALECT_COMPRESSED_TENSORS, 8, 64, 32);
}

// What a file was closed with is not what the next one is told.
TEST_F(Dialects, ANoteIsOfItsLayerAlone) {
    Parts p = gptq(64, 256, 128);
    p["x.qzeros"].bytes[5] = '\xff';  // zeros stored as 15
    for (const char *name : {"qweight", "qzeros", "scales", "g_idx"}) {
        Parts::Part part = gptq(64, 256, 128)[std::string("x.") + name];
        p.set(std::string("y.") + name, part.dtype, part.shape, part.bytes);
    }
    open(p, gptq_config(""));
    ASSERT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    EXPECT_NE('\0', message.text[0]);
    ASSERT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "y", &message));
    EXPECT_STREQ("", message.text);
}

class Written : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context)); }
    void TearDown() override { qk_context_destroy(context); }

    // A nested layer whose offset is `offset`, written and read again.
    void write_offset(float offset) {
        const std::string path = folder.path("offset.safetensors");
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_NF4, desc.layout = QK_LAYOUT_ROW_HIGH, desc.group_size = 64;
        desc.scale_format = QK_FORMAT_LUT8, desc.rank = 2, desc.shape[0] = 2, desc.shape[1] = 64;
        qk_tensor *tensor = nullptr;
        ASSERT_EQ(QK_OK, qk_tensor_create(context, &desc, &tensor));
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            size_t size = 0;
            ASSERT_EQ(QK_OK, qk_tensor_plane_bytes(&desc, plane, &size));
            std::string content(size, '\0');
            if (plane == QK_PLANE_SCALE_BIAS) memcpy(&content[0], &offset, sizeof offset);
            if (size == 0) continue;
            ASSERT_EQ(QK_OK, qk_tensor_upload(context, tensor, plane, content.data(), size));
        }
        qk_writer *writer = nullptr;
        ASSERT_EQ(QK_OK, qk_writer_create(path.c_str(), nullptr, &writer, &message));
        ASSERT_EQ(QK_OK, qk_writer_declare_layer(writer, QK_DIALECT_BITSANDBYTES, "x", &desc,
                                                 QK_FORMAT_F16, &message));
        EXPECT_EQ(QK_OK, qk_writer_write_layer(writer, context, "x", tensor, &message))
            << message.text;
        EXPECT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
        qk_writer_destroy(writer);
        qk_tensor_destroy(tensor);
        qk_checkpoint *again = nullptr;
        ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &again, &message));
        qk_tensor *back = nullptr;
        EXPECT_EQ(QK_OK, qk_checkpoint_load(again, context, "x", 0, &back, nullptr, &message))
            << message.text;
        float read = 0;
        qk_tensor_download(context, back, QK_PLANE_SCALE_BIAS, &read, sizeof read);
        EXPECT_EQ(0, memcmp(&offset, &read, sizeof read)) << offset << " became " << read;
        qk_tensor_destroy(back);
        qk_checkpoint_destroy(again);
    }

    Folder folder;
    qk_context *context = nullptr;
    qk_io_message message = {};
};

TEST_F(Written, OffsetsOfEveryLength) {
    for (const float offset : {0.0f, -0.0f, 1.0f, 0.1f, -0x1.234568p-30f, -0x1.fffffep-126f,
                               0x1p-149f, -0x1.234568p-140f, 0x1.fffffep127f}) {
        write_offset(offset);
    }
}

TEST_F(Written, TheConfigurationSaysWhetherScalesAreNested) {
    const std::string from = folder.path("in.safetensors"), config = folder.path("config.json");
    folder.write("in.safetensors", bnb(5, 33, 64).build());
    qk_checkpoint *checkpoint = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_open(from.c_str(), nullptr, &checkpoint, &message));
    for (const bool nested : {false, true}) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_NF4, desc.layout = QK_LAYOUT_ROW_HIGH, desc.group_size = 64;
        desc.scale_format = nested ? QK_FORMAT_LUT8 : QK_FORMAT_F32;
        desc.rank = 2, desc.shape[0] = 5, desc.shape[1] = 33;
        ASSERT_EQ(QK_OK,
                  qk_checkpoint_write_config(checkpoint, config.c_str(), QK_DIALECT_BITSANDBYTES,
                                             &desc, QK_FORMAT_F16, nullptr, 0, &message))
            << message.text;
        const std::string text = read_file(config);
        const std::string wanted =
            std::string("\"bnb_4bit_use_double_quant\": ") + (nested ? "true" : "false");
        EXPECT_NE(std::string::npos, text.find(wanted)) << text;
    }
    qk_checkpoint_destroy(checkpoint);
}

TEST_F(Written, NamesAtTheEndsOfUtf8) {
    const struct {
        const char *name;
        bool valid;
    } cases[] = {{"\x7f", true},
                 {"\xc2\x80", true},
                 {"\xc1\xbf", false},
                 {"\xdf\xbf", true},
                 {"\xe0\xa0\x80", true},
                 {"\xe0\x9f\xbf", false},
                 {"\xed\x9f\xbf", true},
                 {"\xed\xa0\x80", false},
                 {"\xed\xbf\xbf", false},
                 {"\xee\x80\x80", true},
                 {"\xf0\x90\x80\x80", true},
                 {"\xf0\x8f\xbf\xbf", false},
                 {"\xf4\x8f\xbf\xbf", true},
                 {"\xf4\x90\x80\x80", false},
                 {"\xe2\x82", false}};
    qk_writer *writer = nullptr;
    ASSERT_EQ(QK_OK,
              qk_writer_create(folder.path("u.safetensors").c_str(), nullptr, &writer, &message));
    const int64_t shape[] = {1};
    for (const auto &c : cases) {
        EXPECT_EQ(c.valid ? QK_OK : QK_ERROR_ARGUMENT,
                  qk_writer_declare(writer, c.name, QK_DTYPE_U8, 1, shape, &message))
            << message.text;
    }
    qk_writer_destroy(writer);
}

}  // namespace

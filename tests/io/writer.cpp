// The writer gives back the packages' own bytes, and never half a file.
#include <gtest/gtest.h>

#include <cstring>

#include "maker.hpp"
#include "qk_io.h"

namespace {

using io_test::bytes_of;
using io_test::Folder;
using io_test::read_file;

class Writer : public testing::Test {
  protected:
    void SetUp() override {
        path = folder.path("out.safetensors");
        ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
    }
    void TearDown() override {
        qk_writer_destroy(writer);
        qk_checkpoint_destroy(checkpoint);
        qk_context_destroy(context);
    }
    void create() {
        ASSERT_EQ(QK_OK, qk_writer_create(path.c_str(), nullptr, &writer, &message))
            << message.text;
    }
    qk_status declare(const char *name, qk_dtype dtype, std::vector<int64_t> shape) {
        return qk_writer_declare(writer, name, dtype, static_cast<int32_t>(shape.size()),
                                 shape.data(), &message);
    }
    qk_status write(const char *name, const std::string &bytes) {
        return qk_writer_write(writer, name, bytes.data(), bytes.size(), &message);
    }
    void said(const char *piece) {
        EXPECT_NE(nullptr, strstr(message.text, piece)) << message.text;
    }
    int64_t files_beside() const { return int64_t(folder.names().size()); }

    Folder folder;
    std::string path;
    qk_context *context = nullptr;
    qk_writer *writer = nullptr;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
};

// Bytes of the reference writer's own unit test (huggingface/safetensors, tensor.rs).
TEST_F(Writer, GivesTheReferenceWritersBytes) {
    create();
    ASSERT_EQ(QK_OK, declare("attn0", QK_DTYPE_F32, {1, 1, 2, 3})) << message.text;
    ASSERT_EQ(QK_OK, write("attn0", bytes_of<float>({0, 1, 2, 3, 4, 5}))) << message.text;
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    const std::string header =
        "{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}}       ";
    EXPECT_EQ(72u, header.size());
    EXPECT_EQ(io_test::raw_file(header, bytes_of<float>({0, 1, 2, 3, 4, 5})), read_file(path));
}

TEST_F(Writer, EmptyFileWithMetadata) {
    create();
    ASSERT_EQ(QK_OK, qk_writer_metadata(writer, "framework", "pt", &message));
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    EXPECT_EQ(io_test::raw_file("{\"__metadata__\":{\"framework\":\"pt\"}}     "), read_file(path));
}

TEST_F(Writer, SortsByWidthThenNameAndTakesAnyOrderOfData) {
    create();
    ASSERT_EQ(QK_OK, declare("b", QK_DTYPE_U8, {2}));
    ASSERT_EQ(QK_OK, declare("z", QK_DTYPE_F16, {1}));
    ASSERT_EQ(QK_OK, declare("a", QK_DTYPE_U8, {1}));
    ASSERT_EQ(QK_OK, declare("e", QK_DTYPE_I64, {0, 3}));
    ASSERT_EQ(QK_OK, declare("\xc3\xa9\"\\\n", QK_DTYPE_I64, {1}));
    ASSERT_EQ(QK_OK, write("b", "B"));
    ASSERT_EQ(QK_OK, write("a", "A"));
    ASSERT_EQ(QK_OK, write("b", "b"));
    ASSERT_EQ(QK_OK, write("\xc3\xa9\"\\\n", "12345678"));
    ASSERT_EQ(QK_OK, write("z", "zz"));
    ASSERT_EQ(QK_OK, write("e", ""));
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    const std::string file = read_file(path);
    EXPECT_EQ("12345678zzABb", file.substr(file.size() - 13));
    EXPECT_EQ(0u, (file.size() - 13) % 8);
    ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message))
        << message.text;
    qk_file_tensor t;
    ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "\xc3\xa9\"\\\n", &t));
    EXPECT_EQ(0, memcmp(t.data, "12345678", 8));
    EXPECT_EQ(5, qk_checkpoint_tensor_count(checkpoint));
}

TEST_F(Writer, ManyTensors) {  // enough to grow every table
    create();
    for (int i = 0; i < 3000; ++i) {
        ASSERT_EQ(QK_OK, declare(std::to_string(i).c_str(), QK_DTYPE_I32, {1}));
    }
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("1234", QK_DTYPE_I32, {1}));
    for (int i = 2999; i >= 0; --i) {
        ASSERT_EQ(QK_OK, write(std::to_string(i).c_str(), bytes_of<int32_t>({i})));
    }
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message))
        << message.text;
    for (int i = 0; i < 3000; ++i) {
        qk_file_tensor t;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, std::to_string(i).c_str(), &t));
        EXPECT_EQ(0, memcmp(t.data, &i, 4));
    }
}

TEST_F(Writer, RefusesWhatIsNoTensor) {
    create();
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("__metadata__", QK_DTYPE_U8, {1}));
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("\xff", QK_DTYPE_U8, {1}));
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("\xed\xa0\x80", QK_DTYPE_U8, {1}));  // a surrogate
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare(std::string(1025, 'n').c_str(), QK_DTYPE_U8, {1}));
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("t", QK_DTYPE_UNKNOWN, {1}));
    EXPECT_EQ(QK_ERROR_SHAPE, declare("t", QK_DTYPE_U8, {-1}));
    EXPECT_EQ(QK_ERROR_SHAPE, declare("t", QK_DTYPE_F4, {3}));
    EXPECT_EQ(QK_ERROR_SHAPE, declare("t", QK_DTYPE_U8, {INT64_MAX, 2}));
    EXPECT_EQ(QK_ERROR_SHAPE, declare("t", QK_DTYPE_U8, std::vector<int64_t>(33, 1)));
    EXPECT_EQ(QK_OK, declare("t", QK_DTYPE_U8, {2}));
    EXPECT_EQ(QK_ERROR_ARGUMENT, declare("t", QK_DTYPE_U8, {2}));
    said("declared already");
    EXPECT_EQ(QK_ERROR_ARGUMENT, write("u", "1"));
    EXPECT_EQ(QK_ERROR_BUFFER_SIZE, write("t", "123"));
    EXPECT_EQ(QK_OK, write("t", "1"));
    EXPECT_EQ(QK_ERROR_STATE, declare("v", QK_DTYPE_U8, {2}));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_finish(writer, &message));
    said("\"t\" has 1 of its 2 bytes");
    EXPECT_EQ(QK_ERROR_BUFFER_SIZE, write("t", "23"));
    EXPECT_EQ(QK_OK, write("t", "2"));
    EXPECT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_finish(writer, &message));
    EXPECT_EQ(QK_ERROR_STATE, write("t", ""));
}

TEST_F(Writer, LeavesTheOldFileUntilFinish) {
    folder.write("out.safetensors", "old");
    create();
    ASSERT_EQ(QK_OK, declare("t", QK_DTYPE_U8, {1}));
    ASSERT_EQ(QK_OK, write("t", "1"));
    EXPECT_EQ("old", read_file(path));
    EXPECT_EQ(2, files_beside());
    qk_writer_destroy(writer);
    writer = nullptr;
    EXPECT_EQ("old", read_file(path));
    EXPECT_EQ(1, files_beside());
    create();
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    EXPECT_EQ(16u, read_file(path).size());
    EXPECT_EQ(1, files_beside());
}

TEST_F(Writer, SaysWhyItCannotCreate) {
    path = folder.path("absent/out.safetensors");
    EXPECT_EQ(QK_ERROR_FILE, qk_writer_create(path.c_str(), nullptr, &writer, &message));
    EXPECT_EQ(nullptr, writer);
    said("No such file");
    folder.make("d");
    path = folder.path("d");
    EXPECT_EQ(QK_ERROR_FILE, qk_writer_create(path.c_str(), nullptr, &writer, &message));
    said("cannot replace: it is a directory");
    EXPECT_EQ(1, files_beside());
}

/* ---- dialects: the packages' own files again ------------------------------------------------ */

std::string state_text(const qk_file_tensor &t) {
    std::string text(static_cast<const char *>(t.data), static_cast<size_t>(t.bytes));
    return text.substr(0, text.find_last_not_of(' ') + 1);
}

class Rewrite : public Writer, public testing::WithParamInterface<const char *> {
  protected:
    bool known(const qk_layer &layer) const {
        return layer.dialect == QK_DIALECT_BITSANDBYTES ||
               layer.dialect == QK_DIALECT_COMPRESSED_TENSORS ||
               layer.dialect == QK_DIALECT_MODELOPT || layer.dialect == QK_DIALECT_DEEPSEEK;
    }
    void SetUp() override {
        Writer::SetUp();
        const std::string from = std::string(QK_GOLDEN_DATA) + "/" + GetParam();
        ASSERT_EQ(QK_OK, qk_checkpoint_open(from.c_str(), nullptr, &checkpoint, &message))
            << message.text;
        create();
    }
    // Layers through tensors of the context, biases as they are.
    void rewrite() {
        for (const bool data : {false, true}) {
            for (int64_t i = 0; i < qk_checkpoint_layer_count(checkpoint); ++i) {
                qk_layer layer;
                ASSERT_EQ(QK_OK, qk_checkpoint_layer(checkpoint, i, &layer, sizeof layer));
                if (!known(layer)) continue;
                data ? write_layer(layer) : declare_layer(layer);
            }
        }
        ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    }
    void declare_layer(const qk_layer &layer) {
        ASSERT_EQ(QK_OK, qk_writer_declare_layer(writer, layer.dialect, layer.name, &layer.desc,
                                                 layer.dense_format, &message))
            << message.text;
        qk_file_tensor bias;
        const std::string name = std::string(layer.name) + ".bias";
        if (qk_checkpoint_find_tensor(checkpoint, name.c_str(), &bias) != QK_OK) return;
        ASSERT_EQ(QK_OK, declare(name.c_str(), bias.dtype, {bias.shape[0]}));
    }
    void write_layer(const qk_layer &layer) {
        qk_tensor *weight = nullptr;
        ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, layer.name, QK_LOAD_IN_PLACE,
                                            &weight, nullptr, &message))
            << message.text;
        EXPECT_EQ(QK_OK, qk_writer_write_layer(writer, context, layer.name, weight, &message))
            << message.text;
        qk_tensor_destroy(weight);
        qk_file_tensor bias;
        const std::string name = std::string(layer.name) + ".bias";
        if (qk_checkpoint_find_tensor(checkpoint, name.c_str(), &bias) != QK_OK) return;
        ASSERT_EQ(QK_OK, qk_writer_write(writer, name.c_str(), bias.data,
                                         static_cast<size_t>(bias.bytes), &message));
    }
};

TEST_P(Rewrite, EveryTensorIsThePackages) {
    rewrite();
    qk_checkpoint *again = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &again, &message)) << message.text;
    EXPECT_GE(qk_checkpoint_tensor_count(again), 3);
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(again); ++i) {
        qk_file_tensor ours, theirs;
        ASSERT_EQ(QK_OK, qk_checkpoint_tensor(again, i, &ours));
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, ours.name, &theirs)) << ours.name;
        ASSERT_EQ(ours.dtype, theirs.dtype) << ours.name;
        ASSERT_EQ(ours.rank, theirs.rank) << ours.name;
        if (strstr(ours.name, "quant_state") != nullptr) {
            EXPECT_EQ(state_text(theirs), state_text(ours)) << ours.name;
            continue;
        }
        EXPECT_EQ(0, memcmp(ours.shape, theirs.shape, static_cast<size_t>(ours.rank) * 8))
            << ours.name;
        ASSERT_EQ(ours.bytes, theirs.bytes) << ours.name;
        EXPECT_EQ(0, memcmp(ours.data, theirs.data, static_cast<size_t>(ours.bytes))) << ours.name;
    }
    qk_checkpoint_destroy(again);
}

TEST_P(Rewrite, TheConfigurationReadsBack) {
    rewrite();
    qk_layer layer = {};
    for (int64_t i = 0; !known(layer); ++i) {
        ASSERT_EQ(QK_OK, qk_checkpoint_layer(checkpoint, i, &layer, sizeof layer));
    }
    const char *kept[] = {"lm_head"};
    const std::string config = folder.path("config.json");
    ASSERT_EQ(QK_OK, qk_checkpoint_write_config(checkpoint, config.c_str(), layer.dialect,
                                                &layer.desc, layer.dense_format, kept, 1, &message))
        << message.text;
    EXPECT_NE(std::string::npos, read_file(config).find("\"lm_head\""));
    qk_checkpoint *again = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_open(folder.path().c_str(), nullptr, &again, &message))
        << message.text;
    qk_layer back;
    ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(again, layer.name, &back, sizeof back));
    EXPECT_EQ(QK_OK, back.status) << back.reason;
    EXPECT_EQ(0, memcmp(&layer.desc, &back.desc, sizeof back.desc));
    EXPECT_EQ(layer.dialect, back.dialect);
    qk_checkpoint_destroy(again);
}

// The configuration of dequantized weights is the source's without the section.
TEST_P(Rewrite, TheDenseConfigurationHasNoQuantization) {
    const std::string config = folder.path("config.json");
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    ASSERT_EQ(QK_OK, qk_checkpoint_write_config(checkpoint, config.c_str(), QK_DIALECT_DENSE, &desc,
                                                QK_FORMAT_F16, nullptr, 0, &message))
        << message.text;
    EXPECT_EQ(std::string::npos, read_file(config).find("quantization_config"));
    EXPECT_NE(std::string::npos, read_file(config).find("\"architectures\""));
}

INSTANTIATE_TEST_SUITE_P(Golden, Rewrite,
                         testing::Values("bnb_nf4", "bnb_fp4", "bnb_nf4_nested", "bnb_fp4_nested",
                                         "bnb_sharded", "ct_int4_sym_g128", "ct_int4_sym_g32",
                                         "ct_int4_asym_g32", "ct_int4_sym_channel",
                                         "ct_int4_asym_channel", "ct_fp8_channel", "modelopt_nvfp4",
                                         "deepseek_v4"),
                         [](const auto &info) { return std::string(info.param); });

// The files that bitsandbytes and compressed-tensors wrote without nested scales come out again
// byte for byte, header included.
class SameFile : public Rewrite {};

TEST_P(SameFile, ByteForByte) {
    const char *key, *value;
    for (int64_t i = 0; i < qk_checkpoint_metadata_count(checkpoint); ++i) {
        ASSERT_EQ(QK_OK, qk_checkpoint_metadata(checkpoint, i, &key, &value));
        ASSERT_EQ(QK_OK, qk_writer_metadata(writer, key, value, &message));
    }
    rewrite();
    const std::string from = std::string(QK_GOLDEN_DATA) + "/" + GetParam() + "/model.safetensors";
    EXPECT_TRUE(read_file(from) == read_file(path));
}

INSTANTIATE_TEST_SUITE_P(Golden, SameFile,
                         testing::Values("bnb_nf4", "bnb_fp4", "ct_int4_sym_g128",
                                         "ct_int4_asym_g32"),
                         [](const auto &info) { return std::string(info.param); });

TEST_F(Writer, RefusesLayersThatADialectCannotHold) {
    create();
    qk_tensor_desc nf4 = QK_TENSOR_DESC_INIT;
    nf4.format = QK_FORMAT_NF4;
    nf4.scale_format = QK_FORMAT_F32;
    nf4.layout = QK_LAYOUT_ROW_HIGH;
    nf4.group_size = 64;
    nf4.rank = 2;
    nf4.shape[0] = 4;
    nf4.shape[1] = 64;
    const auto refused = [&](qk_dialect dialect, const qk_tensor_desc &desc, qk_format dense) {
        const qk_status status =
            qk_writer_declare_layer(writer, dialect, "x", &desc, dense, &message);
        EXPECT_NE('\0', message.text[0]);
        return status;
    };
    qk_tensor_desc other = nf4;
    other.layout = QK_LAYOUT_ROW;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    other.layout = QK_LAYOUT_PACKED;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    EXPECT_NE(nullptr, std::strstr(message.text, "qk_repack")) << message.text;
    other = nf4; /* groups that end inside a row are placed otherwise when they are flat */
    other.shape[1] = 96;
    other.grouping = QK_GROUPING_ALONG_K;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    other.shape[1] = 128; /* and where they fill the rows, a tensor is described as along k */
    EXPECT_EQ(QK_OK, qk_writer_declare_layer(writer, QK_DIALECT_BITSANDBYTES, "along", &other,
                                             QK_FORMAT_F16, &message))
        << message.text;
    other = nf4;
    other.group_size = 16;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    other = nf4;
    other.scale_format = QK_FORMAT_F16;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_BITSANDBYTES, nf4, QK_FORMAT_I8));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_GPTQ_V1, nf4, QK_FORMAT_F16));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_COMPRESSED_TENSORS, nf4, QK_FORMAT_F32));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, refused(QK_DIALECT_DENSE, nf4, QK_FORMAT_F32));
    other = nf4;
    other.shape[1] = 0;
    EXPECT_NE(QK_OK, refused(QK_DIALECT_BITSANDBYTES, other, QK_FORMAT_F16));
    // A name in the way takes back what was declared before it.
    ASSERT_EQ(QK_OK, declare("x.weight.quant_map", QK_DTYPE_U8, {1}));
    EXPECT_EQ(QK_ERROR_ARGUMENT, refused(QK_DIALECT_BITSANDBYTES, nf4, QK_FORMAT_F16));
    EXPECT_EQ(QK_OK, declare("x.weight", QK_DTYPE_U8, {1}));
}

}  // namespace

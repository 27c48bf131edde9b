// Layers written in pieces of rows: where they may be cut, and what all pieces have in common.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "maker.hpp"
#include "qk_io.h"

namespace {

constexpr int64_t kColumns = 96;

class Pieces : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context_));
        ASSERT_EQ(QK_OK, qk_writer_create(path_.c_str(), nullptr, &writer_, nullptr));
    }
    void TearDown() override {
        qk_writer_destroy(writer_);
        qk_context_destroy(context_);
        EXPECT_FALSE(std::filesystem::exists(path_));
    }

    static qk_tensor_desc describe(int64_t rows, qk_format scales) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        const bool words = scales == QK_FORMAT_F16;
        desc.format = words ? QK_FORMAT_U4_AFFINE : QK_FORMAT_NF4;
        desc.layout = words ? QK_LAYOUT_WORD : QK_LAYOUT_ROW_HIGH;
        desc.scale_format = scales;
        desc.group_size = 64;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = kColumns;
        return desc;
    }
    void declare(int64_t rows, qk_format scales) {
        const qk_tensor_desc desc = describe(rows, scales);
        const bool words = scales == QK_FORMAT_F16;
        ASSERT_EQ(QK_OK,
                  qk_writer_declare_layer(
                      writer_, words ? QK_DIALECT_COMPRESSED_TENSORS : QK_DIALECT_BITSANDBYTES, "a",
                      &desc, QK_FORMAT_F16, nullptr));
    }
    // A piece whose values are all this one.
    qk_status write(int64_t rows, qk_format scales, float value) {
        const qk_tensor_desc desc = describe(rows, scales);
        qk_tensor_desc plain = QK_TENSOR_DESC_INIT;
        plain.rank = 2;
        plain.shape[0] = rows;
        plain.shape[1] = kColumns;
        std::vector<float> values(static_cast<size_t>(rows * kColumns), value);
        void *planes[] = {values.data()};
        qk_tensor *dense = nullptr, *piece = nullptr;
        EXPECT_EQ(QK_OK, qk_tensor_wrap(context_, &plain, planes, 1, &dense));
        EXPECT_EQ(QK_OK, qk_tensor_create(context_, &desc, &piece));
        if (scales == QK_FORMAT_LUT8) {
            float table[256];
            EXPECT_EQ(QK_OK, qk_dynamic_table(table));
            EXPECT_EQ(QK_OK, qk_tensor_upload(context_, piece, QK_PLANE_SCALE_CODE, table, 1024));
        }
        EXPECT_EQ(QK_OK, qk_quantize(context_, dense, piece));
        const qk_status status = qk_writer_write_layer(writer_, context_, "a", piece, &message_);
        qk_tensor_destroy(dense);
        qk_tensor_destroy(piece);
        return status;
    }
    std::string said() const { return message_.text; }

    qk_context *context_ = nullptr;
    qk_writer *writer_ = nullptr;
    qk_io_message message_ = {};
    const io_test::Folder folder_;
    const std::string path_ = folder_.path("refused");
};

TEST_F(Pieces, GroupsAreNotCut) {
    declare(10, QK_FORMAT_F32);
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(1, QK_FORMAT_F32, 1));  // a group and a half
    EXPECT_NE(std::string::npos, said().find("ends after row 1 would cut a group"));
    EXPECT_EQ(QK_OK, write(2, QK_FORMAT_F32, 1));
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(3, QK_FORMAT_F32, 1));
    EXPECT_NE(std::string::npos, said().find("ends after row 5"));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_finish(writer_, nullptr));
}

TEST_F(Pieces, NoMoreRowsThanDeclared) {
    declare(4, QK_FORMAT_F32);
    EXPECT_EQ(QK_ERROR_BUFFER_SIZE, write(6, QK_FORMAT_F32, 1));
    EXPECT_EQ(QK_OK, write(4, QK_FORMAT_F32, 1));
    EXPECT_EQ(QK_ERROR_BUFFER_SIZE, write(2, QK_FORMAT_F32, 1));
    EXPECT_NE(std::string::npos, said().find("2 rows, of \"a\" 0 are left"));
}

TEST_F(Pieces, NestedScalesShareTheirOffset) {
    declare(1024, QK_FORMAT_LUT8);
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(256, QK_FORMAT_LUT8, 1));  // one and a half second groups
    EXPECT_EQ(QK_OK, write(512, QK_FORMAT_LUT8, 1));
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(512, QK_FORMAT_LUT8, 2));
    EXPECT_NE(std::string::npos, said().find("differ from the first piece's"));
    EXPECT_EQ(QK_OK, write(512, QK_FORMAT_LUT8, 1));
}

TEST_F(Pieces, ZerosOfEightRowsShareAWord) {
    declare(20, QK_FORMAT_F16);
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(4, QK_FORMAT_F16, 1));
    EXPECT_EQ(QK_OK, write(16, QK_FORMAT_F16, 1));
    EXPECT_EQ(QK_OK, write(4, QK_FORMAT_F16, 1));
}

// ---- experts ----

constexpr int64_t kExperts = 2, kRows = 3;

struct Form {
    qk_dialect dialect;
    const char *path, *data, *scales;  // names of tensors; NULL: none
    qk_tensor_desc desc;
    std::vector<int64_t> shape;  // of data
};

qk_tensor_desc of_experts(qk_format format, qk_layout layout, qk_format scales, int64_t k) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.layout = layout;
    desc.scale_format = scales;
    desc.group_size = 32;
    desc.rank = 3;
    desc.shape[0] = kExperts;
    desc.shape[1] = kRows;
    desc.shape[2] = k;
    return desc;
}

std::vector<Form> forms() {
    return {{QK_DIALECT_GPT_OSS,
             "a.safetensors",
             "a_blocks",
             "a_scales",
             of_experts(QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, QK_FORMAT_E8M0, 64),
             {kExperts, kRows, 2, 16}},
            {QK_DIALECT_GGUF,
             "a.gguf",
             "a.weight",
             nullptr,
             of_experts(QK_FORMAT_S8, QK_LAYOUT_GGUF_Q8_0, QK_FORMAT_F16, 64),
             {kExperts, kRows, 64}}};
}

class ExpertPieces : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context_)); }
    void TearDown() override {
        qk_writer_destroy(writer_);
        qk_context_destroy(context_);
    }

    void create(const Form &form) {
        qk_writer_destroy(writer_);
        ASSERT_EQ(QK_OK,
                  qk_writer_create(folder_.path(form.path).c_str(), nullptr, &writer_, nullptr));
    }
    qk_status declare(const Form &form, const qk_tensor_desc &desc) {
        return qk_writer_declare_layer(writer_, form.dialect, "a", &desc, QK_FORMAT_BF16,
                                       &message_);
    }
    static std::string bytes_of(const qk_tensor_desc &desc, qk_plane plane) {
        size_t bytes = 0;
        EXPECT_EQ(QK_OK, qk_tensor_plane_bytes(&desc, plane, &bytes));
        std::string text(bytes, '\0');
        for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 37 % 120);
        return text;
    }
    // Rows from `row` on of those of all experts, in a tensor of these sizes.
    qk_status write(const Form &form, int64_t row, const std::vector<int64_t> &sizes) {
        qk_tensor_desc piece = form.desc;
        piece.rank = static_cast<int32_t>(sizes.size());
        for (size_t i = 0; i < QK_MAX_RANK; ++i) piece.shape[i] = i < sizes.size() ? sizes[i] : 0;
        std::string data = bytes_of(form.desc, QK_PLANE_DATA);
        std::string scales = bytes_of(form.desc, QK_PLANE_SCALE);
        void *planes[] = {
            &data[static_cast<size_t>(row) * data.size() / (kExperts * kRows)],
            scales.empty()
                ? nullptr
                : &scales[static_cast<size_t>(row) * scales.size() / (kExperts * kRows)]};
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(QK_OK, qk_tensor_wrap(context_, &piece, planes, 2, &tensor));
        const qk_status status = qk_writer_write_layer(writer_, context_, "a", tensor, &message_);
        qk_tensor_destroy(tensor);
        return status;
    }
    void expect_written(const Form &form) {
        ASSERT_EQ(QK_OK, qk_writer_finish(writer_, &message_)) << message_.text;
        qk_checkpoint *file = nullptr;
        ASSERT_EQ(QK_OK,
                  qk_checkpoint_open(folder_.path(form.path).c_str(), nullptr, &file, &message_))
            << message_.text;
        qk_file_tensor tensor;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(file, form.data, &tensor));
        EXPECT_EQ(form.shape, std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank));
        EXPECT_EQ(
            bytes_of(form.desc, QK_PLANE_DATA),
            std::string(static_cast<const char *>(tensor.data), static_cast<size_t>(tensor.bytes)));
        if (form.scales != nullptr) {
            ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(file, form.scales, &tensor));
            EXPECT_EQ(form.shape.size() - 1, static_cast<size_t>(tensor.rank));
            EXPECT_EQ(bytes_of(form.desc, QK_PLANE_SCALE),
                      std::string(static_cast<const char *>(tensor.data),
                                  static_cast<size_t>(tensor.bytes)));
        }
        qk_checkpoint_destroy(file);
    }
    std::string said() const { return message_.text; }

    qk_context *context_ = nullptr;
    qk_writer *writer_ = nullptr;
    qk_io_message message_ = {};
    const io_test::Folder folder_;
};

TEST_F(ExpertPieces, AreExpertsOrRowsOfAll) {
    for (const Form &form : forms()) {
        SCOPED_TRACE(form.path);
        create(form);
        ASSERT_EQ(QK_OK, declare(form, form.desc)) << said();
        EXPECT_EQ(QK_OK, write(form, 0, {kExperts, kRows, 64})) << said();
        expect_written(form);
        create(form);
        ASSERT_EQ(QK_OK, declare(form, form.desc));
        EXPECT_EQ(QK_OK, write(form, 0, {1, kRows, 64})) << said();
        EXPECT_EQ(QK_OK, write(form, kRows, {1, kRows, 64}));
        expect_written(form);
        create(form);
        ASSERT_EQ(QK_OK, declare(form, form.desc));
        EXPECT_EQ(QK_OK, write(form, 0, {4, 64})) << said();  // an expert and a row
        EXPECT_EQ(QK_OK, write(form, 4, {1, 64}));
        EXPECT_EQ(QK_ERROR_STATE, qk_writer_finish(writer_, &message_));
        EXPECT_EQ(QK_ERROR_BUFFER_SIZE, write(form, 0, {1, kRows, 64}));
        EXPECT_EQ("tensor: 3 rows, of \"a\" 1 are left to be written", said());
        EXPECT_EQ(QK_OK, write(form, 5, {1, 64}));
        expect_written(form);
    }
}

TEST_F(ExpertPieces, OfOtherSizesAreRefused) {
    for (const Form &form : forms()) {
        SCOPED_TRACE(form.path);
        create(form);
        ASSERT_EQ(QK_OK, declare(form, form.desc));
        EXPECT_EQ(QK_ERROR_FORMAT, write(form, 0, {1, 2, 64}));
        EXPECT_EQ(QK_ERROR_FORMAT, write(form, 0, {1, kRows, 32}));
        EXPECT_EQ(QK_ERROR_FORMAT, write(form, 0, {kRows, 32}));
    }
}

TEST_F(ExpertPieces, GptOssHasNothingElse) {
    const Form form = forms()[0];
    create(form);
    qk_tensor_desc other = form.desc;
    other.rank = 2;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, declare(form, other));
    EXPECT_EQ(
        "layer \"a\": gpt-oss has FP4_E2M1 of rank 3 in ROW, in whole groups, with E8M0 "
        "scales of 32",
        said());
    other = form.desc;
    other.shape[2] = 48;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, declare(form, other));
    other = form.desc;
    other.scale_format = QK_FORMAT_E4M3;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, declare(form, other));
    other = form.desc;
    other.flags = QK_TENSOR_GLOBAL;
    EXPECT_EQ(QK_ERROR_UNSUPPORTED, declare(form, other));
    EXPECT_EQ(QK_OK, declare(form, form.desc));
}

}  // namespace

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

}  // namespace

// A layer quantized in pieces of rows has the bytes and the error that it has in one piece.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "../../cli/quantize_layer.hpp"
#include "io/maker.hpp"

namespace {

constexpr int64_t kRows = 800, kColumns = 96;

// A layer "a" of random weights in f32, in memory.
Checkpoint random_layer(std::vector<char> *file) {
    const std::string header = "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[" +
                               std::to_string(kRows) + "," + std::to_string(kColumns) +
                               "],\"data_offsets\":[0," + std::to_string(4 * kRows * kColumns) +
                               "]}}";
    const uint64_t size = header.size();
    file->resize(8 + size + 4 * kRows * kColumns);
    std::memcpy(file->data(), &size, 8);
    std::memcpy(file->data() + 8, header.data(), size);
    uint32_t state = 1;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
        state = state * 1664525u + 1013904223u;
        const float value = std::ldexp(float(int32_t(state)), int(state % 7) - 33);
        std::memcpy(file->data() + 8 + size + 4 * i, &value, 4);
    }
    qk_checkpoint *checkpoint = nullptr;
    check(qk_checkpoint_open_memory(file->data(), file->size(), nullptr, 0, nullptr, &checkpoint,
                                    nullptr),
          "memory", nullptr);
    return Checkpoint(checkpoint);
}

struct Quantized {
    std::string bytes;
    LayerError error;
};

Quantized quantized(const qk_tensor_desc &desc, qk_dialect dialect, int64_t weights) {
    std::vector<char> input;
    const Checkpoint checkpoint = random_layer(&input);
    CommonOptions common;
    common.quiet = true;
    const Context context = create_context(common);
    const qk_layer layer = all_layers(checkpoint)[0];
    const io_test::Folder folder;
    const std::string path = folder.path("a.safetensors");
    qk_writer *made = nullptr;
    qk_io_message message = {};
    check(qk_writer_create(path.c_str(), nullptr, &made, &message), "", message.text);
    const Writer writer(made);
    const bool words = dialect == QK_DIALECT_COMPRESSED_TENSORS;
    check(qk_writer_declare_layer(made, dialect, "a", &desc,
                                  words ? desc.scale_format : QK_FORMAT_F32, &message),
          "", message.text);
    Progress progress(common, 1);
    Tensor weight = load_layer(checkpoint, context, layer.name, QK_LOAD_IN_PLACE).weight;
    LayerError error;
    quantize_layer(context, layer, std::move(weight), {desc, desc}, made, &progress, &error,
                   weights);
    check(qk_writer_finish(made, &message), "", message.text);
    return {io_test::read_file(path), error};
}

qk_tensor_desc description(qk_format format, qk_layout layout, qk_format scales, int32_t group) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.layout = layout;
    desc.scale_format = scales;
    desc.group_size = group;
    desc.rank = 2;
    desc.shape[0] = kRows;
    desc.shape[1] = kColumns;
    return desc;
}

void expect_pieces_equal_whole(const qk_tensor_desc &desc, qk_dialect dialect) {
    const Quantized whole = quantized(desc, dialect, kPieceWeights);
    EXPECT_EQ(whole.error.compared, kRows * kColumns);
    EXPECT_GT(whole.error.sqnr(), 10);
    for (const int64_t weights : {int64_t{1}, 200 * kColumns, 790 * kColumns}) {
        const Quantized pieces = quantized(desc, dialect, weights);
        EXPECT_TRUE(pieces.bytes == whole.bytes) << weights;
        EXPECT_EQ(pieces.error.compared, whole.error.compared);
        EXPECT_EQ(pieces.error.error, whole.error.error);  // to the bit
        EXPECT_EQ(pieces.error.error_square, whole.error.error_square);
        EXPECT_EQ(pieces.error.weight_square, whole.error.weight_square);
    }
}

TEST(QuantizeLayer, PiecesEqualTheWholeInBitsandbytes) {
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB}) {
        for (const int32_t group : {32, 64, 128}) {  // 128: groups straddle rows of 96
            for (const qk_format scales : {QK_FORMAT_F32, QK_FORMAT_LUT8}) {
                SCOPED_TRACE(testing::Message() << format << " " << group << " " << scales);
                expect_pieces_equal_whole(description(format, QK_LAYOUT_ROW_HIGH, scales, group),
                                          QK_DIALECT_BITSANDBYTES);
            }
        }
    }
}

TEST(QuantizeLayer, PiecesEqualTheWholeInCompressedTensors) {
    for (const int32_t group : {32, QK_GROUP_ROW}) {
        for (const uint32_t flags : {0u, QK_TENSOR_SYMMETRIC}) {
            SCOPED_TRACE(testing::Message() << group << " " << flags);
            qk_tensor_desc desc =
                description(QK_FORMAT_U4_AFFINE, QK_LAYOUT_WORD, QK_FORMAT_F16, group);
            desc.flags = flags;
            expect_pieces_equal_whole(desc, QK_DIALECT_COMPRESSED_TENSORS);
        }
    }
}

}  // namespace

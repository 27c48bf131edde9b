// A layer decoded in blocks of a few rows has the values that it has in one piece.
#include "../../cli/rows.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <numeric>

namespace {

struct Whole {
    std::vector<float> values, scales;
    int64_t zero_scales = 0;
};

Whole read(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
           int64_t block_weights, int64_t *blocks) {
    LayerRows rows(checkpoint, context, layer, block_weights);
    Whole whole;
    for (int64_t at = 0; at < rows.rows(); ++*blocks) {
        const RowBlock block = rows.block(at);
        EXPECT_EQ(block.begin, at);
        EXPECT_GT(block.count, 0);
        const int64_t weights = block.count * rows.columns();
        const float *values = rows.decode_f32(block);
        whole.values.insert(whole.values.end(), values, values + weights);
        if (is_quantized(layer)) {
            const std::vector<float> scales = rows.decode_scales(block);
            EXPECT_EQ(static_cast<int64_t>(scales.size()), weights);
            whole.scales.insert(whole.scales.end(), scales.begin(), scales.end());
        }
        whole.zero_scales += rows.count_zero_scales(block);
        at += block.count;
    }
    return whole;
}

// NaN is equal to itself here.
void expect_same_bits(const std::vector<float> &found, const std::vector<float> &expected) {
    ASSERT_EQ(found.size(), expected.size());
    if (found.empty()) return;
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
}

TEST(LayerRows, BlocksOfAnySizeAreTheWholeLayer) {
    CommonOptions common;
    common.threads = 1;
    const Context context = create_context(common);
    int64_t layers = 0, blocks = 0;
    for (const auto &entry : std::filesystem::directory_iterator(QK_GOLDEN_DATA)) {
        if (!std::filesystem::exists(entry.path() / "config.json")) continue;
        const Checkpoint checkpoint = open_checkpoint(entry.path().string());
        for (const qk_layer &layer : all_layers(checkpoint)) {
            if (!is_loadable(layer)) continue;
            SCOPED_TRACE(entry.path().string() + " " + layer.name);
            const int64_t k = layer.desc.shape[1];
            int64_t once = 0;
            const Whole whole = read(checkpoint, context, layer, LayerRows::kBlockWeights, &once);
            EXPECT_EQ(once, 1);
            for (const int64_t block_weights : {int64_t{1}, 3 * k, 8 * k, 17 * k + 1}) {
                const Whole parts = read(checkpoint, context, layer, block_weights, &blocks);
                expect_same_bits(parts.values, whole.values);
                expect_same_bits(parts.scales, whole.scales);
                EXPECT_EQ(parts.zero_scales, whole.zero_scales);
            }
            ++layers;
        }
    }
    EXPECT_GT(layers, 50);
    EXPECT_GT(blocks, 20 * layers);
}

// No dialect loads one as yet: a GLOBAL plane of a number a row is cut with the rows.
TEST(LayerRows, BlocksHaveTheirRowsOfGlobal) {
    CommonOptions common;
    common.threads = 1;
    const Context context = create_context(common);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = QK_FORMAT_FP4_E2M1;
    desc.scale_format = QK_FORMAT_E4M3;
    desc.group_size = 16;
    desc.rank = 2;
    desc.shape[0] = 24;
    desc.shape[1] = 32;
    desc.flags = QK_TENSOR_GLOBAL_ROWS;
    std::vector<char> codes(24 * 16, 0x22), scales(24 * 2, 0x38);  // 1 and 1
    std::vector<float> global(24);
    std::iota(global.begin(), global.end(), 1.0f);
    void *planes[QK_PLANE_COUNT] = {codes.data(), scales.data()};
    planes[QK_PLANE_GLOBAL] = global.data();
    qk_tensor *made = nullptr;
    ASSERT_EQ(qk_tensor_wrap(context.get(), &desc, planes, QK_PLANE_COUNT, &made), QK_OK);
    LayerRows rows(context, "w", Tensor(made), 8 * 32);
    for (int64_t at = 0; at < rows.rows();) {
        const RowBlock block = rows.block(at);
        ASSERT_EQ(block.count, 8);
        const float *values = rows.decode_f32(block);
        for (int64_t i = 0; i < block.count * 32; ++i) {
            ASSERT_EQ(values[i], static_cast<float>(at + i / 32 + 1)) << at << " " << i;
        }
        at += block.count;
    }
}

}  // namespace

// A layer decoded in blocks of a few rows has the values that it has in one piece.
#include "../../cli/rows.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

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
    EXPECT_GT(blocks, 40 * layers);
}

}  // namespace

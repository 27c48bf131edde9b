// Which products of one x share a launch: no GPU needed.
#include "cuda/linear/sm90/gemv/siblings_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

constexpr int64_t kK = 4096;

// Products at addresses that nobody reads: each has a megabyte of its own.
struct List {
    std::vector<qk::LinearArgs> products;
    std::vector<qk::Dense> biases;

    explicit List(const std::vector<int64_t> &heights, qk_format format = QK_FORMAT_U4_AFFINE) {
        biases.reserve(heights.size());
        for (const int64_t n : heights) {
            qk::LinearArgs p = {};
            const size_t at = products.size() + 1;
            p.x = {qk::find_format(QK_FORMAT_F16), 1, kK, address(0)};
            p.y = {p.x.format, 1, n, address(at)};
            p.w.format = qk::find_format(format);
            p.w.layout =
                qk::find_layout(format == QK_FORMAT_U4_AFFINE ? qk_layout{qk::kLayoutTiles}
                                                              : qk_layout{qk::kLayoutTilesPairs},
                                4);
            p.w.geometry.n = n;
            p.w.geometry.k = kK;
            p.w.geometry.group_size = 128;
            p.w.scale.format = p.x.format;
            p.w.zero = address(100 + at);
            products.push_back(p);
        }
    }
    static void *address(size_t megabyte) { return reinterpret_cast<void *>((megabyte + 1) << 20); }
    void add_bias(size_t to, void *data) {
        biases.push_back({products[to].x.format, 1, products[to].y.columns, data});
        products[to].bias = &biases.back();
    }
    int32_t together(int32_t shared_bytes = 227 * 1024) const {
        qk::Device device;
        device.multiprocessors = 132;
        device.shared_bytes = shared_bytes;
        std::vector<const qk::LinearArgs *> cases;
        for (const qk::LinearArgs &p : products) cases.push_back(&p);
        return qk::cuda::count_siblings(cases.data(), int32_t(cases.size()), device);
    }
};

TEST(CudaSiblingsPlan, TakesThoseOfOneKind) {
    EXPECT_EQ(List({4096}).together(), 1);
    EXPECT_EQ(List({4096, 1024, 1024}).together(), 3);
    EXPECT_EQ(List({1, 1, 1, 1, 1}).together(), 4) << "no more than a launch has room for";
    EXPECT_EQ(List({14336, 14336}, QK_FORMAT_NF4).together(), 2);
    List other({64, 64, 64});
    other.products[1].w.format = qk::find_format(QK_FORMAT_NF4);
    EXPECT_EQ(other.together(), 1);
    other = List({64, 64, 64});
    other.products[2].w.scale.format = qk::find_format(QK_FORMAT_F32);
    EXPECT_EQ(other.together(), 2);
    other = List({64, 64, 64});
    other.products[2].w.geometry.group_size = 64;
    EXPECT_EQ(other.together(), 2);
    other = List({64, 64, 64});
    other.products[2].x.data = List::address(50);
    EXPECT_EQ(other.together(), 2);
    other = List({64, 64, 64});
    other.products[2].w.zero = nullptr;
    EXPECT_EQ(other.together(), 2);
}

TEST(CudaSiblingsPlan, LeavesOutWhatOneLaunchCannotDo) {
    List nested({64, 64}), wide({64, 64});
    for (qk::LinearArgs &p : nested.products) {
        p.w.scale.format = qk::find_format(QK_FORMAT_LUT8);
        p.w.scale.second_group = 256;
    }
    EXPECT_EQ(nested.together(), 2);
    nested.products[1].w.scale.second_group = 128;
    EXPECT_EQ(nested.together(), 1);
    for (qk::LinearArgs &p : wide.products) p.x.format = qk::find_format(QK_FORMAT_F32);
    EXPECT_EQ(wide.together(), 1);
    EXPECT_EQ(List({4096, 4096}).together(qk::cuda::kGemvShared), 1) << "no room for the sums";
    EXPECT_EQ(List({16384, 16384, 16}).together(), 2) << "2^27 codes in all";
    EXPECT_EQ(List({32768, 16}).together(), 1);
}

// One may not read what another writes, nor write where another does.
TEST(CudaSiblingsPlan, KeepsTheOrderWhereItCounts) {
    List same_y({64, 64, 64});
    same_y.products[2].y.data = static_cast<char *>(same_y.products[0].y.data) + 126;
    EXPECT_EQ(same_y.together(), 2);
    same_y.products[2].y.data = static_cast<char *>(same_y.products[0].y.data) + 128;
    EXPECT_EQ(same_y.together(), 3) << "slices of one y";
    List later({64, 64, 64}), earlier({64, 64, 64}), own({64, 64});
    later.add_bias(1, later.products[0].y.data);
    EXPECT_EQ(later.together(), 1);
    earlier.add_bias(0, earlier.products[2].y.data);
    EXPECT_EQ(earlier.together(), 2);
    own.add_bias(0, List::address(60));
    own.add_bias(1, List::address(60));
    EXPECT_EQ(own.together(), 2) << "a bias may be read twice";
}

// Every row of tiles is in one block of its weight, and all blocks run at once where those of one
// weight as tall would.
TEST(CudaSiblingsPlan, CutsEachWeightByItself) {
    const std::vector<std::vector<int64_t>> sets = {{4096, 1024, 1024}, {14336, 14336},
                                                    {28672, 28672},     {1, 1, 1, 1},
                                                    {67584, 16},        {67568, 16},
                                                    {17, 40000},        {128256, 1},
                                                    {8192, 1024, 1024}, {5120, 640, 640, 13824}};
    qk::Device device;
    device.shared_bytes = 227 * 1024;
    for (const int32_t multiprocessors : {1, 4, 7, 132, 148}) {
        device.multiprocessors = multiprocessors;
        for (const std::vector<int64_t> &heights : sets) {
            const List list(heights);
            std::vector<const qk::LinearArgs *> cases;
            for (const qk::LinearArgs &p : list.products) cases.push_back(&p);
            const qk::cuda::GemvProblems all =
                qk::cuda::siblings_problems(cases.data(), int32_t(cases.size()), device);
            int64_t tiles = 0, most = 0;
            int32_t blocks = 0;
            for (size_t i = 0; i < heights.size(); ++i) {
                const qk::cuda::GemvProblem &p = all.each[i];
                ASSERT_EQ(p.plan.first_block, blocks);
                ASSERT_EQ(p.n, heights[i]);
                ASSERT_EQ(p.y, list.products[i].y.data);
                int32_t row = 0;
                for (int32_t block = 0; block < p.plan.blocks; ++block) {
                    const qk::cuda::Run rows = p.plan.rows.part(block);
                    ASSERT_EQ(rows.first, row);
                    ASSERT_GT(rows.last, rows.first);
                    ASSERT_LE(rows.last - rows.first, qk::cuda::kBlockRows);
                    ASSERT_GE(p.plan.sums_bytes, (rows.last - row) * p.plan.partials * 64);
                    most = std::max<int64_t>(most, rows.last - rows.first);
                    row = rows.last;
                }
                ASSERT_EQ(row, (heights[i] + 15) / 16);
                tiles += row;
                blocks += p.plan.blocks;
            }
            ASSERT_EQ(blocks, all.blocks);
            for (size_t i = heights.size(); i < qk::kSiblings; ++i) {
                ASSERT_EQ(all.each[i].plan.first_block, INT32_MAX);
            }
            const int64_t waves = (blocks + multiprocessors - 1) / multiprocessors;
            const int64_t least = (tiles + multiprocessors * 32 - 1) / (multiprocessors * 32);
            ASSERT_LE(waves, least + int64_t(heights.size()) - 1) << "each has blocks of its own";
            if (multiprocessors == 132 && heights.size() == 3) {
                EXPECT_EQ(blocks, 132) << "no multiprocessor is left out";
                EXPECT_EQ(most, (tiles + 131) / 132) << "as one weight would be";
            }
        }
    }
}

}  // namespace

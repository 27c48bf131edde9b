// How the kernel for small batches cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/choose/slices.hpp"

namespace {

using qk::cuda::SlicesPlan;
using qk::cuda::SlicesSizes;
using qk::cuda::SlicesStage;

// U4, groups of 128, f16 scales and x.
constexpr SlicesSizes kSizes = {230 * 1024, 7, 32, 8, 2, 16};

SlicesPlan plan(int64_t n, int64_t k, const SlicesSizes &sizes) {
    const int32_t cluster = qk::cuda::slices_cluster((n + 15) / 16, (k + 127) / 128, 132);
    return qk::cuda::plan_slices(n, k, 132, cluster, sizes);
}

TEST(CudaChoose, HowSlicesCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t cluster, clusters, pairs, slices, slots;
    } rows[] = {
        {4096, 4096, 2, 66, 2, 8, 3},  {28672, 4096, 1, 132, 7, 2, 6},
        {8192, 8192, 2, 66, 4, 4, 4},  {57344, 8192, 1, 132, 14, 1, 6},
        {4096, 14336, 2, 66, 2, 8, 3}, {128256, 4096, 1, 264, 16, 1, 6},
        {16, 4096, 2, 1, 1, 8, 4},     {1, 16, 1, 1, 1, 1, 8},
    };
    for (const auto &row : rows) {
        SCOPED_TRACE(std::to_string(row.n) + " x " + std::to_string(row.k));
        const SlicesPlan p = plan(row.n, row.k, kSizes);
        EXPECT_EQ(p.cluster, row.cluster);
        EXPECT_EQ(p.clusters, row.clusters);
        EXPECT_EQ(p.pairs, row.pairs);
        EXPECT_EQ(p.slices, row.slices);
        EXPECT_EQ(qk::cuda::slices_stage(p.pairs, p.slices, 16, kSizes).slots, row.slots);
    }
}

TEST(CudaChoose, WhichSmallBatchesAreForSlices) {
    EXPECT_FALSE(qk::cuda::prefers_slices(4096, 14336, 132));
    EXPECT_FALSE(qk::cuda::prefers_slices(8192, 8192, 132));
    EXPECT_FALSE(qk::cuda::prefers_slices(25344, 4096, 132));
    EXPECT_TRUE(qk::cuda::prefers_slices(25345, 4096, 132));
    EXPECT_TRUE(qk::cuda::prefers_slices(57344, 8192, 132));
    EXPECT_TRUE(qk::cuda::prefers_slices(8192, 28672, 132));
}

// Every row of tiles is of one cluster, every chunk of one of its blocks, no block has more than
// its warps take, and the sums fit where the stages were.
TEST(CudaChoose, SlicesMeetEveryChunkOnce) {
    for (const int32_t group_shift : {5, 6, 7, 8, 30}) {
        for (const int32_t x_bytes : {2, 4}) {
            const SlicesSizes sizes = {130 * 1024, group_shift, 64, 8, x_bytes, 32 / x_bytes};
            for (int64_t k = 16; k < 70000; k += k < 1500 ? 16 : 16 * 131) {
                for (const int64_t n : {1, 17, 2113, 17000, 60000, 200000}) {
                    const SlicesPlan p = plan(n, k, sizes);
                    const SlicesStage most =
                        qk::cuda::slices_stage(p.pairs, p.slices, sizes.x_rows, sizes);
                    ASSERT_LE(p.pairs * p.slices, qk::cuda::kSlicesWarps);
                    ASSERT_GE(p.slices, 1);
                    ASSERT_GE(p.pairs * 2, p.rows.each + (p.rows.rest > 0));
                    ASSERT_GE(most.slots, 2);
                    ASSERT_GE(most.slots * most.bytes, p.pairs * 2 * p.slices * 16 * 80);
                    ASSERT_LT(most.zeros, most.x);
                    ASSERT_EQ(most.x % 16, 0);
                    int32_t row = 0, chunk = 0;
                    for (int32_t c = 0; c < p.clusters; ++c) {
                        ASSERT_EQ(p.rows.part(c).first, row);
                        ASSERT_GT(p.rows.part(c).last, row);
                        row = p.rows.part(c).last;
                    }
                    ASSERT_EQ(row, (n + 15) / 16);
                    for (int32_t rank = 0; rank < p.cluster; ++rank) {
                        ASSERT_EQ(p.part(rank).first, chunk);
                        ASSERT_GE(p.part(rank).last, chunk);
                        chunk = p.part(rank).last;
                    }
                    ASSERT_EQ(chunk, (k + 127) / 128);
                }
            }
        }
    }
}

}  // namespace

// How the kernel for small batches cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/linear/sm90/some_rows/plan.hpp"

namespace {

using qk::cuda::SomeRowsPlan;
using qk::cuda::SomeRowsSizes;
using qk::cuda::SomeRowsStage;

// U4, groups of 128, f16 scales and x.
constexpr SomeRowsSizes kSizes = {230 * 1024, 7, 32, 8, 2, 16};

SomeRowsPlan plan(int64_t n, int64_t k, const SomeRowsSizes &sizes) {
    const int32_t cluster = qk::cuda::some_rows_cluster((n + 15) / 16, (k + 127) / 128, 132);
    return qk::cuda::plan_some_rows(n, k, 132, cluster, sizes);
}

TEST(CudaPlan, HowSomeRowsCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t cluster, clusters, pairs, slices, halved, slots;
    } rows[] = {
        {4096, 4096, 2, 66, 2, 8, 0, 3},  {28672, 4096, 1, 132, 7, 2, 2, 6},
        {8192, 8192, 2, 66, 4, 4, 0, 4},  {57344, 8192, 1, 132, 14, 1, 2, 6},
        {4096, 14336, 2, 66, 2, 8, 0, 3}, {128256, 4096, 1, 264, 16, 1, 0, 6},
        {16, 4096, 2, 1, 1, 8, 0, 4},     {1, 16, 1, 1, 1, 1, 0, 8},
        {8192, 28672, 2, 66, 4, 4, 0, 4},
    };
    for (const auto &row : rows) {
        SCOPED_TRACE(std::to_string(row.n) + " x " + std::to_string(row.k));
        const SomeRowsPlan p = plan(row.n, row.k, kSizes);
        EXPECT_EQ(p.cluster, row.cluster);
        EXPECT_EQ(p.clusters, row.clusters);
        EXPECT_EQ(p.pairs, row.pairs);
        EXPECT_EQ(p.slices, row.slices);
        EXPECT_EQ(p.halved, row.halved);
        EXPECT_EQ(qk::cuda::some_rows_stage(p.pairs, p.slices, 16, kSizes).slots, row.slots);
    }
}

TEST(CudaPlan, WhichSmallBatchesAreForSlices) {
    const struct {
        int64_t n, k;
        bool single, nested;
    } rows[] = {
        {6144, 4096, false, false},  {4096, 14336, false, true}, {8192, 8192, false, true},
        {25344, 1024, false, false}, {25345, 1024, true, true},  {57344, 8192, true, true},
        {4096, 20480, true, true},   {24576, 4096, false, true}, {20480, 5120, true, true},
    };
    for (const auto &row : rows) {
        SCOPED_TRACE(std::to_string(row.n) + " x " + std::to_string(row.k));
        EXPECT_EQ(qk::cuda::prefers_some_rows(row.n, row.k, false, 132), row.single);
        EXPECT_EQ(qk::cuda::prefers_some_rows(row.n, row.k, true, 132), row.nested);
    }
}

// Warps without a job of their own take half of another's: four schedulers have every fourth warp
// each.
TEST(CudaPlan, SomeRowsShareTheirWarps) {
    const int32_t halved[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 6, 0, 0, 3, 2, 0, 0};
    for (int32_t jobs = 1; jobs <= 16; ++jobs) {
        EXPECT_EQ(qk::cuda::some_rows_halved(jobs), halved[jobs]) << jobs;
        SomeRowsPlan p = {};
        p.pairs = jobs;
        p.slices = 1;
        p.halved = qk::cuda::some_rows_halved(jobs);
        EXPECT_EQ(p.warp_of(0), 0);
        for (int32_t job = 0; job < jobs; ++job) {
            EXPECT_EQ(p.warp_of(job + 1) - p.warp_of(job), job < jobs - p.halved ? 1 : 2);
        }
        EXPECT_EQ(p.warp_of(jobs), p.warps());
        EXPECT_TRUE(p.halved == 0 || p.warps() == 16);
    }
}

// A stage has room for the scales of every group that its columns touch, wherever a run starts.
TEST(CudaPlan, SomeRowsHaveRoomForGroupsThatRunsStartInside) {
    for (int32_t group_shift = 4; group_shift <= 12; ++group_shift) {
        for (int32_t slices = 1; slices <= qk::cuda::kSomeRowsWarps; ++slices) {
            const SomeRowsSizes sizes = {230 * 1024, group_shift, 32, 8, 2, 16};
            const SomeRowsStage stage = qk::cuda::some_rows_stage(1, slices, 16, sizes);
            const int64_t columns = int64_t{slices} * qk::cuda::kSomeRowsColumns;
            int64_t most = 0;
            for (int64_t first = 0; first < (1 << 13); first += qk::cuda::kSomeRowsColumns) {
                const int64_t last = first + columns - 1;
                most = std::max(most, (last >> group_shift) - (first >> group_shift) + 1);
            }
            EXPECT_GE(stage.groups, most) << "groups of 2^" << group_shift << ", " << slices;
            EXPECT_LE(stage.groups, most + 1);
            EXPECT_GE(stage.zeros - stage.scales, 2 * most * sizes.scale_bytes);
            EXPECT_GE(stage.x - stage.zeros, 2 * most * sizes.zero_bytes);
        }
    }
}

// Every row of tiles is of one cluster, every chunk of one of its blocks, no block has more than
// its warps take, and the sums fit where the stages were.
TEST(CudaPlan, SomeRowsMeetEveryChunkOnce) {
    for (const int32_t group_shift : {4, 5, 6, 7, 8, 30}) {
        for (const int32_t x_rows : {8, 16, 24}) {
            if (x_rows > 16 && group_shift < 6) continue;
            const int32_t x_bytes = x_rows == 8 ? 4 : 2;
            const SomeRowsSizes sizes = {130 * 1024, group_shift, 64, 8, x_bytes, x_rows};
            for (int64_t k = 16; k < 70000; k += k < 1500 ? 16 : 16 * 131) {
                for (const int64_t n : {1, 17, 2113, 17000, 60000, 200000}) {
                    const SomeRowsPlan p = plan(n, k, sizes);
                    const SomeRowsStage most =
                        qk::cuda::some_rows_stage(p.pairs, p.slices, sizes.x_rows, sizes);
                    ASSERT_LE(p.pairs * p.slices, qk::cuda::kSomeRowsWarps);
                    ASSERT_GE(p.slices, 1);
                    ASSERT_GE(p.pairs * 2, p.rows.each + (p.rows.rest > 0));
                    ASSERT_GE(most.slots, 2);
                    ASSERT_GE(most.slots * most.bytes, p.warps() * 2 * (sizes.x_rows * 80 + 64));
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

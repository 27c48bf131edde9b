// How the kernels for one row of x cut a weight: no GPU needed.
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm90/gemv/plan.hpp"

#include <gtest/gtest.h>

namespace {

constexpr qk::cuda::Sm80GemvDevice kDevices[] = {{1, false}, {8, true}, {132, true}, {40, false}};

TEST(CudaPlan, AnH200RunsOneFullBlockAMultiprocessor) {
    const qk::cuda::Sm80GemvPlan plan = qk::cuda::plan_sm80_gemv(4096, 4096, {132, true});
    EXPECT_EQ(plan.blocks, 132);
    EXPECT_EQ(plan.warps, 24);
    EXPECT_EQ(plan.row_tiles, 256);
    EXPECT_EQ(plan.row_stages, 16);
    EXPECT_EQ(qk::cuda::plan_sm80_gemv(17, 64, {132, true}).blocks, 2);
}

// Blocks take consecutive rows, warps consecutive stages of their block: every stage once, in
// sequence, and none has more than one more than another of its kind.
TEST(CudaPlan, EveryStageBelongsToOneWarp) {
    for (int64_t n = 1; n < 3000; n += 37) {
        for (int64_t k = 1; k < 20000; k += 1211) {
            for (const qk::cuda::Sm80GemvDevice device : kDevices) {
                const qk::cuda::Sm80GemvPlan plan = qk::cuda::plan_sm80_gemv(n, k, device);
                ASSERT_GE(int64_t(plan.row_tiles) * 16, n);
                ASSERT_GE(int64_t(plan.row_stages) * qk::cuda::kStageTiles * 64, k);
                int32_t row = 0;
                for (int32_t b = 0; b < plan.blocks; ++b) {
                    const qk::cuda::Run rows = plan.rows.part(b);
                    ASSERT_EQ(rows.first, row);
                    ASSERT_GT(rows.last, rows.first);
                    ASSERT_LE(rows.last - rows.first, plan.row_tiles / plan.blocks + 1);
                    row = rows.last;
                    const int64_t stages = int64_t(rows.last - rows.first) * plan.row_stages;
                    int32_t stage = 0;
                    for (int32_t w = 0; w < plan.warps; ++w) {
                        const qk::cuda::Run run = plan.stages(rows, w);
                        ASSERT_EQ(run.first, stage);
                        ASSERT_LE(run.last - run.first, stages / plan.warps + 1);
                        stage = run.last;
                    }
                    ASSERT_EQ(stage, stages);
                }
                ASSERT_EQ(row, plan.row_tiles);
            }
        }
    }
}

TEST(CudaPlan, OneRowOfXOnAnH200) {
    const qk::cuda::GemvPlan small = qk::cuda::plan_gemv(4096, 4096, 132);
    EXPECT_EQ(small.blocks, 132);
    EXPECT_EQ(small.units, 8);
    EXPECT_EQ(small.partials, 8);
    EXPECT_EQ(small.sums_bytes, 2u * 8 * 64);  // two rows of tiles a block, a unit a warp
    const qk::cuda::GemvPlan large = qk::cuda::plan_gemv(57344, 8720, 132);
    EXPECT_EQ(large.tiles, 137);
    EXPECT_EQ(large.units, 18);
    EXPECT_EQ(large.partials, 16);
    EXPECT_EQ(qk::cuda::plan_gemv(16 * 132 * 32 + 1, 64, 132).blocks, 264);
}

// What the kernel does with a plan: every unit of every row of tiles falls to one warp.
TEST(CudaPlan, EveryUnitBelongsToOneWarp) {
    constexpr int32_t kWarps = qk::cuda::kGemvWarps;
    for (const int64_t n : {1, 16, 17, 4096, 5000}) {
        for (int64_t k = 64; k < 20000; k += 448) {
            for (const int32_t multiprocessors : {1, 8, 132}) {
                const qk::cuda::GemvPlan plan = qk::cuda::plan_gemv(n, k, multiprocessors);
                ASSERT_GE(int64_t(plan.units) * 512, k);
                int32_t row = 0;
                for (int32_t b = 0; b < plan.blocks; ++b) {
                    const qk::cuda::Run rows = plan.rows.part(b);
                    ASSERT_EQ(rows.first, row);
                    ASSERT_GT(rows.last, rows.first);
                    ASSERT_LE(rows.last - rows.first, qk::cuda::kBlockRows);
                    ASSERT_LE(uint32_t((rows.last - rows.first) * plan.partials * 64),
                              plan.sums_bytes);
                    row = rows.last;
                }
                ASSERT_GE(int64_t(row) * 16, n);
                for (int32_t warp = 0; warp < kWarps; ++warp) {
                    int32_t r = int32_t(uint32_t(warp) * plan.reciprocal >> 16);
                    int32_t unit = warp - r * plan.units;
                    for (int32_t j = warp; j < 5 * plan.units; j += kWarps) {
                        ASSERT_EQ(r, j / plan.units);
                        ASSERT_EQ(unit, j % plan.units);
                        r += plan.row_step;
                        unit += plan.unit_step;
                        if (unit < plan.units) continue;
                        unit -= plan.units;
                        ++r;
                    }
                }
            }
        }
    }
}

}  // namespace

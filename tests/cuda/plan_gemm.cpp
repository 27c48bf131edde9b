// How the matrix kernels cut a product, and slabs of its weight: tables, no GPU needed.
#include <gtest/gtest.h>

#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/linear/sm90/gemm/plan.hpp"

namespace {

using qk::cuda::Codes;
using qk::cuda::GemmCut;
using qk::cuda::GemmPlan;

TEST(CudaPlan, HowTheMatrixKernelCutsAnH200) {
    const struct {
        int64_t m, n, k;
        GemmCut cut;
        int32_t split;
        int32_t tail = 0;
    } rows[] = {
        {64, 4096, 4096, GemmCut::k64x64, 2},         {64, 4096, 14336, GemmCut::k64x64, 2},
        {33, 8192, 8192, GemmCut::k64x64, 1},         {64, 28672, 4096, GemmCut::k256x64, 1},
        {128, 4096, 4096, GemmCut::k128x128, 3},      {128, 8192, 8192, GemmCut::k128x128, 2},
        {128, 28672, 4096, GemmCut::k128x128, 1},     {256, 4096, 4096, GemmCut::k128x128, 2},
        {256, 6144, 4096, GemmCut::k192x128, 2},      {512, 6144, 4096, GemmCut::k192x128, 1},
        {256, 8192, 8192, GemmCut::k128x128, 1},      {256, 28672, 4096, GemmCut::k128x128, 1, 26},
        {512, 28672, 4096, GemmCut::k128x256, 1, 26}, {1024, 6144, 4096, GemmCut::k128x256, 1, 15},
        {4096, 4096, 4096, GemmCut::k128x256, 1},     {4096, 28672, 4096, GemmCut::k128x256, 1},
    };
    for (const auto &row : rows) {
        const GemmPlan plan = qk::cuda::plan_gemm(Codes::kU4, row.m, row.n, row.k, 132);
        EXPECT_EQ(plan.cut, row.cut) << row.m << ": " << row.n << " x " << row.k;
        EXPECT_EQ(plan.split, row.split) << row.m << ": " << row.n << " x " << row.k;
        EXPECT_EQ(plan.tail, row.tail) << row.m << ": " << row.n << " x " << row.k;
        EXPECT_EQ(qk::cuda::plan_gemm(Codes::kU4, row.m, row.n, row.k, 132, false).tail, 0);
    }
}

TEST(CudaPlan, HowTheMatrixKernelCutsBytesOnAnH200) {
    const struct {
        int64_t m, n, k;
        GemmCut cut;
        int32_t split;
    } rows[] = {
        {17, 4096, 4096, GemmCut::k64x64, 2},    {64, 6144, 4096, GemmCut::k64x64, 1},
        {64, 4096, 14336, GemmCut::k64x64, 2},   {64, 8192, 8192, GemmCut::k64x64, 1},
        {64, 28672, 4096, GemmCut::k256x64, 1},  {33, 4096, 4096, GemmCut::k64x64, 2},
        {128, 4096, 4096, GemmCut::k128x128, 3}, {128, 6144, 4096, GemmCut::k128x128, 2},
        {256, 4096, 4096, GemmCut::k128x128, 2}, {128, 8192, 8192, GemmCut::k128x128, 2},
    };
    for (const auto &row : rows) {
        for (const Codes codes : {Codes::kS8, Codes::kE4m3, Codes::kLut8}) {
            const GemmPlan plan = qk::cuda::plan_gemm(codes, row.m, row.n, row.k, 132);
            EXPECT_EQ(plan.cut, row.cut) << row.m << ": " << row.n << " x " << row.k;
            EXPECT_EQ(plan.split, row.split) << row.m << ": " << row.n << " x " << row.k;
        }
    }
    // A row of y does not depend on its batch: the cut is the same from 17 to 64 rows.
    for (int64_t n = 1; n < 70000; n += 811) {
        for (const int64_t k : {80, 1040, 4096, 14336}) {
            const GemmPlan few = qk::cuda::plan_gemm(Codes::kS8, 17, n, k, 132);
            const GemmPlan many = qk::cuda::plan_gemm(Codes::kS8, 64, n, k, 132);
            EXPECT_EQ(few.cut, many.cut);
            EXPECT_EQ(few.split, many.split);
        }
    }
}

// What is left for whole blocks fills waves, and the tail finds room at once, two blocks an item.
TEST(CudaPlan, ATailTakesTheLastWavesPlace) {
    int tails = 0;
    for (const GemmCut cut : {GemmCut::k128x128, GemmCut::k192x128, GemmCut::k128x256}) {
        const qk::cuda::GemmCost c = qk::cuda::cost_of(cut, Codes::kU4);
        for (int64_t m = 65; m < 5000; m += 123) {
            for (int64_t n = 1; n < 60000; n += 677) {
                for (const int32_t multiprocessors : {1, 2, 78, 132}) {
                    const int64_t tail = qk::cuda::tail_of(cut, m, n, multiprocessors);
                    if (tail == 0) continue;
                    ++tails;
                    const int64_t x_blocks = qk::ceil_div(m, c.x_rows);
                    const int64_t whole = (qk::ceil_div(n, c.rows) - tail) * x_blocks;
                    const int64_t at_once = 2 * qk::cuda::clusters_at_once(2, multiprocessors);
                    ASSERT_GT(whole, 0);
                    ASSERT_LE(tail * x_blocks * 2, at_once);
                    ASSERT_LE(whole, (whole + tail * x_blocks) / at_once * at_once);
                }
            }
        }
    }
    EXPECT_GT(tails, 1000);
}

TEST(CudaPlan, NoClusterHasMoreBlocksThanStages) {
    for (const int64_t k : {16, 64, 128, 300, 1000}) {
        for (const auto &[m, n] : {std::pair<int64_t, int64_t>{33, 500},
                                   {65, 500},
                                   {1000, 500},
                                   {500, 20000},
                                   {129, 17000}}) {
            for (const Codes codes : {Codes::kU4, Codes::kS8}) {
                const GemmPlan plan = qk::cuda::plan_gemm(codes, m, n, k, 132);
                const int64_t tiles = qk::cuda::cost_of(plan.cut, codes).stage_tiles;
                const int64_t stages = (k + 64 * tiles - 1) / (64 * tiles);
                EXPECT_LE(plan.tail > 0 ? 2 : plan.split, stages) << m << " " << k;
            }
        }
    }
}

TEST(CudaPlan, HowMiddleBatchesShareK) {
    const struct {
        int64_t m, n, k;
        int32_t multiprocessors, split;
    } rows[] = {
        {64, 4096, 4096, 132, 4},  {128, 4096, 4096, 132, 4},  {256, 4096, 4096, 132, 2},
        {64, 8192, 8192, 132, 4},  {64, 4096, 14336, 132, 8},  {64, 28672, 4096, 132, 1},
        {64, 1024, 4096, 132, 16}, {64, 16384, 16384, 132, 2}, {64, 128, 256, 132, 1},
        {64, 4096, 4096, 108, 6},  {64, 14336, 4096, 84, 3},   {64, 4096, 4096, 16, 1},
    };
    for (const auto &row : rows) {
        const int64_t x_blocks = qk::cuda::sm80_gemm_x_blocks(row.m);
        EXPECT_EQ(qk::cuda::sm80_gemm_split(x_blocks, row.n, row.k, row.multiprocessors), row.split)
            << row.m << ": " << row.n << " x " << row.k << " on " << row.multiprocessors;
    }
}

// Every part has stages, and who asks for the workspace of m rows has room for fewer.
TEST(CudaPlan, PartsOfKFitTheWorkspaceOfMoreRows) {
    for (const int32_t multiprocessors : {1, 16, 84, 132, 188}) {
        for (const int64_t n : {1, 129, 1000, 4096, 28672}) {
            for (const int64_t k : {16, 272, 4096, 28672}) {
                int64_t before = 0;
                for (int64_t m = 17; m < 2000; m += 47) {
                    const int32_t split = qk::cuda::sm80_gemm_split(qk::cuda::sm80_gemm_x_blocks(m),
                                                                    n, k, multiprocessors);
                    ASSERT_LE(split * 4, qk::max64(qk::ceil_div(k, 64), 4));
                    const int64_t bytes = qk::cuda::sm80_gemm_workspace(m, n, k, multiprocessors);
                    ASSERT_GE(bytes, before);
                    if (split > 1) {
                        ASSERT_GE(bytes, split * m * n * 4);
                    }
                    before = bytes;
                }
            }
        }
    }
}

// As include/qk.h promises of batches: the same cut for 17 .. 64, 65 .. 128, and 128 rows more.
TEST(CudaPlan, PartsOfKDoNotKnowTheBatch) {
    for (const int64_t m : {17, 65, 129, 257, 897}) {
        const int64_t last = m < 65 ? 64 : qk::round_up(m, 128);
        for (int64_t more = m; more <= last; ++more) {
            ASSERT_EQ(qk::cuda::sm80_gemm_x_blocks(more), qk::cuda::sm80_gemm_x_blocks(m)) << more;
            ASSERT_GE(qk::cuda::sm80_gemm_x_blocks(more) * qk::cuda::kSm80GemmBlockX, more);
        }
    }
}

TEST(CudaPlan, SlabsToRepack) {
    const struct {
        int64_t n, step_bytes, rows;
    } rows[] = {
        {1, 1 << 20, 1},
        {4096, 1622016, 4096},
        {57344, 3244032, 57344},
        {64000, 3244032, 32256},
        {128256, 3244032, 43008},
        {1536, int64_t{1} << 30, 768},
        {769, int64_t{1} << 30, 768},
    };
    for (const auto &row : rows) {
        EXPECT_EQ(qk::cuda::plan_repack(row.n, row.step_bytes), row.rows) << row.n;
    }
    // Blocks of every cut fit a slab.
    for (const GemmCut cut : {GemmCut::k64x64, GemmCut::k256x64, GemmCut::k128x128,
                              GemmCut::k192x128, GemmCut::k128x256}) {
        EXPECT_EQ(qk::cuda::kRepackStep % qk::cuda::cost_of(cut, Codes::kU4).rows, 0);
    }
}

TEST(CudaPlan, SlabsOfDense) {
    for (const int64_t n : {1, 255, 4096, 57344}) {
        for (const int64_t k : {16, 4096, 28672, 1 << 26}) {
            for (const int64_t bytes : {2, 4}) {
                const qk::cuda::DensePlan plan = qk::cuda::plan_dense(n, k, bytes);
                EXPECT_GE(plan.slab_rows, 1);
                EXPECT_LE(plan.slab_rows, n);
                EXPECT_TRUE(plan.slab_rows == n || plan.slab_rows % 256 == 0);
                EXPECT_GE(plan.slab_bytes, plan.slab_rows * k * bytes);
                // A slab, and what rounds it up to 256 rows.
                EXPECT_LE(plan.slab_bytes, qk::cuda::kSlabBytes + 256 * k * bytes + 256);
                EXPECT_EQ(plan.slab_bytes % 256, 0);
            }
        }
    }
}

}  // namespace

// Which kernel multiplies y = x . w, and how that of few rows cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include "cuda/linear/transposed_rows_plan.hpp"
#include "cuda/select_all.hpp"

namespace {

using qk::cuda::plan_strips;
using qk::cuda::StripPlan;
using namespace select_test;

TEST(CudaSelect, WhatTransposedProductsTake) {
    const auto kernel = [](Case c, const Card &card) {
        c.transposed = true;
        return kernel_of(facts_of(c, card.device), card.device, kAmple);
    };
    for (const qk_format format : {kU4, kNf4}) {
        for (const Card &card : kCards) {
            const bool hopper = card.device.capability == 90;
            const bool has_room =
                card.device.capability >= 90 && card.device.shared_bytes > 99 << 10;
            const char *const many = hopper ? "sm90 gemm transposed" : "dense";
            const char *const some = hopper ? many : "transposed tiles";
            const char *const few = has_room ? "transposed rows" : some;
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 1}, card), few);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 16}, card), few);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 8, kF16, 32}, card), few);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 8, kF16, 32, QK_FORMAT_LUT8}, card),
                      some);
            // Looked-up codes: a table leaves no room for so many f32 scales.
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 8, kF16, 16, QK_FORMAT_F32}, card),
                      format == kU4 ? few : some);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 8, kF16, 64, QK_FORMAT_LUT8}, card),
                      few);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 16, kF16, 64, QK_FORMAT_LUT8}, card),
                      few);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 17}, card), some);
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 5000, kF16, 16}, card), many);
            EXPECT_EQ(kernel({format, kPacked, 1000, 4112, 49}, card), many);
            // Rows of x are no whole 16 bytes.
            EXPECT_EQ(kernel({format, kPacked, 1004, 4096, 8}, card), "transposed tiles");
            EXPECT_EQ(kernel({format, kPacked, 1004, 4096, 48}, card), "transposed tiles");
            EXPECT_EQ(kernel({format, kPacked, 4096, 4096, 64, kF32}, card), "dense");
            EXPECT_EQ(kernel({format, kRow, 4096, 4096, 64}, card), "dense");
        }
    }
}

TEST(CudaPlan, HowTransposedRowsCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t cut, clusters;
    } rows[] = {
        {4096, 4096, 2, 64}, {28672, 4096, 2, 64}, {8192, 8192, 1, 128}, {4096, 14336, 1, 132},
        {4096, 1024, 4, 16}, {1040, 400, 4, 7},    {16, 64, 1, 1},
    };
    for (const auto &row : rows) {
        const StripPlan plan = plan_strips(row.n, row.k, 132, true);
        EXPECT_EQ(plan.cut, row.cut) << row.n << " x " << row.k;
        EXPECT_EQ(plan.clusters, row.clusters) << row.n << " x " << row.k;
        EXPECT_EQ(plan_strips(row.n, row.k, 132, false).cut, 1);
    }
}

// Every strip has a cluster, no block is without a multiprocessor, and columns and rows are all in
// strips and stacks of tiles.
TEST(CudaPlan, TransposedRowsFindRoom) {
    for (const int32_t multiprocessors : {16, 78, 114, 132, 148}) {
        for (int64_t k = 16; k < 40000; k = k * 3 / 2 + 16) {
            for (const int64_t n : {2, 18, 1000, 4096, 60000}) {
                const StripPlan p = plan_strips(n, k, multiprocessors, true);
                ASSERT_GE(p.clusters, 1);
                ASSERT_LE(p.clusters, p.strips);
                ASSERT_LE(p.clusters * p.cut, multiprocessors);
                ASSERT_GE(p.strips * qk::cuda::kStripColumns, k);
                ASSERT_LT((p.strips - 1) * qk::cuda::kStripColumns, k);
                const int64_t stacks = p.stacks.part(p.cut - 1).last;
                ASSERT_GE(stacks * 64, n);
                ASSERT_LT((stacks - 1) * 64, n);
            }
        }
    }
}

}  // namespace

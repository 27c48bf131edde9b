// How the kernel for small batches cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/linear/sm90/few_rows/plan.hpp"

namespace {

using qk::cuda::FewRowsPlan;

TEST(CudaPlan, HowSmallBatchesCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t width, height, passes, panel;
    } rows[] = {
        {4096, 4096, 16, 1, 2, 2},  {28672, 4096, 16, 1, 2, 7}, {8192, 8192, 16, 1, 4, 4},
        {57344, 8192, 16, 1, 4, 7}, {4096, 14336, 16, 1, 7, 2}, {6144, 5120, 14, 1, 3, 3},
        {28672, 1024, 8, 2, 1, 14}, {16, 4096, 16, 1, 2, 1},    {1, 256, 2, 1, 1, 1},
    };
    for (const auto &row : rows) {
        const FewRowsPlan plan = qk::cuda::plan_few_rows(row.n, row.k / 128, 2, 132, 7);
        EXPECT_EQ(plan.width, row.width) << row.n << " x " << row.k;
        EXPECT_EQ(plan.height, row.height) << row.n << " x " << row.k;
        EXPECT_EQ(plan.passes, row.passes) << row.n << " x " << row.k;
        EXPECT_EQ(plan.panel, row.panel) << row.n << " x " << row.k;
    }
}

// Every row of tiles is of one block, every chunk of it of one pass, and the sums fit their memory,
// whose size does not change the order of a row's sums.
TEST(CudaPlan, SmallBatchesMeetEveryChunkOnce) {
    for (int64_t chunks = 2; chunks < 500; chunks += 2) {
        for (const int64_t n : {1, 17, 2113, 60000}) {
            const FewRowsPlan large = qk::cuda::plan_few_rows(n, chunks, 2, 132, 8);
            for (const int32_t room : {1, 3, 8}) {
                const FewRowsPlan p = qk::cuda::plan_few_rows(n, chunks, 2, 132, room);
                ASSERT_EQ(p.width, large.width);
                ASSERT_EQ(p.height, large.height);
                ASSERT_LE(p.width * p.height, qk::cuda::kFewRowsWarps);
                ASSERT_EQ(p.width % 2, 0);
                ASSERT_EQ(p.panel % p.height, 0);
                ASSERT_GE(p.panel, 1);
                ASSERT_LE(p.panel_stages(), room);
                ASSERT_LT(p.width * (p.passes - 1), chunks);
                ASSERT_GE(p.width * p.passes, chunks);
                int32_t row = 0;
                for (int32_t b = 0; b < p.blocks; ++b) {
                    ASSERT_EQ(p.rows.part(b).first, row);
                    ASSERT_GT(p.rows.part(b).last, row);
                    row = p.rows.part(b).last;
                }
                ASSERT_EQ(row, (n + 15) / 16);
            }
        }
    }
}

}  // namespace

// How the kernel for 9 to 16 rows of x cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include "cuda/linear/sm90/cluster_rows/plan.hpp"

namespace {

using qk::cuda::ClusterRowsPlan;
using qk::cuda::plan_cluster_rows;

TEST(CudaPlan, HowClustersCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t clusters, width, rows;
    } rows[] = {
        {4096, 4096, 66, 16, 4},
        {28672, 4096, 66, 16, 28},
        {14336, 2304, 66, 10, 14},
        {16, 3072, 1, 12, 1},
    };
    for (const auto &row : rows) {
        const ClusterRowsPlan plan = plan_cluster_rows(row.n, row.k / 128, 2, 132);
        EXPECT_EQ(plan.clusters, row.clusters) << row.n << " x " << row.k;
        EXPECT_EQ(plan.width, row.width) << row.n << " x " << row.k;
        EXPECT_EQ(plan.most_rows(), row.rows) << row.n << " x " << row.k;
    }
}

// Every chunk of a row of tiles is of one block, neither of which is idle; every row of tiles is of
// one cluster and is stored by one block of it.
TEST(CudaPlan, ClustersMeetEveryChunkOnce) {
    constexpr int64_t kMost = qk::cuda::kClusterRowsColumns / 128;
    for (int64_t chunks = kMost / 2 + 2; chunks <= kMost; chunks += 2) {
        for (const int64_t n : {1, 17, 2113, 60000}) {
            const ClusterRowsPlan p = plan_cluster_rows(n, chunks, 2, 132);
            ASSERT_LE(p.width, qk::cuda::kClusterRowsWarps);
            ASSERT_EQ(p.width % 2, 0);
            ASSERT_LT(p.width, chunks);
            ASSERT_GE(2 * p.width, chunks);
            int32_t row = 0;
            for (int32_t c = 0; c < p.clusters; ++c) {
                ASSERT_EQ(p.rows.part(c).first, row);
                ASSERT_GT(p.rows.part(c).last, row);
                row = p.rows.part(c).last;
            }
            ASSERT_EQ(row, (n + 15) / 16);
            const int32_t most = p.most_rows();
            ASSERT_EQ(p.owned(most, 0) + p.owned(most, 1), most);
            ASSERT_GE(p.owned(most, 0), p.owned(most, 1));
        }
    }
}

}  // namespace

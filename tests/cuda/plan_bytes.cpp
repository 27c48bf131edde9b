// How the kernel for 8-bit codes cuts a weight: no GPU needed.
#include <gtest/gtest.h>

#include "cuda/linear/stored/bytes_plan.hpp"

namespace {

using qk::cuda::BytesPlan;
using qk::cuda::plan_bytes;

TEST(CudaPlan, HowBytesCutAnH200) {
    const struct {
        int64_t n, k;
        int32_t parts, blocks, height, panels;
    } rows[] = {{4096, 4096, 16, 132, 2, 1}, {28672, 4096, 16, 132, 4, 4},
                {8192, 8192, 16, 132, 4, 1}, {6144, 4096, 16, 132, 3, 1},
                {57344, 512, 4, 132, 4, 2},  {1, 16, 1, 1, 1, 1},
                {12000, 1408, 8, 132, 3, 1}};
    for (const auto &row : rows) {
        SCOPED_TRACE(std::to_string(row.n) + " x " + std::to_string(row.k));
        const BytesPlan p = plan_bytes(row.n, row.k, 132);
        EXPECT_EQ(p.parts(), row.parts);
        EXPECT_EQ(p.blocks, row.blocks);
        EXPECT_EQ(p.height, row.height);
        EXPECT_EQ(p.panels, row.panels);
    }
}

// Every tile is in a panel of its block, every slice of one warp, and no panel is higher than the
// registers.
TEST(CudaPlan, BytesMeetEveryTileOnce) {
    for (int64_t k = 16; k < 9000; k += 112) {
        for (const int64_t n : {1, 16, 17, 2112, 2113, 17000, 60000, 200000}) {
            for (const int32_t processors : {1, 20, 132}) {
                const BytesPlan p = plan_bytes(n, k, processors);
                ASSERT_EQ(p.tiles.part(p.blocks - 1).last, (n + 15) / 16);
                const int32_t most = p.tiles.each + (p.tiles.rest > 0);
                ASSERT_GE(p.panels * p.row_parts * p.height, most);
                ASSERT_LT((p.panels - 1) * p.row_parts * p.height, most);
                ASSERT_LE(p.height, qk::cuda::kBytesTiles);
                ASSERT_EQ(p.parts() * p.row_parts, qk::cuda::kBytesWarps);
                ASSERT_LE(p.parts(), p.slices);
                ASSERT_GE(int64_t{p.slices} * qk::cuda::kBytesColumns, k);
            }
        }
    }
}

}  // namespace

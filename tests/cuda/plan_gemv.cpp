// How the kernels for one row of x cut a weight: no GPU needed.
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm90/gemm/experts_plan.hpp"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"
#include "cuda/linear/stored/gemv_plan.hpp"
#include "cuda/select_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

// Every strip of an expert belongs to one block, whose rows of tiles and sums fit.
// One row of x from words along n.
TEST(CudaPlan, StripsOnAnH200) {
    const struct {
        int64_t n, k;
        int32_t wide, cut;
    } rows[] = {{4096, 4096, 1, 2},  {4096, 14336, 1, 2}, {8192, 8192, 2, 2}, {8192, 28672, 2, 2},
                {28672, 4096, 4, 1}, {57344, 8192, 4, 1}, {8192, 512, 1, 1}};
    for (const auto &row : rows) {
        const auto plan = qk::cuda::plan_columns_gemv({row.n, row.k, 128, 2, 132, 232448, true});
        EXPECT_EQ(plan.wide, row.wide) << row.n << " x " << row.k;
        EXPECT_EQ(plan.cut, row.cut) << row.n << " x " << row.k;
    }
}

TEST(CudaPlan, StripsAreCopiedBy16Bytes) {
    select_test::Case c = {QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM};
    const auto kernel = [&] {
        const qk::Device &d = select_test::kH200.device;
        return select_test::kernel_of(select_test::facts_of(c, d), d, select_test::kAmple);
    };
    EXPECT_EQ(kernel(), "stored columns gemv");
    c.off_zero = 4;
    EXPECT_EQ(kernel(), "stored columns");
}

// In groups of 32 and 64 as well, where the shared memory is small, and where there are no
// clusters.
TEST(CudaPlan, StripsHaveAllRowsAndFit) {
    int cases = 0;
    for (int64_t n = 32; n < 200000; n += n / 3 / 32 * 32 + 32) {
        for (const int64_t k : {8, 136, 1024, 2048, 4096, 11008, 28672}) {
            for (const int64_t group : {32, 64, 128}) {
                for (const int64_t shared : {166912, 232448}) {
                    const bool clusters = cases++ % 2 == 0;
                    const auto p =
                        qk::cuda::plan_columns_gemv({n, k, group, 2, 132, shared, clusters});
                    ASSERT_GE(p.strips.each, 1);
                    ASSERT_LT(p.strips.rest, p.clusters);
                    const int64_t strips = int64_t(p.strips.each) * p.clusters + p.strips.rest;
                    ASSERT_EQ(strips, (n + 64 * p.wide - 1) / (64 * p.wide));
                    ASSERT_GE(int64_t(p.units) * qk::cuda::strip_columns(p.wide), k);
                    ASSERT_LE(qk::cuda::strip_columns(p.wide), std::max(int64_t{32}, group));
                    ASSERT_TRUE(p.cut == 1 || (clusters && p.units >= 16 * p.cut));
                    const bool fits = qk::cuda::columns_gemv_shared(p, 2) <= shared;
                    ASSERT_TRUE(fits || group < 64);
                }
            }
        }
    }
}

TEST(CudaPlan, ExpertsAreCutIntoStrips) {
    constexpr int64_t kRoom = 100000;
    for (const auto &[rows, k, slots] : std::vector<std::array<int64_t, 3>>{
             {16, 64, 1}, {96, 2048, 8}, {1536, 2048, 8}, {28672, 4096, 2}, {4096, 14336, 32}}) {
        for (const bool halves : {false, true}) {
            if (halves && rows % 32 != 0) continue;
            for (const bool summed : {false, true}) {
                const auto cut = qk::cuda::cut_experts(rows, slots, summed, halves);
                ASSERT_EQ(cut.strips * cut.tiles * 16, rows);
                if (cut.tiles * cut.slots > qk::cuda::kBlockRows) continue;  // none takes it
                const auto gemv = qk::cuda::plan_gemv(16, k, 1);
                const auto plan = qk::cuda::plan_experts(cut, 5, gemv, kRoom, 264, 16);
                const int64_t most = plan.strips.each + (plan.strips.rest > 0);
                ASSERT_EQ(plan.strips.part(plan.blocks - 1).last, cut.strips);
                ASSERT_LE(most * cut.tiles * cut.slots, qk::cuda::kBlockRows);
                ASSERT_EQ(int64_t{plan.gemv.sums_bytes},
                          most * cut.tiles * cut.slots * plan.gemv.partials * 64);
                const auto small = qk::cuda::plan_experts(cut, 5, gemv, kRoom / 10, 264, 16);
                ASSERT_EQ(small.strips.part(small.blocks - 1).last, cut.strips);
                ASSERT_TRUE(small.strips.each <= 1 || small.gemv.sums_bytes <= kRoom / 10);
            }
        }
    }
}

// The last blocks of few do not run alone: all run at once, or in rounds that are full.
TEST(CudaPlan, BlocksOfExpertsEndTogether) {
    const auto blocks = [](int64_t tokens, int64_t slots, int64_t inner, int64_t k) {
        const auto cut = qk::cuda::cut_experts(2 * inner, slots, false, true);
        const auto gemv = qk::cuda::plan_gemv(16, k, 1);
        const int64_t heads = tokens * slots;
        return heads * qk::cuda::plan_experts(cut, heads, gemv, 30000, 264, 16).blocks;
    };
    EXPECT_EQ(blocks(1, 8, 768, 2048), 192);  // a unit a warp
    EXPECT_EQ(blocks(1, 4, 2880, 2880), 240);
    EXPECT_EQ(blocks(4, 4, 2880, 2880), 240);  // not 272
    EXPECT_EQ(blocks(4, 2, 14336, 4096), 512);
}

// 12 warps just where they deal a strip's units evenly, 16 do not, and each unit is a sum.
TEST(CudaPlan, WarpsOfExpertsShareUnits) {
    const auto warps = [](int64_t slots, bool summed, bool halves, int64_t k) {
        const auto cut = qk::cuda::cut_experts(96, slots, summed, halves);
        return qk::cuda::experts_warps(cut, qk::cuda::plan_gemv(16, k, 1));
    };
    EXPECT_EQ(warps(4, false, true, 2880), 12);       // gate and up in halves: 12 units
    EXPECT_EQ(warps(4, false, false, 2880), 12);      // interleaved: 6
    EXPECT_EQ(warps(4, true, false, 2880), 12);       // down: 24
    EXPECT_EQ(warps(8, true, false, 1536), 12);       // 24
    EXPECT_EQ(warps(1, false, false, 1040), 12);      // 3, a shape of CudaGemvExperts
    EXPECT_EQ(warps(8, false, true, 2048), 16);       // 8
    EXPECT_EQ(warps(8, true, false, 768), 16);        // 16
    EXPECT_EQ(warps(8, false, true, 7168), 16);       // 28, of neither
    EXPECT_EQ(warps(1, false, false, 64), 16);        // 1, of both
    EXPECT_EQ(warps(1, false, false, 24 * 512), 16);  // 24 units of a row are 16 sums
}

// What a block of the kernel for rows of an expert keeps follows each other and fits; its rows of x
// are as many as an item's at least, and read without a conflict between banks.
TEST(CudaPlan, RowsOfExpertsFitABlock) {
    for (const int64_t k : {16, 64, 768, 2048, 2880, 7168, 14336, 20000}) {
        for (const auto &[count, slots] : std::vector<std::pair<int64_t, int64_t>>{
                 {1, 1}, {8, 47}, {128, 767}, {256, 1535}, {1024, 6143}}) {
            for (const int64_t room : {30000, 90000, 140000}) {
                const auto plan = qk::cuda::plan_gemv_rows(count, slots, k, room);
                const int64_t pitch = plan.x_pitch, sums = plan.counts;
                ASSERT_GE(pitch, k * 2 + 16);
                ASSERT_EQ(pitch % 128, 16);
                ASSERT_LE(plan.item_rows, qk::cuda::kItemRows);
                if (plan.item_rows == 0) {
                    ASSERT_GT(pitch + qk::cuda::rows_sums(1) + (count + slots) * 4 + 16, room);
                    continue;
                }
                ASSERT_EQ(sums, qk::cuda::rows_sums(plan.item_rows));
                ASSERT_EQ(plan.slots, plan.counts + count * 4);
                ASSERT_GE(plan.x, plan.slots + slots * 4);
                ASSERT_EQ(plan.x % 16, 0u);
                ASSERT_GE(int64_t{plan.x_room}, plan.item_rows);
                ASSERT_EQ(plan.end, plan.x + plan.x_room * pitch);
                ASSERT_LE(plan.end, room);
                const bool all = plan.x_room == uint32_t(plan.item_rows) * qk::cuda::kRowsKeptItems;
                ASSERT_TRUE(all || plan.end + pitch > room);
            }
        }
    }
    // Of the models that were measured, in U4: DeepSeek-V3, Mixtral-8x7B.
    const auto rows = [](int64_t k) {
        constexpr int64_t kFixed = 83504;  // groups of 128, f16 scales
        return qk::cuda::plan_gemv_rows(256, 512, k, 227 * 1024 - kFixed).item_rows;
    };
    EXPECT_EQ(rows(7168), 8);
    EXPECT_EQ(rows(14336), 4);
}

// By the rows of x that an expert has: Qwen3-30B-A3B and DeepSeek-V3 at 256, 1024 and 4096 tokens.
TEST(CudaPlan, RowsOfItemsOfExperts) {
    const qk::cuda::GemmExpertsKind u4 = {false, false, false, false};
    const qk::cuda::GemmExpertsKind nf4 = {false, false, true, false};
    const qk::cuda::GemmExpertsKind nested = {false, true, true, false};
    const auto rows = [](int64_t tokens, int64_t count, const qk::cuda::GemmExpertsKind &kind) {
        return qk::cuda::gemm_item_rows(tokens, 8, count, kind);
    };
    EXPECT_EQ(rows(256, 128, u4), 32);
    EXPECT_EQ(rows(1024, 128, u4), 96);
    EXPECT_EQ(rows(4096, 128, u4), 160);
    EXPECT_EQ(rows(256, 256, u4), 32);
    EXPECT_EQ(rows(1024, 256, u4), 64);
    EXPECT_EQ(rows(4096, 256, u4), 160);
    EXPECT_EQ(rows(1024, 128, nf4), 64);
    EXPECT_EQ(rows(4096, 128, nf4), 160);
    EXPECT_EQ(rows(4096, 128, nested), 128);
    // Where they change: 24 rows an expert, 56 and 80, and 96 where codes are looked up.
    const auto each =
        [](int64_t rows_an_expert, int64_t more, const qk::cuda::GemmExpertsKind &kind) {
        return qk::cuda::gemm_item_rows(rows_an_expert * 16 + more, 8, 128, kind);
    };
    const qk::cuda::GemmExpertsKind mxfp4 = {true, true, true, true};  // which has no table
    for (const auto &[kind, last, most] :
         {std::tuple{u4, 56, 96}, {nf4, 96, 160}, {nested, 96, 128}, {mxfp4, 56, 160}}) {
        EXPECT_EQ(each(24, 0, kind), 32);
        EXPECT_EQ(each(24, 1, kind), 64);
        EXPECT_EQ(each(25, 0, kind), 64);
        EXPECT_EQ(each(last, 0, kind), 64);
        EXPECT_EQ(each(last, 1, kind), most);
        EXPECT_EQ(each(last + 1, 0, kind), most);
    }
    EXPECT_EQ(qk::cuda::gemm_item_rows(24, 1, 1, u4), 32);
    EXPECT_EQ(qk::cuda::gemm_item_rows(25, 1, 1, u4), 64);
    EXPECT_EQ(each(80, 0, u4), 96);
    EXPECT_EQ(each(80, 1, u4), 160);
    EXPECT_EQ(qk::cuda::gemm_item_rows(57, 1, 1, u4), 96);
    EXPECT_EQ(qk::cuda::gemm_item_rows(81, 1, 1, u4), 160);
    EXPECT_EQ(qk::cuda::gemm_item_rows(97, 1, 1, nf4), 160);
}

// The list has room for any routing, and what the workspace holds does not overlap; at most 256
// MiB. Rows of experts need no list, and come in passes.
TEST(CudaPlan, ExpertsLists) {
    for (const int64_t tokens : {1, 7, 64, 5000, 100000}) {
        for (const int64_t count : {1, 8, 128, 1024}) {
            for (const bool summed : {false, true}) {
                for (const int kind : {0, 1, 2}) {
                    const bool gemm = kind > 0;
                    const qk::cuda::GemmExpertsKind of = {false, true, kind == 2, false};
                    const auto plan =
                        gemm ? qk::cuda::plan_gemm_list(tokens, 8, count, 7168, summed, 2048, of)
                             : qk::cuda::plan_rows_list(tokens, 8, count, 7168, summed);
                    const int64_t rows = plan.tokens * 8;
                    // All experts have one row more than whole items, as far as rows go.
                    const int64_t touched = std::min(rows, count + 2);
                    const int64_t worst = gemm ? touched + (rows - touched) / plan.item_rows : 0;
                    ASSERT_GE(plan.items, worst);
                    const int64_t items = plan.items * int64_t(sizeof(qk::cuda::ExpertsItem));
                    ASSERT_GE(plan.order, gemm ? 16 + items : 0);
                    ASSERT_GE(plan.z - plan.order, gemm ? rows * 4 : 0);
                    ASSERT_EQ(plan.x - plan.z, summed ? rows * plan.columns * 4 : 0);
                    ASSERT_EQ(plan.end - plan.x, gemm ? plan.x_rows * 2048 * 2 : 0);
                    const int64_t last = plan.rows < rows ? plan.item_rows : 0;  // its end
                    ASSERT_TRUE(plan.rows > 0 && plan.x_rows == plan.rows + last);
                    ASSERT_TRUE(plan.rows == rows || (gemm && !summed));
                    ASSERT_EQ(plan.order % 128 + plan.z % 128 + plan.x % 128, 0);
                    ASSERT_TRUE(plan.columns == 7168 ||
                                (summed && gemm && plan.columns % 128 == 0));
                    ASSERT_TRUE(plan.tokens == tokens || summed || !gemm);
                    ASSERT_TRUE(gemm || plan.tokens * 8 <= qk::cuda::kRowsSlots + 8);
                    ASSERT_TRUE(gemm || summed || plan.end == 0);
                    ASSERT_TRUE(plan.end < int64_t{256} << 20 || !(summed || gemm));
                }
            }
        }
    }
}

// What a layer of experts with one list has in the workspace: x of gate and up, then z of down in
// its place, and x of down behind both.
TEST(CudaPlan, LayersOfExperts) {
    const qk::LinearArgs none = {};
    const int64_t shapes[][2] = {{512, 256}, {128, 4096}, {2048, 768}, {7168, 2048}};  // y, x
    int moved = 0, in_passes = 0;
    for (const int64_t tokens : {1, 64, 1000, 5000}) {
        for (const auto &[columns, inner] : shapes) {
            for (const bool summed : {false, true}) {
                const qk::cuda::GemmExpertsKind u4 = {false, false, false, false};
                const auto up = qk::cuda::plan_gemm_list(tokens, 8, 128, inner, false, 2048, u4);
                const auto down =
                    qk::cuda::plan_gemm_list(tokens, 8, 128, columns, summed, inner, u4);
                const int64_t rows = tokens * 8;
                if (up.rows != rows || down.rows != rows || down.tokens != tokens) continue;
                const qk::cuda::ExpertsLayer layer = {none, none, up, down};
                const int64_t x = layer.x_of_down();
                ASSERT_EQ(x % 128, 0);
                ASSERT_GE(x, down.z + up.end - up.x);
                ASSERT_GE(x, down.x);
                ASSERT_EQ(layer.end() - x, down.x_rows * inner * 2);
                ASSERT_TRUE(up.items == down.items && up.order == down.order && up.z == down.z);
                moved += x > down.x, in_passes += down.columns < columns;
            }
        }
    }
    EXPECT_TRUE(moved > 0 && in_passes > 0);
}

}  // namespace

// How several rows of x an expert are cut for the kernel that multiplies them as the one for one
// row of x does (rows.cuh): a pure function of the problem and the device.
#pragma once
#include "cuda/linear/experts_list.hpp"
#include "cuda/linear/sm90/gemv/experts_plan.hpp"

namespace qk::cuda {

constexpr int32_t kItemRows = 8;   // of x, which a product has columns for
constexpr int32_t kRowsWarps = 8;  // of a block; two blocks a multiprocessor
constexpr int32_t kRowsWaves = 4;  // of blocks: as one ends late, the others have some more to do

static constexpr ExpertsListPlan plan_rows_list(int64_t tokens, int64_t slots, int64_t count,
                                                int64_t columns, bool summed) {
    return plan_list({tokens, slots, count, columns, summed, kItemRows, columns, 0});
}

struct GemvRowsProblem {
    GemvProblem gemv;  // without bias and y
    ExpertsView e;
    ExpertsCut cut;
    ExpertsList list;
    int32_t blocks;  // an item
    Deal strips;     // to them
    int64_t x_stride;
    bool second_by_row;
};

struct GemvRowsPlan {
    int32_t blocks;
    Deal strips;
    uint32_t sums_bytes;
};

// The warps' partial sums (GemvRowsWarp::take_sums), by a plan for one row of x.
static constexpr GemvPlan plan_sums(GemvPlan plan) {
    plan.row_step = kRowsWarps / plan.partials;
    plan.unit_step = kRowsWarps % plan.partials;
    plan.reciprocal = uint32_t(ceil_div(65536, plan.partials));
    return plan;
}

// `room`: bytes of a block's sums; `items`: that there may be.
static constexpr GemvRowsPlan plan_gemv_rows(const ExpertsCut &cut, const GemvPlan &gemv,
                                             int64_t items, int64_t room, int64_t multiprocessors) {
    const int64_t row_bytes = int64_t{gemv.partials} * kItemRows * 64;
    const int64_t most = max64(min64(kBlockRows, room / row_bytes) / cut.tiles, 1);
    const int64_t least = ceil_div(2 * kRowsWarps, int64_t{gemv.units} * cut.tiles);
    const int64_t even = ceil_div(items * cut.strips, 2 * kRowsWaves * multiprocessors);
    const int64_t step = min64(max64(even, least), min64(most, cut.strips));
    const int32_t blocks = int32_t(ceil_div(cut.strips, step));
    const Deal strips = deal(cut.strips, blocks);
    const int64_t rows = (strips.each + (strips.rest > 0)) * cut.tiles;
    return {blocks, strips, uint32_t(rows * row_bytes)};
}

// Of the largest instance, with the sums of two rows of tiles.
constexpr int64_t kGemvRowsShared = kGemvShared + 2 * kGemvWarps * kItemRows * 64;

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct GemvRows {
    static Status run(const GemvRowsProblem &p, int64_t items, qk_format scale,
                      const Launch &launch);
};

}  // namespace qk::cuda

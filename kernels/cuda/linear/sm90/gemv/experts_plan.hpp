// How products with experts are cut for the kernel for one row of x (experts.cuh): a pure function
// of the problem and the device.
#pragma once
#include "cuda/linear/experts.cuh"
#include "cuda/linear/sm90/gemv/plan.hpp"

namespace qk::cuda {

// A block has a row of y and a run of its strips: 16 rows of w in each of the row's slots, or 16 of
// gate and 16 of up where these are halves of an expert.
struct ExpertsCut {
    int64_t strips;  // of an expert
    int32_t tiles;   // rows of tiles of a strip
    int32_t slots;   // of a block
};

static constexpr ExpertsCut cut_experts(int64_t rows, int64_t slots, bool summed, bool halves) {
    const int32_t tiles = halves ? 2 : 1;
    return {rows / (16 * tiles), tiles, int32_t(summed ? min64(slots, kBlockRows + 1) : 1)};
}

// Whether so many warps get as many units each, of a strip or of some together.
static constexpr bool share_evenly(int32_t warps, int64_t units) {
    return units % warps == 0 || warps % units == 0;
}

// Warps of a block. Of 12 each unit is a partial sum, which needs rows of up to 16 units.
constexpr int32_t kFewerWarps = 12;

static constexpr int32_t experts_warps(const ExpertsCut &cut, const GemvPlan &gemv) {
    const int64_t units = int64_t{cut.tiles} * cut.slots * gemv.units;  // of a strip
    const bool fewer = gemv.units <= kGemvWarps && share_evenly(kFewerWarps, units) &&
                       !share_evenly(kGemvWarps, units);
    return fewer ? kFewerWarps : kGemvWarps;
}

struct ExpertsPlan {
    GemvPlan gemv;   // what depends on k, and the sums of a block
    int32_t blocks;  // a row of y
    Deal strips;     // to them
};

// Blocks of a row of y, between `least` and `most`, so that the last of all blocks, `together` at a
// time, ends first. A block begins and ends in the time of some units a warp, half of it beside
// other blocks; `units`: a strip's; `warps`: of a block.
static constexpr int32_t experts_blocks(int64_t strips, int64_t units, int64_t heads, int64_t least,
                                        int64_t most, int64_t together, int32_t warps) {
    int64_t best = least, best_cost = INT64_MAX;
    for (int64_t blocks = least; blocks <= most; ++blocks) {
        const int64_t waves = ceil_div(heads * blocks, together);
        const int64_t cost = waves * (warps / 2 + ceil_div(strips, blocks) * units);
        if (cost < best_cost) best = blocks, best_cost = cost;
        if (heads * blocks > 8 * together) break;
    }
    return int32_t(best);
}

// `together`: blocks that run at once; `room`: bytes of a block's sums, where one strip's fit.
static constexpr ExpertsPlan plan_experts(const ExpertsCut &cut, int64_t heads, GemvPlan gemv,
                                          int64_t room, int64_t together, int32_t warps) {
    const int64_t tiles = int64_t(cut.tiles) * cut.slots, units = gemv.units * tiles;
    const int64_t rows_at_most = min64(kBlockRows, room / (int64_t{gemv.partials} * 64));
    const int64_t least = ceil_div(cut.strips, max64(rows_at_most / tiles, 1));
    const int64_t most = max64(cut.strips / ceil_div(warps, units), least);
    const int32_t blocks = experts_blocks(cut.strips, units, heads, least, most, together, warps);
    const Deal strips = deal(cut.strips, blocks);
    const int64_t rows = (strips.each + (strips.rest > 0)) * tiles;
    gemv.sums_bytes = uint32_t(rows * gemv.partials * 64);
    gemv.row_step = warps / gemv.units, gemv.unit_step = warps % gemv.units;
    return {gemv, blocks, strips};
}

// Shared memory of a block that leaves room for another; each takes 1 KiB beside its own.
static constexpr int64_t half_of_shared(int64_t of_block) { return (of_block + 1024) / 2 - 1024; }

// The expert and the row of x of each slot of a block that is there, the experts of all, how many
// are there, the block's row of y and its strips.
constexpr uint32_t kSlotExperts = kBlockRows * 8, kSlotsThere = kSlotExperts + kBlockRows * 4;
constexpr uint32_t kHead = kSlotsThere + 4, kSlotBytes = kSlotsThere + 16;
// Of the largest instance, with its sums.
constexpr int64_t kExpertsShared = kGemvShared + kBlockRows * kGemvWarps * 64 + kSlotBytes;

struct GemvExpertsProblem {
    GemvProblem gemv;  // without bias and y
    ExpertsView e;
    ExpertsCut cut;
    ExpertsPlan plan;  // of the instance
    int64_t x_stride;
    bool second_by_row;  // nested: a second scale a row of w; else by second_shift
    bool routed_early;   // the routing can be read before the kernel in front has finished
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct GemvExperts {
    static Status run(const GemvExpertsProblem &p, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda

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

struct ExpertsPlan {
    GemvPlan gemv;   // what depends on k, and the sums of a block
    int32_t blocks;  // a row of y
    Deal strips;     // to them
};

// Strips of a block: as many as leave no multiprocessor idle, but a unit for every warp.
static constexpr ExpertsPlan plan_experts(const ExpertsCut &cut, int64_t heads, int64_t k,
                                          int64_t multiprocessors) {
    GemvPlan gemv = plan_gemv(16, k, 1);
    const int64_t tiles = int64_t(cut.tiles) * cut.slots;
    const int64_t least = ceil_div(kGemvWarps, gemv.units * tiles);
    const int64_t even = ceil_div(heads * cut.strips, 2 * multiprocessors);
    const int64_t most = max64(kBlockRows / tiles, 1);
    const int64_t step = min64(max64(even, least), min64(most, cut.strips));
    const int32_t blocks = int32_t(ceil_div(cut.strips, step));
    const Deal strips = deal(cut.strips, blocks);
    const int64_t rows = (strips.each + (strips.rest > 0)) * tiles;
    gemv.sums_bytes = uint32_t(rows * gemv.partials * 64);
    return {gemv, blocks, strips};
}

// The expert and the row of x of each slot of a block that is there, the experts of all, and how
// many are there.
constexpr uint32_t kSlotExperts = kBlockRows * 8, kSlotsThere = kSlotExperts + kBlockRows * 4;
constexpr uint32_t kSlotBytes = kSlotsThere + 16;
// Of the largest instance, with its sums.
constexpr int64_t kExpertsShared = kGemvShared + kBlockRows * kGemvWarps * 64 + kSlotBytes;

struct GemvExpertsProblem {
    GemvProblem gemv;  // without bias and y
    ExpertsView e;
    ExpertsCut cut;
    ExpertsPlan plan;
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

// How the matrix kernel cuts a product: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk::cuda {

// What a block owns: rows of w x rows of x. Narrow: 64 or 256 x 64.
enum class GemmCut { kThinNarrow, kTallNarrow, k128x128, k192x128, k128x256 };

struct GemmPlan {
    GemmCut cut;
    int32_t split;  // blocks of a cluster, which share k
};

struct GemmCost {
    int32_t rows, x_rows;       // of a block
    int32_t stage_tiles;        // tiles of 64 columns that k is cut by
    int32_t tile, item, start;  // nanoseconds: of a tile; of an item's end; of the launch
    int32_t meet;               // more where a cluster adds up
};

// Measured on an H200; on another card of its kind the ratios hold.
constexpr GemmCost cost_of(GemmCut cut, bool pairs) {
    switch (cut) {
        case GemmCut::kThinNarrow: return {64, 64, 4, pairs ? 145 : 130, 3000, 2500, 500};
        case GemmCut::kTallNarrow: return {256, 64, 2, 490, 3500, 2500, 1500};
        case GemmCut::k128x128:
            if (pairs) return {128, 128, 2, 440, 1740, 2100, 2830};
            return {128, 128, 2, 370, 1020, 2100, 2240};
        case GemmCut::k192x128:
            if (pairs) return {192, 128, 2, 600, 1900, 2100, 2480};
            return {192, 128, 2, 550, 1300, 2100, 1780};
        default:
            if (pairs) return {128, 256, 1, 710, 1880, 2100, 2240};
            return {128, 256, 1, 700, 1680, 2100, 1990};
    }
}

constexpr int32_t kMaxSplit = 4;

// Clusters of this size that run at once on any card: they do not straddle its groups of 16 or 18
// multiprocessors, of which each card has its own mixture.
constexpr int64_t clusters_at_once(int32_t size, int32_t multiprocessors) {
    constexpr int32_t on_132[kMaxSplit + 1] = {0, 132, 66, 36, 28};
    return max64(int64_t{on_132[size]} * multiprocessors / 132, 1);
}

constexpr int64_t gemm_nanoseconds(GemmPlan plan, bool pairs, int64_t m, int64_t n, int64_t k,
                                   int32_t multiprocessors) {
    const GemmCost c = cost_of(plan.cut, pairs);
    const int64_t clusters = ceil_div(n, c.rows) * ceil_div(m, c.x_rows);
    const int64_t waves = ceil_div(clusters, clusters_at_once(plan.split, multiprocessors));
    const int64_t stages = ceil_div(ceil_div(k, 64 * c.stage_tiles), plan.split);
    const int64_t item = stages * c.stage_tiles * c.tile + c.item + (plan.split > 1 ? c.meet : 0);
    return waves * item + c.start;
}

// The cheapest cut; the first of equals.
constexpr GemmPlan plan_gemm(bool pairs, int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    constexpr GemmCut cuts[] = {GemmCut::kThinNarrow, GemmCut::kTallNarrow, GemmCut::k128x128,
                                GemmCut::k192x128, GemmCut::k128x256};
    const bool narrow = m <= 64;
    GemmPlan best = {};
    int64_t least = INT64_MAX;
    for (const GemmCut cut : cuts) {
        if (narrow != (cost_of(cut, pairs).x_rows == 64)) continue;
        for (int32_t split = 1; split <= kMaxSplit; ++split) {
            const GemmPlan plan = {cut, split};
            const int64_t cost = gemm_nanoseconds(plan, pairs, m, n, k, multiprocessors);
            if (cost < least) best = plan, least = cost;
        }
    }
    return best;
}

}  // namespace qk::cuda

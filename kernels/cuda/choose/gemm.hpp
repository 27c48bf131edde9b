// How the matrix kernel cuts a product: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk::cuda {

// A block of `thin` owns 64 rows of w, one of `tall` 256; of x 64 rows (narrow) or 128 (wide).
enum class GemmCut { kThinNarrow, kTallNarrow, kThinWide, kTallWide };

struct GemmPlan {
    GemmCut cut;
    int32_t split;  // blocks of a cluster, which share k
};

struct GemmCost {
    int32_t rows, x_rows;      // of a block
    int32_t stage_tiles;       // tiles of 64 columns that k is cut by
    int32_t tile, start, meet;  // nanoseconds: of a tile; of a block; more where a cluster adds up
};

// Measured on an H200; on another card of its kind the ratios hold.
constexpr GemmCost cost_of(GemmCut cut, bool pairs) {
    switch (cut) {
        case GemmCut::kThinNarrow: return {64, 64, 4, 148, 5000, 500};
        case GemmCut::kTallNarrow: return {256, 64, 2, 560, 6000, 1500};
        case GemmCut::kThinWide:
            return pairs ? GemmCost{128, 128, 2, 400, 6000, 2000}
                         : GemmCost{64, 128, 4, 215, 6000, 2000};
        default: return {256, 128, 2, 720, 7000, 1500};
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
    return waves * (stages * c.stage_tiles * c.tile + c.start + (plan.split > 1 ? c.meet : 0));
}

// The cheapest cut; the first of equals.
constexpr GemmPlan plan_gemm(bool pairs, int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    const bool narrow = m <= 64;
    GemmPlan best = {narrow ? GemmCut::kThinNarrow : GemmCut::kThinWide, 1};
    int64_t least = gemm_nanoseconds(best, pairs, m, n, k, multiprocessors);
    const GemmCut cuts[] = {best.cut, narrow ? GemmCut::kTallNarrow : GemmCut::kTallWide};
    for (const GemmCut cut : cuts) {
        for (int32_t split = 1; split <= kMaxSplit; ++split) {
            const GemmPlan plan = {cut, split};
            const int64_t cost = gemm_nanoseconds(plan, pairs, m, n, k, multiprocessors);
            if (cost < least) best = plan, least = cost;
        }
    }
    return best;
}

}  // namespace qk::cuda

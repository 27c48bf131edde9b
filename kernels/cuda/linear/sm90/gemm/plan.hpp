// How the matrix kernel cuts a product: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "cuda/tile/problem.hpp"

namespace qk::cuda {

// What a block owns: rows of w x rows of x. To 64 rows of x: 64 or 256 x 64; with groups of 16 and
// 32 columns, 128 or 256 x 64.
enum class GemmCut { k64x64, k256x64, k128x64, k128x128, k192x128, k128x256 };

struct GemmPlan {
    GemmCut cut;
    int32_t split;     // blocks of a cluster, which share k
    int32_t tail = 0;  // with split 1: the last blocks of rows of w, whose k two blocks share
};

struct GemmCost {
    int32_t rows, x_rows;       // of a block
    int32_t stage_tiles;        // tiles of 64 columns that k is cut by
    int32_t tile, item, start;  // nanoseconds: of a tile; of an item's end; of the launch
    int32_t meet;               // more where a cluster adds up
};

// Measured on an H200; on another card of its kind the ratios hold.
constexpr GemmCost cost_of(GemmCut cut, Codes codes) {
    const bool pairs = codes == Codes::kLut4;
    if (codes == Codes::kS8 || codes == Codes::kE4m3 || codes == Codes::kLut8) {
        const bool entries = codes == Codes::kLut8;
        switch (cut) {
            case GemmCut::k64x64: return {64, 64, 4, entries ? 200 : 160, 3000, 3000, 500};
            case GemmCut::k256x64: return {256, 64, 2, entries ? 760 : 560, 3500, 3000, 1500};
            case GemmCut::k128x128:
                if (entries) return {128, 128, 2, 560, 1500, 2500, 4000};
                return {128, 128, 2, 400, 1500, 2500, 2500};
            case GemmCut::k192x128:
                if (entries) return {192, 128, 2, 1040, 1600, 2500, 4000};
                return {192, 128, 2, 610, 1600, 2500, 2500};
            default:
                if (entries) return {128, 256, 1, 950, 1880, 2500, 4000};
                return {128, 256, 1, 740, 1880, 2500, 2240};
        }
    }
    switch (cut) {
        case GemmCut::k64x64: return {64, 64, 4, pairs ? 145 : 130, 3000, 2500, 500};
        case GemmCut::k256x64: return {256, 64, 2, 490, 3500, 2500, 1500};
        case GemmCut::k128x64: return {128, 64, 2, 260, 1500, 2100, 2000};
        case GemmCut::k128x128:
            if (pairs) return {128, 128, 2, 410, 1740, 2100, 2830};
            return {128, 128, 2, 370, 1020, 2100, 2240};
        case GemmCut::k192x128:
            if (pairs) return {192, 128, 2, 580, 1900, 2100, 2480};
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

// Blocks of rows of w for a last wave of half the length, where all multiprocessors in pairs hold
// it: it takes the place of a wave that most of them would be idle in. 0: there is none, or many
// waves come before it: then the card is at its power limit, and what idles lets others run faster.
constexpr int32_t tail_of(GemmCut cut, int64_t m, int64_t n, int32_t multiprocessors) {
    const GemmCost c = cost_of(cut, Codes::kU4);
    const int64_t row_blocks = ceil_div(n, c.rows), x_blocks = ceil_div(m, c.x_rows);
    const int64_t at_once = 2 * clusters_at_once(2, multiprocessors);
    const int64_t items = row_blocks * x_blocks, left = items % at_once;
    const int64_t rows = ceil_div(left, x_blocks);
    const bool few = items > at_once && items <= 8 * at_once;
    return few && rows * x_blocks * 2 <= at_once ? int32_t(rows) : 0;
}

constexpr int64_t gemm_nanoseconds(GemmPlan plan, Codes codes, int64_t m, int64_t n, int64_t k,
                                   int32_t multiprocessors) {
    const GemmCost c = cost_of(plan.cut, codes);
    const int64_t clusters = (ceil_div(n, c.rows) - plan.tail) * ceil_div(m, c.x_rows);
    const int64_t waves = ceil_div(clusters, clusters_at_once(plan.split, multiprocessors));
    const auto item = [&](int64_t split) {
        const int64_t stages = ceil_div(ceil_div(k, 64 * c.stage_tiles), split);
        return stages * c.stage_tiles * c.tile + c.item + (split > 1 ? c.meet : 0);
    };
    return waves * item(plan.split) + (plan.tail > 0 ? item(2) : 0) + c.start;
}

enum class GemmKind { kUsual, kSmallGroups, kTransposed };  // small: of 16 and 32 columns

// The cuts that a kind has instances of.
constexpr bool has_cut(GemmCut cut, GemmKind kind) {
    switch (cut) {
        case GemmCut::k128x64: return kind != GemmKind::kUsual;
        case GemmCut::k256x64: return kind != GemmKind::kTransposed;
        case GemmCut::k128x128:
        case GemmCut::k128x256: return true;
        default: return kind == GemmKind::kUsual;
    }
}

// The cheapest cut; the first of equals. `one_slab`: all rows of w are there at once (a tail would
// be elsewhere in each slab). Transposed: n and k are the columns and the rows of w.
constexpr GemmPlan plan_gemm(Codes codes, int64_t m, int64_t n, int64_t k, int32_t multiprocessors,
                             bool one_slab = true, GemmKind kind = GemmKind::kUsual) {
    constexpr GemmCut cuts[] = {GemmCut::k64x64,   GemmCut::k256x64,  GemmCut::k128x64,
                                GemmCut::k128x128, GemmCut::k192x128, GemmCut::k128x256};
    const bool small = m <= 64;
    GemmPlan best = {};
    int64_t least = INT64_MAX;
    for (const GemmCut cut : cuts) {
        if (small != (cost_of(cut, codes).x_rows == 64)) continue;
        if (!has_cut(cut, kind)) continue;
        const auto consider = [&](GemmPlan plan) {
            const int64_t cost = gemm_nanoseconds(plan, codes, m, n, k, multiprocessors);
            if (cost < least) best = plan, least = cost;
        };
        for (int32_t split = 1; split <= kMaxSplit; ++split) consider({cut, split});
        const int32_t tail = tail_of(cut, m, n, multiprocessors);
        if (tail > 0 && one_slab && !small) consider({cut, 1, tail});
    }
    return best;
}

}  // namespace qk::cuda

// How the transposed product of few rows of x (linear/transposed_rows.cu) cuts a weight: a function
// of its shape and the device, not of the rows of x.
#pragma once
#include "cuda/linear/sm90/gemm/plan.hpp"

namespace qk::cuda {

constexpr int32_t kStripWarps = 16;  // of a block
constexpr int64_t kStripRows = 16;   // of x
constexpr int64_t kStripColumns = 64;
constexpr int32_t kStackTiles = 4;

// Groups of a tile: 4, 2 or one, which goes on in other tiles.
constexpr int32_t strip_parts(int64_t group_size, int64_t groups_per_row) {
    return groups_per_row > 1 && group_size < kStripColumns ? int32_t(kStripColumns / group_size)
                                                            : 1;
}

// A strip is cut into stacks of tiles, one below the other. Each cluster takes strip after strip;
// its blocks divide the stacks.
struct StripPlan {
    int32_t strips, cut, clusters;  // cut: blocks of a cluster
    Deal stacks;                    // to the blocks of a cluster
};

// In the time of a stack: a strip's end, and more where blocks meet.
constexpr int64_t kStripEnd = 4, kStripMeets = 4;

constexpr StripPlan plan_strips(int64_t n, int64_t k, int32_t multiprocessors, bool has_clusters) {
    const int64_t strips = ceil_div(k, kStripColumns), stacks = ceil_div(n, 16 * kStackTiles);
    StripPlan best = {};
    int64_t least = INT64_MAX;
    for (int32_t cut = 1; cut <= (has_clusters ? kMaxSplit : 1); ++cut) {
        const int64_t clusters = min64(strips, clusters_at_once(cut, multiprocessors));
        const int64_t end = kStripEnd + (cut > 1 ? kStripMeets : 0);
        const int64_t cost = ceil_div(strips, clusters) * (ceil_div(stacks, cut) + end);
        if (cost < least) {
            best = {int32_t(strips), cut, int32_t(clusters), deal(stacks, cut)};
            least = cost;
        }
    }
    return best;
}

constexpr int64_t kStripShared = 227 * 1024;  // bytes of a block's memory

}  // namespace qk::cuda

// How the kernel for 9 to 16 rows of x (linear/sm90/cluster_rows/cluster_rows.cu) cuts a weight: a
// pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kClusterRowsWarps = 16;
constexpr int32_t kClusterRowsMost = 16;  // rows of x
constexpr int32_t kClusterRowsBlocks = 2;
// Of w, that the blocks of a cluster have warps for.
constexpr int64_t kClusterRowsColumns = kClusterRowsBlocks * kClusterRowsWarps * 128;

// A cluster takes a run of rows of tiles (16 rows of the weight each), and its two blocks divide k:
// a block has `width` chunks of some columns of each of them, a warp one, so that it loads its
// columns of x once.
struct ClusterRowsPlan {
    int32_t clusters, chunks, width;  // chunks: of a row of tiles
    Deal rows;                        // of tiles, to clusters

    QK_HD constexpr int32_t most_rows() const { return rows.each + (rows.rest > 0); }
    // Of those that block `rank` of a cluster with `count` rows stores: every other.
    QK_HD static constexpr int32_t owned(int32_t count, int32_t rank) {
        return (count - rank + kClusterRowsBlocks - 1) / kClusterRowsBlocks;
    }
};

// `step`: chunks are dealt in multiples of it. The order of a row's sums does not depend on the
// device.
static constexpr ClusterRowsPlan plan_cluster_rows(int64_t n, int64_t chunks, int32_t step,
                                                   int32_t multiprocessors) {
    const int64_t row_tiles = ceil_div(n, 16);
    const int32_t clusters =
        int32_t(min64(row_tiles, max64(multiprocessors / kClusterRowsBlocks, 1)));
    const int32_t width = int32_t(round_up(ceil_div(chunks, kClusterRowsBlocks), step));
    return {clusters, int32_t(chunks), width, deal(row_tiles, clusters)};
}

// Bytes of a block beside its sums and second scales: of the instance that takes most.
constexpr int64_t kClusterRowsFixed = 161 * 1024;

// Of the sums of all blocks of the rows that one stores.
QK_HD static constexpr int64_t cluster_rows_sums(const ClusterRowsPlan &plan) {
    return int64_t{plan.owned(plan.most_rows(), 0)} * kClusterRowsBlocks * 1024;
}

static constexpr int64_t cluster_rows_shared(const ClusterRowsPlan &plan, int64_t groups_per_row,
                                             int64_t second_group) {
    return kClusterRowsFixed + cluster_rows_sums(plan) +
           second_bytes(plan.rows, groups_per_row, second_group);
}

template <Codes codes, qk_format x>
struct ClusterRows {
    static Status run(const LinearArgs &args, const Launch &launch);
};

}  // namespace qk::cuda

// How the kernels on a ring of stages (tile/ring.cuh) cut a weight: a pure function of the
// problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/linear/sm80/gemv/plan.hpp"

namespace qk::cuda {

constexpr int32_t kRingWarps = 16;  // that multiply; one more issues the copies
constexpr int32_t kChunkTiles = 4;  // a warp's part of a stage: 16 rows x 256 columns
constexpr int64_t kChunkColumns = kChunkTiles * 64;

// Every block takes a run of rows of tiles (16 rows of the weight each). A stage is up to 16
// neighbouring chunks of one of them, chunk c of a row always belongs to warp c mod 16, and the
// warps' sums of a row are added in warp order once a panel of rows is through.
struct RingPlan {
    int32_t blocks;
    int32_t row_tiles;   // of the weight
    int32_t chunks;      // of a row of tiles
    int32_t row_stages;  // of a row of tiles
    int32_t panel;       // rows of tiles whose partial sums shared memory holds at once
    int32_t buffers;     // of partial sums: 2 where a block has more than one panel
    Deal rows;           // to blocks
};

// `room`: rows of tiles whose partial sums fit one buffer.
static constexpr RingPlan plan_ring(int64_t n, int64_t k, int32_t multiprocessors, int32_t room) {
    const int64_t row_tiles = ceil_div(n, 16), chunks = ceil_div(k, kChunkColumns);
    const int32_t blocks = int32_t(min64(row_tiles, multiprocessors));
    const Deal rows = deal(row_tiles, blocks);
    const int32_t most = rows.each + (rows.rest > 0);
    const int32_t panels = int32_t(ceil_div(most, room));
    return {blocks,
            int32_t(row_tiles),
            int32_t(chunks),
            int32_t(ceil_div(chunks, kRingWarps)),
            int32_t(ceil_div(most, panels)),
            panels > 1 ? 2 : 1,
            rows};
}

}  // namespace qk::cuda

// How the kernel for one row of x (linear/sm90/gemv/gemv.cu) cuts a weight: a pure function of the
// problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/linear/sm80/gemv/plan.hpp"

namespace qk::cuda {

constexpr int32_t kVectorWarps = 16;
constexpr int32_t kUnitTiles = 8;  // of 64 columns: a warp's unit of work is 16 rows x 512 columns
constexpr uint32_t kUnitBytes = kUnitTiles * 512;
constexpr int64_t kUnitColumns = kUnitTiles * 64;
constexpr int64_t kBlockRows = 32;  // rows of tiles a block takes at most

// Every block takes a run of rows of tiles (16 rows of the weight each): R rows of U units, one
// run of memory. Unit number j of a block belongs to warp j mod 16. The sums of units u, u + 16,
// ... of a row are one partial sum, whose warp differs from row to row but not its order: the order
// of all additions depends on k alone.
struct VectorPlan {
    int32_t blocks;
    int32_t tiles, units;         // of a row of tiles
    int32_t partials;             // of a row of tiles
    int32_t row_step, unit_step;  // 16 units are so many rows and units
    uint32_t reciprocal;          // 2^16 / units, rounded up
    uint32_t sums_bytes;          // of a block's partial sums
    Deal rows;                    // to blocks
};

// Whether a weight is for linear/sm90/gemv/deep.cu where that can run: it is the faster one for
// large weights whose codes are looked up (docs/performance-cuda.md).
static constexpr bool prefers_stages(int64_t n, int64_t k, bool looked_up) {
    return looked_up && n * k > int64_t{1} << 27;
}

static constexpr VectorPlan plan_vector(int64_t n, int64_t k, int64_t most_blocks) {
    const int64_t row_tiles = ceil_div(n, 16), tiles = ceil_div(k, 64);
    const int64_t units = ceil_div(tiles, kUnitTiles);
    const int64_t waves = ceil_div(row_tiles, most_blocks * kBlockRows);
    const int32_t blocks = int32_t(min64(row_tiles, most_blocks * waves));
    const Deal rows = deal(row_tiles, blocks);
    const int64_t most = rows.each + (rows.rest > 0), partials = min64(units, kVectorWarps);
    return {blocks,
            int32_t(tiles),
            int32_t(units),
            int32_t(partials),
            int32_t(kVectorWarps / units),
            int32_t(kVectorWarps % units),
            uint32_t(ceil_div(65536, units)),
            uint32_t(most * partials * 64),
            rows};
}

}  // namespace qk::cuda

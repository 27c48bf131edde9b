// How sm80 gemv cuts a weight: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kStageTiles = 4;  // tiles of 64 columns that travel together

struct Sm80GemvDevice {
    int32_t multiprocessors;
    bool large_shared_memory;  // 160 KiB or more a block
};

// Every block takes a run of rows of tiles, and its warps take equal runs of the stages in it,
// across the ends of rows: no warp has more than one stage more than its neighbour. The divisions
// are done here: on the device they would delay the first load by a microsecond.
struct Sm80GemvPlan {
    int32_t warps;       // of a block
    int32_t row_tiles;   // of the weight
    int32_t row_stages;  // of a row of tiles
    int32_t blocks;
    Deal rows;       // to blocks
    Deal few, many;  // stages to warps, in blocks of rows.each and rows.each + 1 rows

    QK_HD constexpr Run stages(Run block, int32_t warp) const {
        return block.last - block.first == rows.each ? few.part(warp) : many.part(warp);
    }
};

// One block fills a multiprocessor. Depends on n, k and the device, not on the batch: a row of y
// gets the same bits in every batch.
static constexpr Sm80GemvPlan plan_sm80_gemv(int64_t n, int64_t k, Sm80GemvDevice device) {
    const int64_t row_tiles = ceil_div(n, 16), stages = ceil_div(ceil_div(k, 64), kStageTiles);
    const int32_t blocks = int32_t(min64(row_tiles, device.multiprocessors));
    const int32_t warps = device.large_shared_memory ? 24 : 8;
    const Deal rows = deal(row_tiles, blocks);
    return {warps,
            int32_t(row_tiles),
            int32_t(stages),
            blocks,
            rows,
            deal(rows.each * stages, warps),
            deal((rows.each + 1) * stages, warps)};
}

static constexpr Sm80GemvDevice sm80_gemv_device(int32_t multiprocessors, int32_t shared_bytes) {
    return {multiprocessors, shared_bytes >= 160 * 1024};
}

constexpr int64_t kSm80GemvRing = 4704,
                  kSm80GemvTable = 32 * 1024;  // of a warp; of looked-up codes

// Bytes of a block.
static constexpr int64_t sm80_gemv_shared(Sm80GemvDevice device, bool lut4) {
    return (lut4 ? kSm80GemvTable : 0) + (device.large_shared_memory ? 24 : 8) * kSm80GemvRing;
}

}  // namespace qk::cuda

// How the small-batch kernel cuts a weight: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk::cuda {

constexpr int32_t kStageTiles = 4;  // tiles of 64 columns that travel together

struct MatvecDevice {
    int32_t multiprocessors;
    bool large_shared_memory;  // 160 KiB or more a block
};

struct Run {
    int32_t first, last;
};

// `count` things dealt to `parts` in order, the first `rest` of which get one more than `each`.
struct Deal {
    int32_t each, rest;

    QK_HD constexpr Run part(int32_t index) const {
        const int32_t first = index * each + (index < rest ? index : rest);
        return {first, first + each + (index < rest)};
    }
};

static constexpr Deal deal(int64_t count, int32_t parts) {
    return {int32_t(count / parts), int32_t(count % parts)};
}

// Every block takes a run of rows of tiles, and its warps take equal runs of the stages in it,
// across the ends of rows: no warp has more than one stage more than its neighbour. The divisions
// are done here: on the device they would delay the first load by a microsecond.
struct MatvecPlan {
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
static constexpr MatvecPlan plan_matvec(int64_t n, int64_t k, MatvecDevice device) {
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

static constexpr MatvecDevice matvec_device(int32_t multiprocessors, int32_t shared_bytes) {
    return {multiprocessors, shared_bytes >= 160 * 1024};
}

constexpr int64_t kMatvecRing = 4704, kMatvecTable = 64 * 1024;  // of a warp; of looked-up codes

// Bytes of a block.
static constexpr int64_t matvec_shared(MatvecDevice device, bool lut4) {
    return (lut4 ? kMatvecTable : 0) + (device.large_shared_memory ? 24 : 8) * kMatvecRing;
}

}  // namespace qk::cuda

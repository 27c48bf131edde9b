// How the kernel for small batches (linear/sm90/few_rows/few_rows.cu) cuts a weight: a pure
// function of the problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kFewRowsWarps = 16;

// Every block takes a run of rows of tiles (16 rows of the weight each), cut into chunks of some
// columns. A stage is up to 16 chunks, one a warp: `width` neighbouring ones of `height` rows of
// tiles. All rows of a panel pass by before their next `width` chunks do, so that a warp keeps its
// columns of x; its sums of a row stay in shared memory until the panel is through.
struct FewRowsPlan {
    int32_t blocks;
    int32_t chunks;         // of a row of tiles
    int32_t width, height;  // of a stage
    int32_t passes;         // over k
    int32_t panel;          // rows of tiles
    Deal rows;              // to blocks

    QK_HD constexpr int32_t panel_stages() const { return (panel + height - 1) / height; }
};

// `step`: chunks are dealt in multiples of it. `room`: stages whose sums fit shared memory; the
// order of a row's sums does not depend on it.
static constexpr FewRowsPlan plan_few_rows(int64_t n, int64_t chunks, int32_t step,
                                           int32_t multiprocessors, int32_t room) {
    const int64_t row_tiles = ceil_div(n, 16);
    const int32_t blocks = int32_t(min64(row_tiles, multiprocessors));
    const Deal rows = deal(row_tiles, blocks);
    const int32_t most = rows.each + (rows.rest > 0);
    FewRowsPlan plan = {blocks, int32_t(chunks), 0, 0, 0, 0, rows};
    // The fewest passes that keep four warps of five busy, else those that keep most of them.
    const int32_t fewest = int32_t(ceil_div(chunks, kFewRowsWarps));
    int32_t best = 0;
    for (int32_t passes = fewest; passes < fewest + 4 && best < 80; ++passes) {
        const int32_t width = int32_t(round_up(ceil_div(chunks, passes), step));
        const int32_t height = int32_t(min64(kFewRowsWarps / width, most));
        const int32_t stages = int32_t(ceil_div(chunks, width));
        const int32_t busy = int32_t(chunks * height * 100 / (stages * kFewRowsWarps));
        if (busy <= best) continue;
        best = busy;
        plan.width = width;
        plan.height = height;
        plan.passes = stages;
    }
    // Panels of one size, not full ones and a rest.
    const int64_t stages = ceil_div(most, plan.height), panels = ceil_div(stages, room);
    plan.panel = int32_t(ceil_div(stages, panels)) * plan.height;
    return plan;
}

// Bytes of a block: of the instance that takes most, with one stage, and its second scales.
constexpr int64_t kFewRowsShared = 161856;

static constexpr int64_t few_rows_shared(int64_t n, int64_t groups_per_row, int64_t second_group,
                                         int32_t multiprocessors) {
    const int64_t row_tiles = ceil_div(n, 16);
    const Deal rows = deal(row_tiles, int32_t(min64(row_tiles, multiprocessors)));
    return kFewRowsShared + second_bytes(rows, groups_per_row, second_group);
}

template <Codes codes, qk_format x>
struct FewRows {
    static Status run(const LinearArgs &args, const Launch &launch);
};

}  // namespace qk::cuda

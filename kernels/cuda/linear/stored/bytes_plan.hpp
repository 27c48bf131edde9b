// How the kernel for 8-bit codes (linear/stored/bytes.cu) cuts a weight: a pure function of the
// problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kBytesWarps = 16;
constexpr int32_t kBytesColumns = 128;  // of a slice: what a warp takes of k at a time
constexpr int32_t kBytesTiles = 4;      // of 16 rows: what a warp takes of n at a time, at most

// A block takes a run of tiles of 16 rows, `height` of them a panel and a part of the rows. `parts`
// warps divide k: warp s of them has slices s, s + parts, ... Where k is short, the others take
// other rows. The order of a row's sums depends on k alone.
struct BytesPlan {
    int32_t slices;      // of a row
    int32_t part_shift;  // log2 of `parts`
    int32_t row_parts;
    int32_t height, panels;
    int32_t blocks;
    Deal tiles;  // to blocks

    QK_HD constexpr int32_t parts() const { return 1 << part_shift; }
};

constexpr int64_t kBytesShared = 230912;  // of a block: of the instance that takes most

static constexpr BytesPlan plan_bytes(int64_t n, int64_t k, int32_t multiprocessors) {
    BytesPlan plan = {};
    plan.slices = int32_t(ceil_div(k, kBytesColumns));
    while (2 << plan.part_shift <= kBytesWarps && 2 << plan.part_shift <= plan.slices) {
        ++plan.part_shift;
    }
    plan.row_parts = kBytesWarps >> plan.part_shift;
    const int64_t tiles = ceil_div(n, 16);
    plan.blocks = int32_t(min64(tiles, multiprocessors));
    plan.tiles = deal(tiles, plan.blocks);
    const int64_t most = plan.tiles.each + (plan.tiles.rest > 0);
    plan.panels = int32_t(ceil_div(most, kBytesTiles * plan.row_parts));
    plan.height = int32_t(ceil_div(most, int64_t{plan.panels} * plan.row_parts));
    return plan;
}

}  // namespace qk::cuda

// How the transposed product of few rows of x (linear/transposed_rows.cu) cuts a weight: a function
// of its shape, the device and whether x has more than 8 rows.
#pragma once
#include "base/checked.hpp"

namespace qk::cuda {

constexpr int32_t kStripAcross = 2;  // tiles of a strip of columns
constexpr int32_t kStripWarps = 16;  // of a block
constexpr int64_t kStripRows = 16;   // of x
constexpr int64_t kStripColumns = kStripAcross * 64;

// Tiles side by side that a warp has of a step: sums of 16 rows of x leave registers for one.
constexpr int32_t tiles_of_warp(int32_t x_blocks) { return x_blocks == 1 ? kStripAcross : 1; }
// Rows of tiles of a step.
constexpr int32_t strip_down(int32_t x_blocks) {
    return kStripWarps * tiles_of_warp(x_blocks) / kStripAcross;
}

// All steps, strip after strip, are dealt to the blocks in equal runs. A block whose run covers a
// part of a strip leaves its sums in the workspace: in the first of its two places where its run
// starts in this strip, else in the second.
struct StripPlan {
    int32_t strips, steps;  // steps: of a strip
    int32_t blocks;

    QK_HD constexpr int64_t first_of(int64_t block) const {
        return int64_t{strips} * steps * block / blocks;
    }
    // The block whose run has this step.
    QK_HD constexpr int32_t block_of(int64_t step) const {
        const int64_t all = int64_t{strips} * steps;
        return int32_t(((step + 1) * blocks - 1) / all);
    }
    QK_HD constexpr bool is_whole(int64_t block, int64_t strip) const {
        return first_of(block) <= strip * steps && first_of(block + 1) >= (strip + 1) * steps;
    }
    QK_HD constexpr int64_t place_of(int64_t block, int64_t strip) const {
        return block * 2 + (first_of(block) / steps == strip ? 0 : 1);
    }
};

// A run is two steps at least.
constexpr StripPlan plan_strips(int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    const int64_t strips = ceil_div(k, kStripColumns);
    const int64_t steps = ceil_div(n, 16 * strip_down(m <= 8 ? 1 : 2));
    const int64_t most = max64(1, strips * steps / 2);
    return {int32_t(strips), int32_t(steps), int32_t(min64(multiprocessors, most))};
}

constexpr int64_t strips_workspace(int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    return int64_t{plan_strips(m, n, k, multiprocessors).blocks} * 2 * m * kStripColumns * 4;
}

}  // namespace qk::cuda

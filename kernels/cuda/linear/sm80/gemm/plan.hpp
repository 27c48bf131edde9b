// How the matrix kernel on mma.sync cuts a product: a pure function of the problem and the device.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "cuda/tile/problem.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

constexpr int64_t kSm80GemmBlockRows = 128, kSm80GemmBlockX = 64;  // of w, of x (32: half a block)
constexpr int32_t kSm80GemmMostSplit = 16;

// Nanoseconds. Two blocks share a multiprocessor. Measured on an H200; on other cards the ratios
// are others, but more blocks than multiprocessors, fewer than two each, is right everywhere.
constexpr int64_t sm80_gemm_nanoseconds(int64_t blocks, int64_t stages, int32_t split,
                                        int32_t multiprocessors) {
    constexpr int64_t kPair = 840, kAlone = 510;   // of a stage of two blocks, of one
    constexpr int64_t kStart = 2500, kAdd = 1700;  // of a block; of the second kernel
    constexpr int64_t kPart = kSm80GemmBlockRows * kSm80GemmBlockX * 8;  // bytes to write and read
    const int64_t all = blocks * split, each = ceil_div(stages, split);
    const int64_t load = ceil_div(all, multiprocessors);
    const int64_t turns = load / 2 * (kPair * each + kStart) + load % 2 * (kAlone * each + kStart);
    return turns + (split > 1 ? kAdd + all * kPart / 5000 : 0);
}

// Parts of k, a block each; `x_blocks`: sm80_gemm_x_blocks(m).
constexpr int32_t sm80_gemm_split(int64_t x_blocks, int64_t n, int64_t k, int32_t multiprocessors) {
    const int64_t blocks = ceil_div(n, kSm80GemmBlockRows) * x_blocks, stages = ceil_div(k, 64);
    if (blocks >= 2 * multiprocessors) return 1;
    int32_t best = 1;
    int64_t least = sm80_gemm_nanoseconds(blocks, stages, 1, multiprocessors);
    for (int32_t split = 2; split <= kSm80GemmMostSplit && split * 4 <= stages; ++split) {
        const int64_t cost = sm80_gemm_nanoseconds(blocks, stages, split, multiprocessors);
        if (cost < least) best = split, least = cost;
    }
    return best;
}

// Blocks of rows of x that decide how k is shared: the same for 128 rows at a time from 65 on, so
// that a row of y is the same in all batches of 65 to 128, 129 to 256, ... (include/qk.h).
constexpr int64_t sm80_gemm_x_blocks(int64_t m) {
    return m <= kSm80GemmBlockX ? 1 : 2 * ceil_div(m, 2 * kSm80GemmBlockX);
}

// f32 sums of all parts. Grows with m, as callers who ask once for the largest m must find, though
// fewer rows of x may be cut into more parts.
constexpr int64_t sm80_gemm_workspace(int64_t m, int64_t n, int64_t k, int32_t multiprocessors) {
    int64_t rows = 0;
    for (int64_t x_blocks = 1; x_blocks <= sm80_gemm_x_blocks(m) &&
                               ceil_div(n, kSm80GemmBlockRows) * x_blocks < 2 * multiprocessors;
         x_blocks += x_blocks == 1 ? 1 : 2) {
        const int32_t split = sm80_gemm_split(x_blocks, n, k, multiprocessors);
        if (split > 1) rows = max64(rows, split * min64(m, x_blocks * kSm80GemmBlockX));
    }
    return rows * round_up(n, 16) * 4;
}

struct Sm80GemmProblem : LinearView {
    int64_t y_pitch;       // elements from a row of y to the next
    int32_t row_tiles;     // of 16 rows
    int32_t tiles;         // of 64 columns
    int32_t group_shift;   // log2 of the tiles a group
    int32_t second_shift;  // nested: log2 of second_group
    int32_t x_blocks;      // that rows of x are cut into: the fastest in the grid
    int32_t split;         // parts of k, a block each
    int32_t slots;         // of the ring
    float *parts;          // split > 1: [part][m][row_tiles * 16]
};

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct Sm80Gemm {
    static Status run(const Launch &launch, Sm80GemmProblem *p);
};

}  // namespace qk::cuda

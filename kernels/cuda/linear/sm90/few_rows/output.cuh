// How the sums of the kernel for few rows of x (linear/sm90/few_rows/kernel.cuh) become y.
#pragma once
#include "cuda/linear/sm90/few_rows/ring.cuh"

namespace qk::cuda {
namespace {

// kParts: columns of sums of a row of x (f32.cuh).
template <class T, class Map, int kParts = 1>
struct FewRowsOutput {
    const FewRowsProblem &p;
    int32_t x_row;             // what this lane adds up: of every team'th row of tiles, a row of x
    uint32_t row, team, sums;  // and of w, in its row of tiles
    bool works = true;

    __device__ explicit FewRowsOutput(const FewRowsProblem &problem) : p(problem) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        // The halves of a warp read columns 4 apart: different banks.
        const uint32_t column = warp % 4 + warp % (Map::kColumns / 2) / 4 * 8 + lane / 16 * 4;
        x_row = int32_t(blockIdx.y * Map::kColumns + column);
        if constexpr (kParts > 1) {  // that of column 2 (kParts i + part) + j is number 2 i + j
            const uint32_t number = column / (2 * kParts) * 2 + column % 2;
            x_row = int32_t(blockIdx.y * (Map::kColumns / kParts) + number);
            works = column / 2 % kParts == 0;
        }
        row = lane % 16;
        team = warp / (Map::kColumns / 2);
        sums = Map::kSums + column * kColumnBytes + row * 4;
    }

    // What `count` warps have summed of one row of tiles, in their order.
    __device__ static float add_warps(uint32_t from, int32_t count) {
        float y = __uint_as_float(shared_load_4(from));
        if (count == kFewRowsWarps) {
#pragma unroll
            for (int i = 1; i < kFewRowsWarps; ++i) {
                y = __fadd_rn(y, __uint_as_float(shared_load_4(from + i * Map::kWarpSums)));
            }
            return y;
        }
#pragma unroll 1
        for (int i = 1; i < count; ++i) {
            y = __fadd_rn(y, __uint_as_float(shared_load_4(from + i * Map::kWarpSums)));
        }
        return y;
    }

    // One value of y.
    __device__ void store(int32_t row_tile, float y) const {
        const int64_t at = int64_t(row_tile) * 16 + row;
        if (at < p.n) store_sum<T>(p, at, x_row, y);
    }

    // By all warps, when the rows of tiles [first, last) are through.
    __device__ void store_panel(int32_t first, int32_t last) const {
        constexpr int32_t kTeams = 2 * kFewRowsWarps / int32_t(Map::kColumns);
        if (!works || x_row >= p.m) return;
#pragma unroll 1
        for (int32_t i = int32_t(team); i < last - first; i += kTeams) {
            const int32_t stage = p.plan.height == 1 ? i : i / p.plan.height;
            const int32_t below = i - stage * p.plan.height;
            const uint32_t from = sums + uint32_t(stage) * Map::kStageSums +
                                  uint32_t(below * p.plan.width) * Map::kWarpSums;
            float y = add_warps(from, p.plan.width);
#pragma unroll
            for (int part = 1; part < kParts; ++part) {
                y = __fadd_rn(y, add_warps(from + part * (2 * kColumnBytes), p.plan.width));
            }
            store(first + i, y);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

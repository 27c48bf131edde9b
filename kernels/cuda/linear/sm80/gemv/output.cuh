// The problem of the small-batch kernel, and how its sums become y.
#pragma once
#include <type_traits>

#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/prim/mma.cuh"
#include "cuda/tile/output.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

struct Problem : LinearView {
    Sm80GemvPlan plan;
    int32_t group_shift;   // log2 of the tiles a group
    int32_t second_shift;  // nested: log2 of second_group
};

template <class T>
__device__ void store_y(const Problem &p, int64_t row, int64_t x_row, float y) {
    if (row >= p.w.geometry.n || x_row >= p.m) return;
    store_output(p, kFormatOf<T>, row, x_row * p.w.geometry.n + row, y);
}

// A row of tiles that one warp has summed alone.
template <class T, int kBatches>
__device__ void store_whole(const Problem &p, int32_t row_tile, int64_t x_first,
                            const float (&acc)[kBatches][4]) {
    const int lane = int(threadIdx.x) & 31;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            store_y<T>(p, int64_t(row_tile) * 16 + lane / 4 + i / 2 * 8,
                       x_first + b * 8 + lane % 4 * 2 + i % 2, acc[b][i]);
        }
    }
}

// Partial sums: at most two a warp, of the rows of tiles that its run starts and ends in.
template <int kBatches>
struct Partials {
    float sum[2][kBatches][4];
    int32_t row_tile[2] = {-1, -1};
};

// Adds the partial sums of every row of tiles in warp order. Called by the whole block once the
// rings are free: sums go to [warp][piece][batch][column of 8][row], their rows of tiles behind.
template <class T, int kBatches>
__device__ void store_partials(const Problem &p, float *sums, Run rows, int64_t x_first,
                               const Partials<kBatches> &partials) {
    constexpr int kOutputs = kBatches * 128;
    const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
    const int pieces = p.plan.warps * 2;
    int32_t *const owners = reinterpret_cast<int32_t *>(sums + pieces * kOutputs);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
        float *const to = sums + (warp * 2 + piece) * kOutputs;
        if (lane == 0) owners[warp * 2 + piece] = partials.row_tile[piece];
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                to[(b * 8 + column) * 16 + row] = partials.sum[piece][b][i];
            }
        }
    }
    __syncthreads();
    for (int32_t row_tile = rows.first + warp; row_tile < rows.last; row_tile += p.plan.warps) {
        const bool there = lane < p.plan.warps;
        const uint32_t heads = __ballot_sync(~0u, there && owners[lane * 2] == row_tile);
        const uint32_t tails = __ballot_sync(~0u, there && owners[lane * 2 + 1] == row_tile);
        float y[kOutputs / 32];
        bool first = true;
        for (uint32_t left = heads | tails; left != 0; left &= left - 1) {
            const int owner = __ffs(int(left)) - 1;
            const float *const from = sums + (owner * 2 + !(heads >> owner & 1)) * kOutputs + lane;
#pragma unroll
            for (int j = 0; j < kOutputs / 32; ++j) {
                y[j] = first ? from[j * 32] : __fadd_rn(y[j], from[j * 32]);
            }
            first = false;
        }
        if (first) continue;  // one warp had it whole
#pragma unroll
        for (int j = 0; j < kOutputs / 32; ++j) {
            const int at = j * 32 + lane;
            store_y<T>(p, int64_t(row_tile) * 16 + at % 16, x_first + at / 16, y[j]);
        }
    }
}

}  // namespace
}  // namespace qk::cuda

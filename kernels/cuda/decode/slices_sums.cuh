// How the sums of the kernel for small batches (decode/slices_kernel.cuh) become y.
#pragma once
#include "cuda/decode/slices.cuh"

namespace qk::cuda {
namespace {

// Where the ring was: [row of tiles][slice][row of x][row of w].
template <class T, int kBatches>
struct SlicesSums {
    static constexpr int kColumns = kBatches * kSlicesBatch;
    static constexpr uint32_t kColumnBytes = 20 * 4;  // of a row of x; lanes share no bank
    static constexpr uint32_t kBytes = kColumns * kColumnBytes;  // of a row of tiles and a slice
    const SlicesProblem &p;
    const SlicesPart &part;
    uint32_t at;

    __device__ SlicesSums(const SlicesProblem &problem, const SlicesPart &mine, uint32_t address)
        : p(problem), part(mine), at(address) {}

    __device__ void keep(int32_t pair, int32_t slice, const float (&sum)[2][kBatches][4]) const {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const uint32_t to = at + uint32_t((pair * 2 + u) * p.plan.slices + slice) * kBytes +
                                lane % 4 * (2 * kColumnBytes) + lane / 4 * 4;
#pragma unroll
            for (int i = 0; i < kBatches * 4; ++i) {
                const uint32_t column = uint32_t(i / 4 * 8 + i % 2);
                shared_store_4(to + column * kColumnBytes + uint32_t(i % 4 / 2 * 32),
                               __float_as_uint(sum[u][i / 4][i % 4]));
            }
        }
    }

    // Half warps have the 16 rows of w of a row of x; those of a warp lie 4 rows of x apart, in
    // different banks. The blocks of a cluster own the rows of tiles in turns: a block sends what
    // it has of others' rows, then adds what others have of its own.
    template <bool kCluster>
    __device__ void store(uint32_t received, uint32_t barrier) const {
        const auto rank = kCluster ? int32_t(cluster_rank()) : 0;
        const int32_t blocks = kCluster ? p.plan.cluster : 1;
        for (int32_t i = 1; i < blocks; ++i) {
            const int32_t owner = (rank + i) & (blocks - 1);
            const uint32_t to = remote_address(received, uint32_t(owner)) + place_of(rank, owner);
            visit(owner, blocks, [&](int32_t row_tile, uint32_t row, uint32_t column, float y) {
                const uint32_t at = uint32_t(row_tile >> p.cluster_shift) * kRowBytes;
                remote_store_4(to + at + (column * 16 + row) * 4, __float_as_uint(y),
                               remote_address(barrier, uint32_t(owner)));
            });
        }
        if (kCluster) barrier_wait(barrier, 0);
        const int64_t x_first = int64_t(blockIdx.y) * kColumns;
        visit(rank, blocks, [&](int32_t row_tile, uint32_t row, uint32_t column, float own) {
            if (x_first + column >= p.m) return;
            float y = own;
            if (kCluster) {
                const uint32_t at = received + uint32_t(row_tile >> p.cluster_shift) * kRowBytes +
                                    (column * 16 + row) * 4;
                y = -0.0f;  // -0 + a = a, whatever a
                for (int32_t block = 0; block < blocks; ++block) {
                    const float more =
                        block == rank ? own
                                      : __uint_as_float(shared_load_4(at + place_of(block, rank)));
                    y = __fadd_rn(y, more);
                }
            }
            store_one(int64_t(part.rows.first + row_tile) * 16 + row, x_first + column, y);
        });
    }

    // What this block gets of the rows it owns.
    __device__ uint32_t received_bytes() const {
        const int32_t rows = part.rows.last - part.rows.first, rank = int32_t(cluster_rank());
        const int32_t mine = (rows - rank + p.plan.cluster - 1) >> p.cluster_shift;
        return uint32_t(max(0, mine) * (p.plan.cluster - 1)) * kRowBytes;
    }

  private:
    static constexpr uint32_t kRowBytes = kColumns * 64;  // of a row of tiles that is sent
    // Of what block `from` sends to block `to`.
    __device__ uint32_t place_of(int32_t from, int32_t to) const {
        const int32_t most = (2 * p.plan.pairs + p.plan.cluster - 1) >> p.cluster_shift;
        return uint32_t((from < to ? from : from - 1) * most) * kRowBytes;
    }

    // use(row of tiles, row of w, row of x, this block's sum) for the rows of tiles first, first +
    // step, ..., some of them at a time.
    template <class Use>
    __device__ void visit(int32_t first, int32_t step, const Use &use) const {
        constexpr int kAtOnce = 4, kStep = kSlicesWarps * 2 / kColumns;
        const uint32_t row = threadIdx.x % 16;
        const auto half = int32_t(threadIdx.x / 16), number = half % kColumns;
        const int32_t column = number / 2 % 4 + number / 8 * 8 + number % 2 * 4;
        const int32_t rows = part.rows.last - part.rows.first;
        const uint32_t each = uint32_t(p.plan.slices) * kBytes;
        const uint32_t from = at + uint32_t(column) * kColumnBytes + row * 4;
#pragma unroll 1
        for (int32_t i = first + half / kColumns * step; i < rows; i += kAtOnce * kStep * step) {
            float y[kAtOnce];
            uint32_t place[kAtOnce];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {  // those past the end: again the last one
                y[j] = -0.0f;
                place[j] = from + uint32_t(min(i + j * kStep * step, rows - 1)) * each;
            }
#pragma unroll 2
            for (int32_t slice = 0; slice < p.plan.slices; ++slice) {
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    const uint32_t more = shared_load_4(place[j] + uint32_t(slice) * kBytes);
                    y[j] = __fadd_rn(y[j], __uint_as_float(more));
                }
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                const int32_t row_tile = i + j * kStep * step;
                if (row_tile < rows) use(row_tile, row, uint32_t(column), y[j]);
            }
        }
    }

    __device__ void store_one(int64_t row, int64_t x_row, float y) const {
        if (row >= p.n) return;
        if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row));
        const int64_t to = x_row * p.n + row;
        if constexpr (std::is_same_v<T, F16>) {
            static_cast<__half *>(p.y)[to] = __float2half_rn(y);
        } else if constexpr (std::is_same_v<T, BF16>) {
            static_cast<__nv_bfloat16 *>(p.y)[to] = __float2bfloat16_rn(y);
        } else {
            static_cast<float *>(p.y)[to] = y;
        }
    }
};

}  // namespace
}  // namespace qk::cuda

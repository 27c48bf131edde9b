// How the sums of the kernel for small batches (linear/sm90/some_rows/kernel.cuh) become y.
#pragma once
#include "cuda/linear/sm90/some_rows/ring.cuh"

namespace qk::cuda {
namespace {

// Where the ring was: [warp][row of tiles][row of x][row of w].
template <class T, int kBatches>
struct SomeRowsSums {
    static constexpr int kColumns = kBatches * kSomeRowsBatch;
    static constexpr uint32_t kColumnBytes = 20 * 4;  // of a row of x; lanes share no bank
    // Of a row of tiles of a warp; two of them share no bank.
    static constexpr uint32_t kBytes = kColumns * kColumnBytes + 64;
    const SomeRowsProblem &p;
    const SomeRowsPart &part;
    uint32_t at;
    int64_t x_first;
    int32_t x_rows;  // that are there

    __device__ SomeRowsSums(const SomeRowsProblem &problem, const SomeRowsPart &mine,
                            uint32_t address)
        : p(problem), part(mine), at(address) {
        x_first = int64_t(blockIdx.y) * kColumns;
        x_rows = int32_t(min64(kColumns, p.m - x_first));
    }

    __device__ void keep(const float (&sum)[2][kBatches][4]) const {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const uint32_t to = at + (threadIdx.x / 32 * 2 + uint32_t(u)) * kBytes +
                                lane % 4 * (2 * kColumnBytes) + lane / 4 * 4;
#pragma unroll
            for (int i = 0; i < kBatches * 4; ++i) {
                const uint32_t column = uint32_t(i / 4 * 8 + i % 2);
                shared_store_4(to + column * kColumnBytes + uint32_t(i % 4 / 2 * 32),
                               __float_as_uint(sum[u][i / 4][i % 4]));
            }
        }
    }

    // A warp has a row of x or two, a lane 4 rows of w of every eighth row of tiles. Blocks of a
    // cluster own the rows of tiles alternately: a block sends what it has of others' rows, then
    // adds what others have of its own. `barrier` counts what comes to `received`.
    __device__ void store(uint32_t received, uint32_t barrier) const {
        const auto first = int32_t(threadIdx.x / 32 % uint32_t(kColumns));
        if (p.plan.cluster > 1) {
#pragma unroll 1
            for (int32_t column = first; column < x_rows; column += kSomeRowsWarps) {
                send(column, received, barrier);
            }
            if (first < x_rows) barrier_wait(barrier, 0);
        }
#pragma unroll 1
        for (int32_t column = first; column < x_rows; column += kSomeRowsWarps) {
            finish(column, received);
        }
    }

    // What this block gets of the rows it owns.
    __device__ uint32_t received_bytes() const {
        const int32_t rows = part.rows.last - part.rows.first, rank = int32_t(cluster_rank());
        const int32_t mine = (rows - rank + p.plan.cluster - 1) >> p.cluster_shift;
        return uint32_t(max(0, mine) * (p.plan.cluster - 1) * x_rows) * 64;
    }

  private:
    static constexpr uint32_t kRowBytes = kColumns * 64;  // of a row of tiles that is sent
    static constexpr int32_t kWarpTiles = 8;              // that a warp has at a time
    // That all warps of a row of x have.
    static constexpr int32_t kAtOnce =
        (kColumns < kSomeRowsWarps ? kSomeRowsWarps / kColumns : 1) * kWarpTiles;

    // -0 + a = a, whatever a.
    __device__ static float4 nothing() { return {-0.0f, -0.0f, -0.0f, -0.0f}; }
    __device__ static void add(float4 &y, const float4 &more) {
        y.x = __fadd_rn(y.x, more.x);
        y.y = __fadd_rn(y.y, more.y);
        y.z = __fadd_rn(y.z, more.z);
        y.w = __fadd_rn(y.w, more.w);
    }
    __device__ static uint4 words_of(const float4 &y) {
        return {__float_as_uint(y.x), __float_as_uint(y.y), __float_as_uint(y.z),
                __float_as_uint(y.w)};
    }

    // Of what block `from` sends to block `to`.
    __device__ uint32_t place_of(int32_t from, int32_t to) const {
        const int32_t most = (2 * p.plan.pairs + p.plan.cluster - 1) >> p.cluster_shift;
        return uint32_t((from < to ? from : from - 1) * most) * kRowBytes;
    }

    // Of a row of tiles: this lane's 4 rows of w.
    __device__ static uint32_t lane_place(int32_t column) {
        return uint32_t(column) * 64 + threadIdx.x % 4 * 16;
    }

    __device__ void send(int32_t column, uint32_t received, uint32_t barrier) const {
        const int32_t blocks = p.plan.cluster;
        const auto rank = int32_t(cluster_rank());
#pragma unroll 1
        for (int32_t i = 1; i < blocks; ++i) {
            const int32_t owner = (rank + i) & (blocks - 1);
            const uint32_t to = remote_address(received, uint32_t(owner)) + place_of(rank, owner) +
                                lane_place(column);
            const uint32_t counted = remote_address(barrier, uint32_t(owner));
            visit(column, owner, blocks, [&](int32_t row_tile, const float4 &y) {
                remote_store_16(true, to + uint32_t(row_tile >> p.cluster_shift) * kRowBytes,
                                words_of(y), counted);
            });
        }
    }

    __device__ void finish(int32_t column, uint32_t received) const {
        const int32_t blocks = p.plan.cluster;
        const auto rank = blocks > 1 ? int32_t(cluster_rank()) : 0;
        visit(column, rank, blocks, [&](int32_t row_tile, const float4 &own) {
            float4 y = own;
            if (blocks > 1) {
                const uint32_t at = received + lane_place(column) +
                                    uint32_t(row_tile >> p.cluster_shift) * kRowBytes;
                y = nothing();
#pragma unroll 1
                for (int32_t block = 0; block < blocks; ++block) {
                    add(y, block == rank ? own : shared_load_floats(at + place_of(block, rank)));
                }
            }
            store_four(column, int64_t(part.rows.first + row_tile) * 16 + threadIdx.x % 4 * 4, y);
        });
    }

    // use(row of tiles, this block's sums) for the rows of tiles first, first + step, ...
    template <class Use>
    __device__ void visit(int32_t column, int32_t first, int32_t step, const Use &use) const {
        const auto number =
            int32_t(threadIdx.x / 32 / kColumns * kWarpTiles + threadIdx.x % 32 / 4);
        const int32_t rows = part.rows.last - part.rows.first;
        const uint32_t from = at + uint32_t(column) * kColumnBytes + threadIdx.x % 4 * 16;
#pragma unroll 1
        for (int32_t i = first + number * step; i < rows; i += kAtOnce * step) {
            float4 y = nothing();
            int32_t warp = p.plan.warp_of(i / 2 * p.plan.slices);
            const int32_t end = p.plan.warp_of((i / 2 + 1) * p.plan.slices);
            uint32_t place = from + uint32_t(warp * 2 + i % 2) * kBytes;
#pragma unroll 2
            for (; warp < end; ++warp, place += 2 * kBytes) add(y, shared_load_floats(place));
            use(i, y);
        }
    }

    // Rows row .. row + 3 of w. Loops that are seldom run stay loops: code that is fetched to run
    // once is what the end of this kernel takes longest for.
    __device__ void store_four(int32_t column, int64_t row, float4 y) const {
        using Value = std::conditional_t<std::is_same_v<T, F32>, float, uint16_t>;
        auto *const at = static_cast<Value *>(p.y) + (x_first + column) * p.n + row;
        const auto count = int32_t(min64(p.n - row, 4));
        if (p.bias != nullptr) {
#pragma unroll 1
            for (int32_t i = 0; i < count; ++i) {
                const float bias = load_float(p.bias_type, p.bias, row + i);
                if (i == 0) y.x = __fadd_rn(y.x, bias);
                if (i == 1) y.y = __fadd_rn(y.y, bias);
                if (i == 2) y.z = __fadd_rn(y.z, bias);
                if (i == 3) y.w = __fadd_rn(y.w, bias);
            }
        }
        const bool whole = count == 4 && reinterpret_cast<uintptr_t>(at) % (4 * sizeof(Value)) == 0;
        if constexpr (std::is_same_v<T, F32>) {
            if (whole) {
                *reinterpret_cast<float4 *>(at) = y;
                return;
            }
#pragma unroll 1
            for (int32_t i = 0; i < count; ++i) {
                at[i] = i == 0 ? y.x : i == 1 ? y.y : i == 2 ? y.z : y.w;
            }
        } else {
            const uint2 both = {pack_pair(T{}, y.x, y.y), pack_pair(T{}, y.z, y.w)};
            if (whole) {
                *reinterpret_cast<uint2 *>(at) = both;
                return;
            }
#pragma unroll 1
            for (int32_t i = 0; i < count; ++i) {
                at[i] = uint16_t((i < 2 ? both.x : both.y) >> i % 2 * 16);
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda

// How the sums of the kernel for 9 to 16 rows of x (linear/sm90/cluster_rows/kernel.cuh) become y.
// Rows of tiles come one after the other: two warps add up what the others have of one, each its 8
// rows of x, and send it to the block that stores that row; there a third one adds the blocks'.
#pragma once
#include "cuda/linear/sm90/cluster_rows/ring.cuh"

namespace qk::cuda {
namespace {

template <class T, class Map>
struct ClusterRowsOutput {
    const ClusterRowsProblem &p;
    const ClusterRowsPart &part;
    uint32_t lane;

    __device__ ClusterRowsOutput(const ClusterRowsProblem &problem, const ClusterRowsPart &mine)
        : p(problem), part(mine), lane(threadIdx.x % 32) {}

    __device__ static void add(float4 &y, const float4 &more) {
        y.x = __fadd_rn(y.x, more.x);
        y.y = __fadd_rn(y.y, more.y);
        y.z = __fadd_rn(y.z, more.z);
        y.w = __fadd_rn(y.w, more.w);
    }

    // What all warps have of a row of tiles, in their order.
    __device__ float4 add_warps(uint32_t from) const {
        float4 y = shared_load_floats(from);
        if (part.width == kRingWarps) {
#pragma unroll
            for (uint32_t i = 1; i < kRingWarps; ++i) {
                add(y, shared_load_floats(from + i * Map::kChunkBytes));
            }
            return y;
        }
#pragma unroll 1
        for (int32_t i = 1; i < part.width; ++i) {
            add(y, shared_load_floats(from + uint32_t(i) * Map::kChunkBytes));
        }
        return y;
    }

    // By the warp that has batch `batch` of x.
    __device__ void send_all(uint32_t batch) const {
        const uint32_t own_place = batch * Map::kBatchSums + lane * 16;
        const uint32_t ring = part.own + Map::kRing + own_place;
        uint32_t place = part.sums + uint32_t(part.rank) * Map::kRowSums + own_place;
        uint32_t met = part.met;
        int32_t owner = 0;
        Slot<Map::kSlots> slot;
#pragma unroll 1
        for (int32_t row = part.rows.first; row < part.rows.last; ++row) {
            barrier_wait(part.own + Map::summed(slot.index), slot.parity);
            const float4 y = add_warps(ring + slot.index * Map::kStage);
            const uint4 words = {__float_as_uint(y.x), __float_as_uint(y.y), __float_as_uint(y.z),
                                 __float_as_uint(y.w)};
            remote_store_16(true, remote_address(place, uint32_t(owner)), words,
                            remote_address(met, uint32_t(owner)));
            if (++owner == kClusterRowsBlocks) {
                owner = 0;
                place += kClusterRowsBlocks * Map::kRowSums;
                met += 8;
            }
            shared_writes_before_copies();
            barrier_arrive(part.own + Map::empty(slot.index));
            slot.advance();
        }
    }

    __device__ void store(int64_t row, int32_t x_row, float y) const {
        if (row < p.n && x_row < int32_t(p.m)) store_sum<T>(p, row, x_row, y);
    }

    // The rows of tiles that this block stores, by one warp, as they come.
    __device__ void store_all() const {
        constexpr int32_t blocks = kClusterRowsBlocks;
        uint32_t met = part.own + part.met, from = part.own + part.sums + lane * 16;
#pragma unroll 1
        for (int32_t row = part.rows.first + part.rank; row < part.rows.last; row += blocks) {
            if (lane == 0) barrier_expect(met, uint32_t(blocks) * Map::kRowSums);
            __syncwarp();
            barrier_wait(met, 0);
#pragma unroll
            for (uint32_t batch = 0; batch < kClusterRowsBatches; ++batch) {
                uint32_t at = from + batch * Map::kBatchSums;
                float4 y = shared_load_floats(at);
#pragma unroll
                for (int32_t i = 1; i < blocks; ++i) {
                    at += Map::kRowSums;
                    add(y, shared_load_floats(at));
                }
                const int64_t first = int64_t(row) * 16 + lane / 4;
                const auto column = int32_t(batch * 8 + lane % 4 * 2);
                store(first, column, y.x);
                store(first, column + 1, y.y);
                store(first + 8, column, y.z);
                store(first + 8, column + 1, y.w);
            }
            from += uint32_t(blocks) * Map::kRowSums;
            met += 8;
        }
    }
};

}  // namespace
}  // namespace qk::cuda

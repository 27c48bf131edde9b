// The ring of the kernel for 9 to 16 rows of x (linear/sm90/cluster_rows/kernel.cuh): the map of
// shared memory, and the thread that fills it.
#pragma once
#include "cuda/linear/sm90/cluster_rows/plan.hpp"
#include "cuda/linear/sm90/few_rows/chunk.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/tensor_copy.cuh"

namespace qk::cuda {
namespace {

struct ClusterRowsProblem : ChunksProblem {
    ClusterRowsPlan plan;
    uint32_t second_bytes;  // nested: of the second scales of a cluster's rows, at most
};

static_assert(kClusterRowsWarps == kRingWarps, "what tile/ring.cuh fills and waits for");

constexpr int kClusterRowsBatches = kClusterRowsMost / 8;
constexpr int32_t kClusterRowsThreads = (kRingWarps + 4) * 32;

// [table] [scale codes] [barriers] [slots] [sums of all blocks] [barriers of these] [second
// scales]. When a warp has multiplied its chunk, it puts its sums in the place of the codes.
template <class Decode, ScaleKind kind, int kGroupTiles>
struct ClusterRowsMap : ChunksStage<Decode, kind, kGroupTiles> {
    using Stage = ChunksStage<Decode, kind, kGroupTiles>;
    using Stage::kStage, Stage::kChunkBytes;
    // More ask for what x then waits for (docs/measurements/cuda-designs.md).
    static constexpr uint32_t kSlots = 4;
    static constexpr uint32_t kBatchSums = 512;  // of 16 rows of w for 8 of x, as the matrix
                                                 // product leaves them to its lanes
    static constexpr uint32_t kRowSums = kClusterRowsBatches * kBatchSums;
    static_assert(kRowSums <= kChunkBytes);

    static constexpr uint32_t kScaleCodes = kSharedStart + Decode::kTableBytes;
    static constexpr uint32_t kBarriers = kScaleCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kRing = kBarriers + 128;
    static constexpr uint32_t kSums = kRing + kSlots * kStage;
    // Counts a stage's bytes in; counts the threads that have put their sums there; counts those
    // that have read them.
    QK_HD static constexpr uint32_t full(uint32_t slot) { return kBarriers + slot * 8; }
    QK_HD static constexpr uint32_t summed(uint32_t slot) { return full(kSlots + slot); }
    QK_HD static constexpr uint32_t empty(uint32_t slot) { return full(2 * kSlots + slot); }
};

// What a block has of the weight.
struct ClusterRowsPart {
    Run rows;
    int32_t rank, chunk, width;  // its chunks of a row of tiles
    uint32_t own;                // what addresses of its memory begin with in the cluster
    uint32_t sums, met;          // behind the slots: those of all blocks; their barriers

    template <class Map>
    __device__ ClusterRowsPart(const ClusterRowsProblem &p, Map) {
        rank = int32_t(cluster_rank());
        rows = p.plan.rows.part(int32_t(cluster_id()));
        chunk = rank * p.plan.width;
        width = min(p.plan.width, p.plan.chunks - chunk);
        own = remote_address(kSharedStart, uint32_t(rank)) - kSharedStart;
        sums = Map::kSums;
        met = sums + uint32_t(cluster_rows_sums(p.plan));
    }
};

template <class Map>
struct ClusterRowsProducer {
    const ClusterRowsProblem &p;
    const ClusterRowsPart &part;
    int32_t row;  // the next stage
    Slot<Map::kSlots> slot;

    __device__ ClusterRowsProducer(const ClusterRowsProblem &problem, const ClusterRowsPart &mine)
        : p(problem), part(mine), row(mine.rows.first) {}

    // By a warp: lane after lane would delay the first copy.
    __device__ void init_barriers() const {
        const uint32_t lane = threadIdx.x % 32;
        if (lane < Map::kSlots) {
            barrier_init(part.own + Map::full(lane), 1);
            barrier_init(part.own + Map::summed(lane), uint32_t(part.width) * 32);
            barrier_init(part.own + Map::empty(lane), kClusterRowsBatches * 32);
        }
        const int32_t owned = p.plan.owned(part.rows.last - part.rows.first, part.rank);
        for (int32_t i = int32_t(lane); i < owned; i += 32) {
            barrier_init(part.own + part.met + uint32_t(i) * 8, 1);
        }
        barrier_init_fence();
        __syncwarp();
    }
    __device__ void issue() {
        const auto count = uint32_t(part.width);
        const uint32_t full = part.own + Map::full(slot.index);
        barrier_expect(full, Map::run_bytes(p, count));
        Map::copy_run(p, part.own + Map::kRing + slot.index * Map::kStage, 0,
                      int64_t(row) * p.plan.chunks + part.chunk, count, full);
        ++row;
        slot.advance();
    }
    // Everything but the first stage.
    __device__ void issue_rest() {
#pragma unroll 1
        for (int32_t stage = 1; row < part.rows.last; ++stage) {
            if (stage >= int32_t(Map::kSlots)) {
                barrier_wait(part.own + Map::empty(slot.index), slot.parity ^ 1);
            }
            issue();
        }
    }
};

}  // namespace
}  // namespace qk::cuda

// The ring of the kernel for few rows of x (linear/sm90/few_rows/kernel.cuh): the map of shared
// memory, and the thread that fills it. Stages go down the rows of a panel before they go along k.
#pragma once
#include "cuda/linear/sm90/few_rows/chunk.cuh"
#include "cuda/linear/sm90/few_rows/plan.hpp"

namespace qk::cuda {
namespace {

struct FewRowsProblem : ChunksProblem {
    FewRowsPlan plan;
    uint32_t second_bytes;  // nested: of the second scales of a block's rows, at most
};

static_assert(kFewRowsWarps == kRingWarps, "what tile/ring.cuh fills and waits for");

constexpr uint32_t kColumnBytes = 20 * 4;  // of 16 rows of w for one of x; lanes share no bank

// [table] [slots] [scale codes] [barriers] [sums of a panel] [second scales]. kBatches: of 8 rows
// of x.
template <class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
struct FewRowsMap : ChunksStage<Decode, kind, kGroupTiles> {
    using Stage = ChunksStage<Decode, kind, kGroupTiles>;
    using Stage::kStage;
    static constexpr uint32_t kSlots = 4;
    static constexpr uint32_t kColumns = kBatches * 8;
    static constexpr uint32_t kWarpSums = kColumns * kColumnBytes;  // of a row of tiles
    static constexpr uint32_t kStageSums = kFewRowsWarps * kWarpSums;
    static constexpr uint32_t kTable = kSharedStart;
    static constexpr uint32_t kRing = kTable + Decode::kTableBytes;
    static constexpr uint32_t kScaleCodes = kRing + kSlots * kStage;
    static constexpr uint32_t kBarriers = kScaleCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kSums = kBarriers + 2 * kSlots * 8;
    // Counts a stage's bytes in; counts the threads that have read it (one for all of a warp is
    // as good, but compute-sanitizer's racecheck does not follow it).
    QK_HD static constexpr uint32_t full(uint32_t slot) { return kBarriers + slot * 8; }
    QK_HD static constexpr uint32_t empty(uint32_t slot) { return full(kSlots + slot); }
};

// The thread that issues the stages of a block.
template <class Map>
struct FewRowsProducer {
    const FewRowsProblem &p;
    int32_t last, panel_first, panel_last, row, pass = 0;  // the next stage
    Slot<Map::kSlots> slot;

    __device__ FewRowsProducer(const FewRowsProblem &problem, Run rows)
        : p(problem), last(rows.last), panel_first(rows.first), row(rows.first) {
        panel_last = min(last, row + p.plan.panel);
    }
    __device__ static void init_barriers() {
        for (uint32_t i = 0; i < Map::kSlots; ++i) {
            barrier_init(Map::full(i), 1);
            barrier_init(Map::empty(i), kFewRowsWarps * 32);
        }
        barrier_init_fence();
    }
    __device__ void copy_run(int32_t place, int64_t from, uint32_t count) const {
        Map::copy_run(p, Map::kRing + slot.index * Map::kStage, place, from, count,
                      Map::full(slot.index));
    }
    __device__ void issue() {
        const int32_t here = min(p.plan.width, p.plan.chunks - pass * p.plan.width);
        const int32_t rows = min(p.plan.height, panel_last - row);
        barrier_expect(Map::full(slot.index), Map::run_bytes(p, uint32_t(rows * here)));
        const int64_t from = int64_t(row) * p.plan.chunks + pass * p.plan.width;
        if (here == p.plan.chunks) {  // the rows of the stage are contiguous
            copy_run(0, from, uint32_t(rows * here));
        } else {
#pragma unroll 1
            for (int32_t i = 0; i < rows; ++i) {
                copy_run(i * p.plan.width, from + int64_t(i) * p.plan.chunks, uint32_t(here));
            }
        }
        slot.advance();
        advance();
    }
    __device__ void advance() {
        row += p.plan.height;
        if (row < panel_last) return;
        if (++pass == p.plan.passes) {
            pass = 0;
            panel_first = panel_last;
            panel_last = min(last, panel_first + p.plan.panel);
        }
        row = panel_first;
    }
    // Everything but the first stage. The first round is spread over time (tile/ring.cuh).
    __device__ void issue_rest() {
#pragma unroll 1
        for (uint32_t i = 1; i < Map::kSlots && row < last; ++i) {
            const int64_t start = clock64();
            while (clock64() - start < kIssueClocks) continue;
            issue();
        }
#pragma unroll 1
        while (row < last) {
            barrier_wait(Map::empty(slot.index), slot.parity ^ 1);
            issue();
        }
    }
};

}  // namespace
}  // namespace qk::cuda

// The ring of the kernel for small batches (linear/sm90/some_rows/kernel.cuh): the map of
// shared memory, and the warps that fill it.
#pragma once

#include "cuda/linear/sm90/some_rows/operands.cuh"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/tensor_copy.cuh"

namespace qk::cuda {
namespace {

struct SomeRowsProblem : TilesProblem {
    int32_t group_shift;  // log2 of the columns of a group; 30: one group a row
    uint32_t second_bytes;
    // 2^32 (2^16 for slices) divided by them: a division would delay the first copy.
    uint32_t pieces_magic, groups_magic, slices_magic;
    SomeRowsPlan plan;
    SomeRowsStage stage;
    int32_t cluster_shift;
};

static_assert(kSomeRowsWarps == kRingWarps, "what tile/ring.cuh counts with");

// [table] [scale codes] [barriers] [zeros] [slots] [second scales].
template <class T, class Decode, ScaleKind kind>
struct SomeRowsMap {
    static constexpr uint32_t kGroupScales = 8 * kPairBytes<kind>;
    static constexpr uint32_t kTables = Decode::kLut4 ? SliceTerms<T>::kCount * kTableBytes : 0;
    static constexpr uint32_t kScaleCodes = kSharedStart + kTables;
    static constexpr uint32_t kBarriers = kScaleCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kZeros = kBarriers + kSomeRowsMostSlots * 16;
    static constexpr uint32_t kReceived = kZeros + 64;  // a barrier
    static constexpr uint32_t kRing = kZeros + 128;
    QK_HD static constexpr uint32_t full(uint32_t slot) { return kBarriers + slot * 16; }
    QK_HD static constexpr uint32_t empty(uint32_t slot) { return full(slot) + 8; }
};

// From addresses of this block's memory to the cluster's, which copies and barriers want.
__device__ inline uint32_t own_memory(const SomeRowsProblem &p) {
    if (p.plan.cluster == 1) return 0;
    return remote_address(kSharedStart, cluster_rank()) - kSharedStart;
}

// A place in a ring whose size the plan says.
struct SomeRowsSlot {
    uint32_t index = 0, parity = 0, at = 0;  // at: bytes

    __device__ void advance(const SomeRowsStage &stage) {
        ++index;
        at += uint32_t(stage.bytes);
        if (index != uint32_t(stage.slots)) return;
        index = 0;
        at = 0;
        parity ^= 1;
    }
};

// The part of the weight that a block multiplies.
struct SomeRowsPart {
    Run rows, chunks;

    __device__ explicit SomeRowsPart(const SomeRowsProblem &p) {
        const int32_t cluster = int32_t(blockIdx.x) >> p.cluster_shift;
        rows = p.plan.rows.part(cluster);
        chunks = p.plan.part(int32_t(blockIdx.x) - (cluster << p.cluster_shift));
    }
};

// Warps that issue the stages of a block: two the codes, one x, one scales and zeros, which are
// short. One alone would spend more time on a stage than the memory does.
constexpr uint32_t kSomeRowsProducers = 4;
constexpr uint32_t kSomeRowsThreads = (kSomeRowsWarps + kSomeRowsProducers) * 32;
constexpr uint32_t kFullArrivals = 3 + 32;  // one of each warp's, and of every lane's of the last

template <class T, class Decode, class Map, int kColumns>
struct SomeRowsProducer {
    static constexpr uint32_t kXBytes = SliceTerms<T>::kBytes;
    const SomeRowsProblem &p;
    const SomeRowsPart &part;
    uint32_t lane, role, own;
    int32_t row_tiles, x_rows;
    int64_t x_first;

    __device__ SomeRowsProducer(const SomeRowsProblem &problem, const SomeRowsPart &mine)
        : p(problem), part(mine) {
        lane = threadIdx.x % 32;
        role = threadIdx.x / 32 - kSomeRowsWarps;
        own = own_memory(p);
        row_tiles = part.rows.last - part.rows.first;
        x_first = int64_t(blockIdx.y) * kColumns;
        x_rows = int32_t(min64(kColumns, p.m - x_first));
    }
    __device__ void init_barriers() const {
        // A lane each: one after the other they would delay the first copy.
        if (role == 0 && lane < uint32_t(p.stage.slots)) {
            barrier_init(own + Map::full(lane), kFullArrivals);
            barrier_init(own + Map::empty(lane), uint32_t(p.plan.warps() * 32));
            if (lane == 0) barrier_init(own + Map::kReceived, 1);
            barrier_init_fence();
        }
        __syncwarp();
        named_barrier_wait(2, kSomeRowsProducers * 32);
    }

    __device__ void issue_codes(Run run, uint32_t to, uint32_t full) const {
        if (!elect_one()) return;
        const int32_t tile = run.first * 2, tiles = min(run.last * 2, p.tiles) - tile;
        const int32_t rows = (row_tiles + 1 - int32_t(role)) / 2;
        const uint32_t bytes = uint32_t(tiles) * 512;
        barrier_expect(full, uint32_t(rows) * bytes);
        const int64_t row_bytes = int64_t(p.tiles) * 512;
        const uint8_t *from =
            p.codes + (part.rows.first + int32_t(role)) * row_bytes + int64_t(tile) * 512;
        const uint32_t step = uint32_t(p.plan.slices) * 1024;
        to += role * step;
#pragma unroll 2
        for (int32_t i = 0; i < rows; ++i) {
            copy_bulk(to, from, bytes, full);
            to += 2 * step;
            from += 2 * row_bytes;
        }
    }
    __device__ void issue_x(Run run, uint32_t to, uint32_t full) const {
        if (!elect_one()) return;
        const int32_t column = run.first * kSomeRowsColumns;
        const uint32_t bytes = uint32_t(min(run.last * kSomeRowsColumns, p.k) - column) * kXBytes;
        barrier_expect(full, uint32_t(x_rows) * bytes);
        const int64_t row_bytes = int64_t(p.k) * kXBytes;
        const uint8_t *from =
            static_cast<const uint8_t *>(p.x) + x_first * row_bytes + int64_t(column) * kXBytes;
#pragma unroll 2
        for (int32_t i = 0; i < x_rows; ++i) {
            copy_bulk(to, from, bytes, full);
            to += uint32_t(p.stage.x_stride);
            from += row_bytes;
        }
    }

    static constexpr uint32_t kPieces = Map::kGroupScales / 16;
    // Scales past the end of k are 0: what stands in the slot there is no number.
    __device__ void issue_scales(Run run, uint32_t slot, uint32_t full) const {
        const int32_t group = (run.first * kSomeRowsColumns) >> p.group_shift;
        const int32_t last = (min(run.last * kSomeRowsColumns, p.k) - 1) >> p.group_shift;
        const auto each = uint32_t(p.stage.groups), there = uint32_t(last + 1 - group);
        const int64_t first = int64_t(part.rows.first) * p.groups + group;
        uint32_t to = slot + uint32_t(p.stage.scales);
        uint32_t pieces = each * kPieces;
#pragma unroll 1
        for (uint32_t i = lane; i < uint32_t(row_tiles) * pieces; i += 32) {
            const uint32_t row = pieces == 1 ? i : __umulhi(i, p.pieces_magic);
            const uint32_t piece = i - row * pieces;
            const bool real = piece < there * kPieces;
            const uint8_t *const from =
                p.scale + (first + uint64_t(row) * p.groups) * Map::kGroupScales;
            copy_16_or_zeros(to + i * 16, from + (real ? piece * 16 : 0), real);
        }
        if (!Decode::kLut4 && p.zero != nullptr) {
            to = slot + uint32_t(p.stage.zeros);
#pragma unroll 1
            for (uint32_t i = lane; i < uint32_t(row_tiles) * each; i += 32) {
                const uint32_t row = each == 1 ? i : __umulhi(i, p.groups_magic);
                const uint32_t at = i - row * each;
                if (at >= there) continue;
                copy_8(to + i * 8, p.zero + (first + uint64_t(row) * p.groups + at) * 8);
            }
        }
        copies_arrive(full);
    }

    // The stage that begins with chunk `first`.
    __device__ void issue(int32_t first, const SomeRowsSlot &slot) const {
        const Run run = {first, min(first + p.plan.slices, part.chunks.last)};
        const uint32_t to = own + Map::kRing + slot.at, full = own + Map::full(slot.index);
        if (role < 2) {
            issue_codes(run, to, full);
        } else if (role == 2) {
            issue_x(run, to + uint32_t(p.stage.x), full);
        } else {
            issue_scales(run, to, full);
        }
        __syncwarp();
    }

    // x is known once the kernel before has finished. The first round is spread over time
    // (tile/ring.cuh).
    __device__ void run() const {
        SomeRowsSlot slot;
        int32_t left = p.stage.slots;  // that nothing has been in
        if (role == 2) wait_for_previous_kernel();
#pragma unroll 1
        for (int32_t chunk = part.chunks.first; chunk < part.chunks.last; chunk += p.plan.slices) {
            if (left == 0) {
                barrier_wait(own + Map::empty(slot.index), slot.parity ^ 1);
            } else {
                if (left < p.stage.slots) {
                    const int64_t start = clock64();
                    while (clock64() - start < kIssueClocks) continue;
                }
                --left;
            }
            issue(chunk, slot);
            slot.advance(p.stage);
        }
    }
};

// The host side.

static_assert(kSomeRowsTable == kTableBytes, "what linear/sm90/some_rows/plan.hpp counts with");

inline SomeRowsCase some_rows_case(const LinearArgs &args) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    return {s.n,
            s.k,
            s.group_size,
            s.groups_per_row,
            w.scale.second_group,
            int32_t(w.scale.format->bits),
            w.layout->id == kLayoutTilesPairs,
            args.x.format->id == QK_FORMAT_F32};
}

inline SomeRowsProblem some_rows_problem(const LinearArgs &args) {
    SomeRowsProblem p = {};
    static_cast<TilesProblem &>(p) = tiles_problem(args);
    p.group_shift = some_rows_case(args).group_shift();
    return p;
}

}  // namespace
}  // namespace qk::cuda

// A warp's slot in the kernel for one row of x (linear/sm90/gemv/warp.cuh): where it is in shared
// memory, and the copies that fill it.
#pragma once
#include "cuda/linear/sm90/gemv/unit.cuh"

namespace qk::cuda {
namespace {

// What a thread asks for beside x and the end of the block needs.
struct Beside {
    bool any;
    float value;
};

// The block's number, asked for where it is needed: what follows from it would wait in memory, for
// registers are few.
__device__ inline int32_t block_number() {
    int32_t number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// Where a block's rows of tiles are in w, and x for them: those of one weight.
struct OwnRows {
    static constexpr bool kOwn = true;
    static constexpr bool kScalesTogether = false;  // by one copy, though there are zeros
    static constexpr int32_t kWarps = kGemvWarps;   // of a block
    __device__ int32_t in_w(int32_t row) const { return row; }
    __device__ const void *x(const GemvProblem &p, int32_t) const { return p.x; }
    // Whether a warp asks for all of its first unit before x; `last`: of the block's warps.
    __device__ bool x_is_late(bool last) const { return last; }
    __device__ Run of_block(const GemvProblem &p) const {
        return p.plan.rows.part(block_number() - p.plan.first_block);
    }
    // The bias of a row of y.
    __device__ Beside beside_x(const GemvProblem &p, Run) const {
        const Run rows = of_block(p);
        if (p.bias == nullptr || int32_t(threadIdx.x) >= y_rows(p, rows)) return {false, 0};
        return {true, load_float(p.bias_type, p.bias, int64_t(rows.first) * 16 + threadIdx.x)};
    }
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles, class Rows>
struct GemvSlot {
    static constexpr int32_t kWarps = Rows::kWarps, kThreads = kWarps * 32;
    // Whether each unit is a partial sum: what a row of tiles of up to 16 units has.
    static constexpr bool kUnitSums = kWarps < kGemvWarps;
    // Whether a unit's scales lie as in memory, else those of each lane's groups in turn.
    static constexpr bool kScalesTogether = Decode::kLut4 || Rows::kScalesTogether;
    static constexpr uint32_t kOfParts = kParts<kGroupTiles>;  // of a tile, groups each
    using X = XColumns<T, kOfParts>;
    using Operand = typename X::Operand;
    static constexpr bool kHalvesOfX = std::is_same_v<T, F32>;
    // Of a lane's two tiles of a unit; of groups of 16 columns, half of those of four tiles.
    static constexpr uint32_t kGroups = kOfParts > 1 ? kOfParts * 2 : kGroupTiles == 1 ? 2 : 1;
    // Whether a lane's two groups are known to be tiles side by side. Experts' kernels, which spill
    // registers, take 1 to 2% longer if they use that.
    static constexpr bool kTilePair = kGroupTiles == 1 && Rows::kOwn;
    using Map = SlotMap<kind, Decode::kLut4, kGroups>;
    static constexpr uint32_t kCodes = kSharedStart + (Decode::kLut4 ? kTableBytes : 0);
    static constexpr uint32_t kSlots = kCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kBarriers = kSlots + kWarps * Map::kBytes;
    static constexpr uint32_t kXKnown = kBarriers + kWarps * 16;
    static constexpr uint32_t kTablesKnown = kXKnown + 8;  // of nested scales
    static constexpr uint32_t kScaleBias = kXKnown + 16;
    static constexpr uint32_t kSecond = kScaleBias + 4;  // the first one of nested scales
    static constexpr uint32_t kBias = kScaleBias + 16;
    static constexpr uint32_t kSums = kBias + kBlockRows * 16 * 4;

    const GemvProblem &p;
    Rows places;
    uint32_t lane, pair, row;  // pair of tiles of a unit: lane % 4; row: lane / 4
    uint32_t slot, barrier, partials, lanes;
    uint32_t seconds_at = 0;  // where w's first second scale would be, were all in shared memory
    int32_t first_row;        // of tiles
    int32_t count;            // of this warp's units
    Unit unit, ahead;         // to multiply, to issue
    int32_t w_row;            // of tiles, in w: that of `ahead`

    __device__ GemvSlot(const GemvProblem &problem, Run rows, const Rows &where)
        : p(problem), places(where) {
        const uint32_t warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        pair = lane % 4;
        row = lane / 4;
        slot = kSlots + warp * Map::kBytes;
        barrier = kBarriers + warp * 16;
        lanes = Decode::lanes();
        take(rows);
        keep(lane, pair, row, slot);
    }

    // The warp's units of these rows of tiles.
    __device__ void take(Run rows) {
        partials = kSums + row * 4 - uint32_t(rows.first * p.plan.partials) * kRowBytes;
        first_row = rows.first;
        const uint32_t number = first_unit();
        const int32_t first = int32_t(number * p.plan.reciprocal >> 16);
        unit = {rows.first + first, int32_t(number) - first * p.plan.units};
        ahead = unit;
        take_count(rows.last - rows.first);
    }
    __device__ void take_count(int32_t rows) {
        count = (rows * p.plan.units - int32_t(first_unit()) + kWarps - 1) / kWarps;
    }
    // Of a block. Every other four warps change places, so that each quarter of a multiprocessor
    // has units that w ends in, where a row of tiles has an even number of them.
    static __device__ uint32_t first_unit() {
        const uint32_t warp = threadIdx.x / 32;
        return warp ^ (warp / 4 & 1);
    }

    __device__ void find_row() { w_row = places.in_w(ahead.row); }

    // Half the codes of the next unit, by one lane; with the first half scales laid out as in
    // memory.
    __device__ void copy_codes(int32_t half) const {
        const int32_t first = ahead.column * kUnitTiles + half * (kUnitTiles / 2);
        const int32_t tiles = max(0, min(kUnitTiles / 2, p.plan.tiles - first));
        const uint32_t to = slot + uint32_t(half) * (kUnitBytes / 2), full = barrier + half * 8;
        if (Decode::kLut4 && half == 0) {
            const Groups of = unit_groups<kGroupTiles>(p, {w_row, ahead.column});
            const uint32_t bytes = of.count * Map::kGroupBytes;
            barrier_expect(full, uint32_t(tiles) * 512 + bytes);
            copy_bulk(slot + Map::kScales, p.scale + of.at * Map::kGroupBytes, bytes, full);
        } else {
            barrier_expect(full, uint32_t(tiles) * 512);
        }
        const int64_t from = int64_t(w_row) * p.plan.tiles + first;
        if (tiles > 0) copy_bulk(to, p.codes + from * 512, uint32_t(tiles) * 512, full);
    }
    __device__ void issue_codes(int32_t half) const {
        if (elect_one()) copy_codes(half);
    }

    // The lane's i-th group, counted from the unit's first; not for groups of several tiles.
    __device__ uint32_t group_of_unit(uint32_t i) const {
        if constexpr (kHalvesOfX && kOfParts > 1) {
            const uint32_t tile = kOfParts == 2 ? pair / 2 * 4 + i : i;
            return tile * kOfParts + X::part_of(i, pair);
        }
        if constexpr (kOfParts == 4) return (pair / 2 * 4 + i / 2) * 4 + pair % 2 * 2 + i % 2;
        return pair * kGroups + i;
    }

    // The same in a unit's column; false where w ends before it.
    __device__ bool find_group(int32_t column, uint32_t i, uint32_t *group) const {
        if constexpr (kOfParts > 1 || kTilePair) {
            *group = uint32_t(column) * (kUnitTiles * kOfParts) + group_of_unit(i);
            return *group < p.groups;
        }
        const int32_t tile = column * kUnitTiles + int32_t(pair * 2 + i);
        *group = uint32_t(tile) >> p.group_shift;
        return tile < p.plan.tiles;
    }

    // Where the scales of the lane's i-th group are: those of rows r and r + 8, side by side.
    __device__ uint32_t scales_at(uint32_t i, uint32_t group) const {
        if constexpr (Decode::kLut4 && kOfParts > 1) {
            // Added up in this sequence, or some instances spill.
            return slot + Map::kScales + row * kPairBytes<kind> +
                   group_of_unit(i) * Map::kGroupBytes;
        }
        uint32_t before = i * 4 + pair;  // groups
        if constexpr (kTilePair && kScalesTogether) {
            before = group_of_unit(i);
        } else if constexpr (kScalesTogether) {
            before = group - unit_groups<kGroupTiles>(p, unit).first;
        }
        return slot + Map::kScales + (before * 8 + row) * kPairBytes<kind>;
    }

    // Scales beside zeros, and these; they arrive with the first half of the next unit's codes.
    __device__ void issue_scales() const {
#pragma unroll
        for (uint32_t i = 0; i < kGroups; ++i) {
            uint32_t group;
            if (!find_group(ahead.column, i, &group)) continue;
            const uint64_t number = uint64_t(uint32_t(w_row)) * p.groups + group;
            const uint32_t to = slot + Map::kScales + i * Map::kScaleStride;
            const uint32_t mine = pair * 8 + row;
            if constexpr (kind == ScaleKind::kF32) {
                copy_8(to + mine * 8, p.scale + number * 64 + row * 8);
            } else if constexpr (kind == ScaleKind::kNested) {
                if (row % 2 == 0) copy_word(to + mine * 2, p.scale + number * 16 + row * 2);
            } else {
                copy_word(to + mine * 4, p.scale + number * 32 + row * 4);
            }
            if (p.zero != nullptr && row % 4 == 0) {
                copy_word(slot + Map::kZeros + i * 32 + mine, p.zero + number * 8 + row);
            }
        }
        copies_arrive(barrier);
    }

    // The second scales of a group in rows r and r + 8. Past the end of k they are what is there,
    // or, where they come from w's plane, those of the last group.
    __device__ float2 seconds(uint32_t group) const {
        const uint32_t of_w = uint32_t(w_row) * 16 + row;
        if constexpr (!Rows::kOwn) {
            group = min(group, p.groups - 1);
            return {places.second(p, of_w, group), places.second(p, of_w + 8, group)};
        }
        const uint32_t number = of_w * p.groups + group, below = number + p.groups * 8;
        const uint32_t at = seconds_at + (number >> p.second_shift) * 4;
        const uint32_t at_below = seconds_at + (below >> p.second_shift) * 4;
        return {__uint_as_float(shared_load_4(at)), __uint_as_float(shared_load_4(at_below))};
    }

    // Those of the block's rows.
    __device__ void issue_seconds(Run rows) {
        const uint32_t end = uint32_t(min64(int64_t(rows.last) * 16, p.n)) * p.groups;
        const uint32_t first = uint32_t(rows.first) * 16 * p.groups >> p.second_shift;
        const uint32_t last = (end - 1) >> p.second_shift;
        seconds_at = kSums + p.plan.sums_bytes - first * 4;
#pragma unroll 1
        for (uint32_t i = first + threadIdx.x; i <= last; i += kThreads) {
            copy_word(seconds_at + i * 4, p.second + i);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

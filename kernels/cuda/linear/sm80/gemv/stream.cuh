// A warp's part of a packed weight as a stream of stages through its own ring in shared memory. A
// stage is kStageTiles tiles of one row of tiles: their codes, their scales, their zeros.
#pragma once
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/prim/copy.cuh"
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// A stage in shared memory: codes, then scales, then zeros. Groups of 64 columns need most room.
constexpr uint32_t kCodeBytes = kStageTiles * 512;
constexpr uint32_t kScaleBytes = kStageTiles * 64;
constexpr uint32_t kZeroBytes = kStageTiles * 8 + 16;
constexpr uint32_t kStageBytes = kCodeBytes + kScaleBytes + kZeroBytes;
constexpr int32_t kSlots = 2;  // stages in the ring
static_assert(kStageBytes % 16 == 0);

// A stage's place in the weight.
struct Place {
    int32_t row_tile, stage;

    __device__ void advance(int32_t row_stages) {
        if (++stage == row_stages) {
            stage = 0;
            ++row_tile;
        }
    }
};

template <ScaleKind kind, bool pairs>
struct Stream {
    const uint8_t *codes;               // of the next stage: stages follow one another
    const uint8_t *scale, *zero;        // the planes; zero is null where every zero is 8
    int32_t tiles, groups, row_stages;  // of a row of tiles
    int32_t group_shift;                // log2 of the tiles a group
    uint32_t ring, full;                // shared memory: the slots and their barriers
    Place next;                         // to be issued
    uint32_t issued, count;             // stages issued so far, and of this warp

    __device__ uint32_t slot(uint32_t i) const { return ring + i % kSlots * kStageBytes; }

    // The number of a place's first group.
    __device__ int64_t group_at(Place place) const {
        return int64_t(place.row_tile) * groups + (place.stage * kStageTiles >> group_shift);
    }

    // Issues the next stage into its slot, which must have been read.
    __device__ void issue() {
        if (issued < count) {
            const int32_t tile = next.stage * kStageTiles;
            const int32_t here = min(kStageTiles, tiles - tile);
            const uint32_t here_groups =
                ((tile + here - 1) >> group_shift) - (tile >> group_shift) + 1;
            const int64_t group = group_at(next);
            const uint8_t *const from_scale = scale + group * (8 * kPairBytes<kind>);
            const uint32_t scale_bytes = here_groups * (8 * kPairBytes<kind>);
            const bool zeros = !pairs && zero != nullptr;
            const uint32_t early = uint32_t(group & 1) * 8;  // copies start at multiples of 16
            const uint8_t *const from_zero = zeros ? zero + group * 8 - early : nullptr;
            const uint32_t zero_bytes = zeros ? (early + here_groups * 8 + 15) & ~15u : 0;
            copy(codes, here * 512, from_scale, scale_bytes, from_zero, zero_bytes);
            codes += here * 512;
            next.advance(row_stages);
        }
        if (!kBulkCopies) copies_commit();
        ++issued;
    }

    __device__ void copy(const uint8_t *from_codes, uint32_t code_bytes, const uint8_t *from_scale,
                         uint32_t scale_bytes, const uint8_t *from_zero, uint32_t zero_bytes) {
        const uint32_t to = slot(issued);
        if (!kBulkCopies) {
            copy_by_lanes(to, from_codes, code_bytes);
            copy_by_lanes(to + kCodeBytes, from_scale, scale_bytes);
            copy_by_lanes(to + kCodeBytes + kScaleBytes, from_zero, zero_bytes);
        } else if (elect_one()) {
            const uint32_t barrier = full + issued % kSlots * 8;
            barrier_expect(barrier, code_bytes + scale_bytes + zero_bytes);
            copy_bulk(to, from_codes, code_bytes, barrier);
            copy_bulk(to + kCodeBytes, from_scale, scale_bytes, barrier);
            if (zero_bytes != 0) {
                copy_bulk(to + kCodeBytes + kScaleBytes, from_zero, zero_bytes, barrier);
            }
        }
    }

    // Waits for stage i of this warp; returns its slot.
    __device__ uint32_t wait(uint32_t i) const {
        if (kBulkCopies) {
            barrier_wait(full + i % kSlots * 8, i / kSlots & 1);
        } else {
            static_assert(kSlots == 2);
            copies_wait_but_one();
            __syncwarp();
        }
        return slot(i);
    }
};

// One tile as a lane holds it.
template <ScaleKind kind>
struct Tile {
    uint4 codes;
    uint32_t zeros;
    uint32_t scale[kind == ScaleKind::kF32 ? 2 : 1];
};

// Tile `index` of the stage in `slot`. A stage starts at a multiple of kStageTiles tiles, so its
// groups count from 0 as its tiles do; its zeros start `early` bytes late.
template <ScaleKind kind, bool pairs>
__device__ Tile<kind> read_tile(const Stream<kind, pairs> &s, uint32_t slot, int32_t index,
                                uint32_t early) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t at = uint32_t(index >> s.group_shift) * 8 + lane / 4;
    const uint32_t scale = slot + kCodeBytes + at * kPairBytes<kind>;
    Tile<kind> t;
    t.codes = shared_load_16(slot + index * 512 + lane * 16);
    t.zeros = 0x88;
    if (!pairs && s.zero != nullptr) {
        t.zeros = shared_load_1(slot + kCodeBytes + kScaleBytes + early + at);
    }
    if constexpr (kind == ScaleKind::kF32) {
        const uint2 both = shared_load_8(scale);
        t.scale[0] = both.x;
        t.scale[1] = both.y;
    } else if constexpr (kind == ScaleKind::kNested) {
        t.scale[0] = shared_load_2(scale);
    } else {
        t.scale[0] = shared_load_4(scale);
    }
    return t;
}

}  // namespace
}  // namespace qk::cuda

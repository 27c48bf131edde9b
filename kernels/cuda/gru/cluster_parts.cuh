// The pieces of the recurrence on clusters: an instance's geometry, R in registers, what a lane
// knows of its unit. R stays where it is for all steps of a launch; h goes from block to block.
#pragma once
#include "cuda/gru/border.cuh"
#include "cuda/gru/input.cuh"
#include "cuda/gru/rules.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

struct Recurrence {
    GruView v;  // y: of the first step
    PlainCell plain;
    const InputCodes *ih;
    int32_t tile, sequences;  // of a tile, of a cluster
    int32_t steps;
    // Bytes of y from sequence to sequence and from step to step; of ih as many times eight as y
    // has elements.
    int64_t y_sequence, y_step, ih_sequence, ih_step;
};

inline Recurrence recurrence_of(const GruView &v, const PlainCell &plain, const InputCodes *ih,
                                int32_t tile, int32_t sequences) {
    const int64_t h = v.cell.hidden_size;
    const int64_t y_bytes = h * (v.y_is_float ? 4 : v.cell.h_bytes);
    const int64_t ih_bytes = h * int64_t(sizeof(InputCodes));
    return {v,         plain,
            ih,        tile,
            sequences, int32_t(v.steps),
            y_bytes,   y_bytes * v.batch,
            ih_bytes,  ih_bytes * v.batch};
}

// One instance's geometry: a cluster's kBlocks blocks own kUnits units each, by groups of 16; the
// kSlices warps of a group have their rows of R, and kColumns columns of them, each. kTiles: of up
// to eight sequences a cluster; 0: a cluster has one sequence.
template <int kHidden_, int kBlocks_, int kSomeRows_, int kTiles_>
struct Shape {
    static constexpr int kHidden = kHidden_, kBlocks = kBlocks_, kSlices = kSomeRows_;
    static constexpr bool kOne = kTiles_ == 0;
    static constexpr int kTiles = kOne ? 1 : kTiles_;
    static constexpr int kUnits = kHidden / kBlocks, kGroups = kUnits / 16;
    static constexpr int kGroupThreads = kSlices * 32, kThreads = kGroups * kGroupThreads;
    static constexpr int kColumns = kHidden / kSlices;
    static constexpr int kLut4 = kColumns / 64;  // of matrix products along a warp's columns
    static constexpr int kTileBytes = kOne ? kHidden : kHidden * 8;  // of h
    // A lane has four sums of each gate: two units by two sequences. Two slices finish one unit
    // each, four also one sequence each. Of one sequence the four lanes of a row have copies.
    static_assert(kSlices == 2 || (kSlices == 4 && !kOne));
    static constexpr int kOwned = !kOne && kSlices == 2 ? 2 : 1;  // cells of a lane, a tile
};

// What a warp is, and the unit that its lane finishes.
template <class S>
struct Place {
    int32_t first_sequence;
    int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int group = warp / S::kSlices, slice = warp % S::kSlices;
    int32_t first_unit = int32_t(cluster_rank()) * S::kUnits + group * 16;  // of the group
    int half = S::kSlices == 2 ? slice : slice / 2;
    int32_t unit = first_unit + half * 8 + lane / 4;
};

// R's fragments of one warp: [gate][pair][product][4].
template <class S>
struct Fragments {
    uint32_t at[3][S::kLut4][2][4];

    __device__ void load(const gru::Cell &cell, int32_t first_unit, int32_t first_column) {
        const int lane = int(threadIdx.x) % 32;
        const int32_t h = cell.hidden_size;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int pair = 0; pair < S::kLut4; ++pair) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int32_t unit = first_unit + half * 8 + lane / 4;
                    const int32_t column = first_column + pair * 64 + lane % 4 * 16;
                    const int8_t *const row = static_cast<const int8_t *>(cell.r) +
                                              (int64_t(gate) * h + unit) * h + column;
                    uint2 words[2] = {};
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        if (unit < h && column + i * 8 < h) {
                            words[i] = *reinterpret_cast<const uint2 *>(row + i * 8);
                        }
                        at[gate][pair][i][half] = words[i].x;
                        at[gate][pair][i][2 + half] = words[i].y;
                    }
                }
            }
        }
    }
    // h: the lane's 16 columns of the pair.
    __device__ void multiply(int pair, const uint4 &h, int32_t (&sums)[3][4]) const {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) mma_16x8x32(sums[gate], at[gate][pair][0], h.x, h.y);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) mma_16x8x32(sums[gate], at[gate][pair][1], h.z, h.w);
    }
    // The two products added to sums of their own: twice as many of them run at once.
    __device__ void multiply_apart(int pair, const uint4 &h, int32_t (&sums)[2][3][4]) const {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            mma_16x8x32(sums[0][gate], at[gate][pair][0], h.x, h.y);
        }
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            mma_16x8x32(sums[1][gate], at[gate][pair][1], h.z, h.w);
        }
    }
};

// A lane's unit: what its rows need beyond the sums. State: a difference from the zero point.
struct Unit {
    int32_t offset[3], shift[3];

    template <class Rules>
    __device__ void load(const gru::Cell &cell, int32_t unit, const Rules &rules) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int32_t row = unit < cell.hidden_size ? gate * cell.hidden_size + unit : 0;
            shift[gate] = cell.r_shift[row] + cell.hh_shift;
            offset[gate] = rules.offset(cell.hh_offset[row], shift[gate]);
        }
    }
    template <class Rules>
    __device__ int32_t next_h(const Rules &rules, const gru::InputSums<int32_t> &input,
                              const int32_t (&sum)[3], int32_t h) const {
        const int32_t hh[3] = {rules.hidden(sum[0] + offset[0], shift[0]),
                               rules.hidden(sum[1] + offset[1], shift[1]),
                               rules.hidden(sum[2] + offset[2], shift[2])};
        return rules.next(input, hh, h);
    }
};

template <class Rules>
__device__ gru::InputSums<int32_t> input_of(const Rules &rules, const gru::Cell &cell,
                                            const uint2 &codes) {
    const int32_t low = cell.ih_min - cell.ih_zero;
    const int32_t ih[3] = {int32_t(codes.x & 0xffff) + low, int32_t(codes.x >> 16) + low,
                           int32_t(codes.y & 0xffff) + low};
    return rules.input(ih);
}

// The code that R multiplies, of the first h.
__device__ uint8_t first_view(const Recurrence &r, const void *state, int64_t sequence,
                              int32_t unit) {
    const gru::Cell &cell = r.v.cell;
    if (unit >= cell.hidden_size || sequence >= r.v.batch) return 0;
    return uint8_t(gru::view_of_h(
        cell, gru::load_code(state, cell.h_bytes, sequence * cell.hidden_size + unit)));
}

// The place of a unit's y in the first step.
__device__ char *y_of(const GruView &v, int64_t index) {
    return static_cast<char *>(v.y) + index * (v.y_is_float ? 4 : v.cell.h_bytes);
}

// One element of y, at its natural address.
__device__ void store_y(const GruView &v, char *to, int32_t h) {
    if (v.y_is_float) {
        *reinterpret_cast<float *>(to) = float(h) * v.h_factor;
    } else if (v.cell.h_bytes == 1) {
        *reinterpret_cast<int8_t *>(to) = int8_t(h + v.cell.h_zero);
    } else {
        *reinterpret_cast<int16_t *>(to) = int16_t(h + v.cell.h_zero);
    }
}

// The barriers of even and of odd steps count the bytes of h that arrive, phase by phase. Blocks
// must meet before any of h is sent.
__device__ void begin_barriers(uint64_t *barriers, uint32_t tiles) {
    if (threadIdx.x != 0) return;
    for (uint32_t i = 0; i < 2 * tiles; ++i) barrier_init(shared_address(barriers + i), 1);
    barrier_init_fence();
}

// Step 1's, once blocks have met: what arrives before is counted too. That of even steps begins
// with step 2: for step 0, whose h is there, the wait is for the phase before its first. No barrier
// expects what no thread will wait for.
__device__ void expect_first_h(uint64_t *barriers, uint32_t tiles, uint32_t bytes, int32_t steps) {
    if (threadIdx.x != 0 || steps < 2) return;
    const uint32_t odd = shared_address(barriers + tiles);
    for (uint32_t i = 0; i < tiles; ++i) barrier_expect(odd + i * 8, bytes);
}

// Until all of h of step t is here; then the barrier may count that of step t + 2.
// `expects`: in one thread of the block, where there is such a step.
__device__ void wait_for_h(const uint64_t &barrier, int32_t t, uint32_t bytes, bool expects) {
    const uint32_t at = shared_address(&barrier);
    barrier_wait(at, (uint32_t(t) >> 1 ^ uint32_t(~t)) & 1);
    if (expects) barrier_expect(at, bytes);
}

}  // namespace
}  // namespace qk::cuda

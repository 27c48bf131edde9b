// The pieces of the recurrence on clusters: an instance's geometry, what its registers and shared
// memory hold, how h gets from block to block. cluster.cuh puts them together.
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
    int32_t tile;  // sequences of a cluster
};

// One instance's geometry. kTiles: of eight sequences a cluster; 0: a cluster has one sequence.
template <int kHidden_, int kBlocks_, int kSlices_, int kTiles_>
struct Shape {
    static constexpr int kHidden = kHidden_, kBlocks = kBlocks_, kSlices = kSlices_;
    static constexpr bool kOne = kTiles_ == 0;
    static constexpr int kTiles = kOne ? 1 : kTiles_, kBatch = kOne ? 1 : 8 * kTiles;
    static constexpr int kUnits = kHidden / kBlocks, kGroups = kUnits / 16;
    static constexpr int kGroupThreads = kSlices * 32, kThreads = kGroups * kGroupThreads;
    static constexpr int kColumns = kHidden / kSlices;  // of R, a warp
    static constexpr int kPairs = kColumns / 64;        // of matrix products along them
    // A lane has four sums of each gate and tile: two units by two sequences. Two slices finish one
    // unit each, four also one sequence each. With one sequence its copies are left alone.
    static_assert(kSlices == 2 || kSlices == 4);
    static constexpr int kColumnsOwned = !kOne && kSlices == 2 ? 2 : 1;
    static constexpr int kOwned = kTiles * kColumnsOwned;
    // A row of h: with several, 64 bytes beyond a multiple of 128, so that the rows of a quarter
    // warp lie in different banks.
    static constexpr int kRow = kOne ? kHidden : kHidden + 64;
    // With one sequence, pairs that take the units of plain arithmetic: four products a lane cost
    // as much time there as in the matrix units, and both work at once.
    static constexpr int kPlainPairs = kOne ? kPairs / 2 : 0;
    static constexpr int kParts = kPlainPairs > 0 ? 4 : 1;  // sums of a row, a warp
    static constexpr int kBuffer = kBatch * kRow;
    static constexpr int kLanes = kOne ? 8 : 32;  // that hold different sums
};

template <class S, class Rules>
struct Shared {
    alignas(16) uint64_t barrier[2];
    alignas(128) uint8_t h[2][S::kBuffer];
    alignas(
        16) int4 partial[S::kGroups][S::kTiles][4][S::kSlices * S::kParts][S::kLanes];  // u, r, n
    alignas(16) uint8_t outgoing[S::kGroups][S::kOne ? 1 : S::kBatch][16];  // a group's next h
    typename Rules::Tables tables;
};

// R's fragments of one warp: [gate][pair][product][4].
template <class S>
struct Fragments {
    uint32_t at[3][S::kPairs][2][4];

    __device__ void load(const gru::Cell &cell, int32_t first_unit, int32_t first_column) {
        const int lane = int(threadIdx.x) % 32;
        const int32_t h = cell.hidden_size;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int pair = 0; pair < S::kPairs; ++pair) {
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
    __device__ void multiply(int pair, const uint4 &h, int32_t (&sums)[3][4]) const {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) mma_16x8x32(sums[gate], at[gate][pair][0], h.x, h.y);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) mma_16x8x32(sums[gate], at[gate][pair][1], h.z, h.w);
    }
    // A lane's own 16 columns of its two rows.
    __device__ void multiply_plain(int pair, const uint4 &h, int32_t (&sums)[2][3]) const {
        const uint32_t words[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t *const row = at[gate][pair][i / 2] + i % 2 * 2;
                sums[0][gate] = __dp4a(int(row[0]), int(words[i]), sums[0][gate]);
                sums[1][gate] = __dp4a(int(row[1]), int(words[i]), sums[1][gate]);
            }
        }
    }
};

// One unit, as its lane keeps it, and its sequences: differences from the zero points.
template <class S>
struct Owned {
    int32_t unit, last_sequence;
    bool active;
    int32_t offset[3], shift[3];
    int32_t sequence[S::kOwned], h[S::kOwned];

    __device__ bool has(const Recurrence &r, int i) const {
        return active && sequence[i] < last_sequence;
    }
    __device__ void load(const Recurrence &r, const void *state) {
        const gru::Cell &cell = r.v.cell;
        active = unit < cell.hidden_size;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int32_t row = active ? gate * cell.hidden_size + unit : 0;
            offset[gate] = int32_t(cell.hh_offset[row]);
            shift[gate] = cell.r_shift[row] + cell.hh_shift;
        }
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            h[i] = 0;
            if (!has(r, i)) continue;
            const int64_t at = int64_t(sequence[i]) * cell.hidden_size + unit;
            h[i] = gru::load_code(state, cell.h_bytes, at) - cell.h_zero;
        }
    }
    __device__ uint2 load_ih(const Recurrence &r, int i, int64_t step) const {
        if (!has(r, i) || step >= r.v.steps) return {};
        const int64_t row = step * r.v.batch + sequence[i];
        return __ldg(reinterpret_cast<const uint2 *>(r.ih + row * r.v.cell.hidden_size + unit));
    }
};

template <class Rules>
__device__ gru::InputSums<int32_t> input_of(const Rules &rules, const gru::Cell &cell,
                                            const uint2 &codes) {
    const int32_t low = cell.ih_min - cell.ih_zero;
    const int32_t ih[3] = {int32_t(codes.x & 0xffff) + low, int32_t(codes.x >> 16) + low,
                           int32_t(codes.y & 0xffff) + low};
    return gru::input_sums(rules, ih);
}

// The first h, by every block for itself.
template <class S>
__device__ void load_h(const Recurrence &r, const void *state, int32_t first_sequence,
                       uint8_t (&to)[2][S::kBuffer]) {
    const gru::Cell &cell = r.v.cell;
    for (int32_t i = int32_t(threadIdx.x); i < S::kBatch * S::kHidden; i += S::kThreads) {
        const int32_t sequence = i / S::kHidden, unit = i % S::kHidden;
        int32_t code = 0;
        if (unit < cell.hidden_size && first_sequence + sequence < r.v.batch) {
            code = gru::view_of_h(
                cell, gru::load_code(state, cell.h_bytes,
                                     int64_t(first_sequence + sequence) * cell.hidden_size + unit));
        }
        to[0][sequence * S::kRow + unit] = uint8_t(code);
    }
}

// One sequence: eight units of a warp to every block of the cluster. They are two words, which
// sixteen lanes hold each, one a block.
struct Sender {
    uint32_t to, barrier;  // of this lane's block, in the first buffer
    int byte;
    bool sends;

    __device__ Sender(const uint8_t *place, const uint64_t *barriers, uint32_t blocks) {
        const int lane = int(threadIdx.x) % 32;
        byte = lane / 4 % 4;
        const uint32_t block = uint32_t(byte * 4 + lane % 4);
        sends = block < blocks;
        to = remote_address(shared_address(place + lane / 16 * 4), sends ? block : 0);
        barrier = remote_address(shared_address(barriers), sends ? block : 0);
    }
    __device__ void send(int32_t code, uint32_t buffer, uint32_t buffer_bytes) const {
        uint32_t word = uint32_t(code & 0xff) << (byte * 8);
        word |= __shfl_xor_sync(~0u, word, 4);
        word |= __shfl_xor_sync(~0u, word, 8);
        if (sends) remote_store_4(to + buffer * buffer_bytes, word, barrier + buffer * 8);
    }
};

// More sequences: a group's 16 units of each, by all threads of the group.
template <class S>
__device__ void send_rows(const uint8_t (&rows)[S::kBatch][16], int32_t tile, uint32_t to,
                          uint32_t barrier) {
    const int thread = int(threadIdx.x) % S::kGroupThreads;
    for (int i = thread; i < tile * S::kBlocks; i += S::kGroupThreads) {
        const uint32_t row = uint32_t(i) / S::kBlocks, block = uint32_t(i) % S::kBlocks;
        const uint4 units = *reinterpret_cast<const uint4 *>(rows[row]);
        remote_store_16(remote_address(to + row * S::kRow, block), units,
                        remote_address(barrier, block));
    }
}

// Received in a step.
template <class S>
__device__ uint32_t step_bytes(const Recurrence &r) {
    return uint32_t(r.tile * S::kHidden);
}

}  // namespace
}  // namespace qk::cuda

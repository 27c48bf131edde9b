// Several sequences a cluster, in tiles of up to eight that alternate: while h of one tile is on
// its way between the blocks, the warps work on the other.
//
// h is laid out by tiles, groups of 16 units, sequences: a group's part is what its warps send, 128
// bytes without a gap. Sequences are exchanged among each other by the group's number, so that the
// lanes of a warp read from different banks. Double-buffered by even and odd steps: sending h
// of step t + 1 implies that step t was read; having received all of it allows sending t + 2.
#pragma once
#include "cuda/gru/cluster_parts.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kIhRow = 16 * sizeof(InputCodes) + 16;  // of a sequence; rows in different banks

template <class S, class Rules>
struct SharedMany {
    alignas(16) uint64_t barrier[2][S::kTiles];
    alignas(128) uint8_t h[2][S::kTiles][S::kTileBytes];
    alignas(128) uint8_t outgoing[S::kGroups][128];
    alignas(16) uint8_t ih[2][S::kTiles][S::kGroups][8 * kIhRow];
    // u, r, n: of two slices what the other finishes, of four everything.
    alignas(16) int4 partial[S::kGroups][S::kSlices][S::kSlices][32];
    typename Rules::Tables tables;
};

__device__ inline int32_t exchange(int32_t unit) { return unit / 16 % 4 * 2; }

// The sums of a lane's cells.
template <class S, class Rules>
__device__ void multiply_tile(const Place<S> &at, const Fragments<S> &weights,
                              SharedMany<S, Rules> &shared, const uint8_t *h,
                              int32_t (&own)[S::kOwned][3]) {
    const int32_t column = at.slice * S::kColumns + at.lane % 4 * 16;
    const uint32_t from =
        shared_address(h) + uint32_t(column * 8) + uint32_t((at.lane / 4 ^ exchange(column)) * 16);
    int32_t sums[3][4] = {};
#pragma unroll
    for (int pair = 0; pair < S::kLut4; ++pair) {
        weights.multiply(pair, shared_load_16(from + uint32_t(pair) * 512), sums);
    }
    int4(&partial)[S::kSlices][S::kSlices][32] = shared.partial[at.group];
    if constexpr (S::kSlices == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int32_t other[3];
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                own[i][gate] = at.half == 0 ? sums[gate][i] : sums[gate][2 + i];
                other[gate] = at.half == 0 ? sums[gate][2 + i] : sums[gate][i];
            }
            partial[at.slice][i][at.lane] = {other[0], other[1], other[2], 0};
        }
    } else {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            partial[at.slice][p][at.lane] = {sums[0][p], sums[1][p], sums[2][p], 0};
        }
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) own[0][gate] = 0;
    }
    copies_wait_but<S::kTiles>();
    named_barrier_wait(at.group + 1, S::kGroupThreads);
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
#pragma unroll
        for (int s = 0; s < (S::kSlices == 2 ? 1 : S::kSlices); ++s) {
            const int4 part =
                S::kSlices == 2 ? partial[at.slice ^ 1][i][at.lane] : partial[s][at.slice][at.lane];
            own[i][0] += part.x, own[i][1] += part.y, own[i][2] += part.z;
        }
    }
}

// A group's 16 units of the tile's sequences to all blocks, from where the group has put them: a
// thread sends those of one sequence to one block or several.
template <class S>
__device__ void send_tile(const Place<S> &at, uint32_t group, int32_t sequences, uint32_t to,
                          uint32_t barrier) {
    const uint32_t thread = threadIdx.x % S::kGroupThreads, slot = thread % 8;
    const bool sends = int32_t(slot ^ uint32_t(exchange(at.first_unit))) < sequences;
    constexpr uint32_t kAtOnce = S::kGroupThreads / 8;  // blocks
    const uint4 units = shared_load_16(group + slot * 16);
#pragma unroll
    for (uint32_t first = 0; first < S::kBlocks; first += kAtOnce) {
        const uint32_t block = first + thread / 8;
        remote_store_16(sends && (kAtOnce <= S::kBlocks || block < S::kBlocks),
                        remote_address(to + slot * 16, block % S::kBlocks), units,
                        remote_address(barrier, block % S::kBlocks));
    }
}

// W x + bw of the group's units, 16 bytes a thread, of the step after the next one on.
template <class S>
struct IhCopy {
    const char *from;
    uint32_t to;
    uint32_t active = 0;  // a bit a tile

    template <class Rules>
    __device__ IhCopy(const Recurrence &r, const Place<S> &at, SharedMany<S, Rules> &shared) {
        const int thread = int(threadIdx.x) % S::kGroupThreads, s = thread / 8;
        const int64_t h = r.v.cell.hidden_size;
        const int32_t unit = at.first_unit + thread % 8 * 2;
        from = reinterpret_cast<const char *>(r.ih + (at.first_sequence + s) * h + unit);
        to = shared_address(shared.ih[0][0][at.group]) + uint32_t(s) * kIhRow +
             uint32_t(thread % 8) * 16;
        for (int tile = 0; tile < S::kTiles; ++tile) {
            if (s < r.tile && unit < h && at.first_sequence + tile * r.tile + s < r.v.batch) {
                active |= 1u << tile;
            }
        }
    }
    __device__ void issue(const Recurrence &r, int tile, int32_t step) const {
        constexpr uint32_t kTile = S::kGroups * 8 * kIhRow;
        if ((active >> tile & 1) != 0) {
            copy_16(to + (uint32_t(step) % 2 * S::kTiles + uint32_t(tile)) * kTile,
                    from + tile * r.tile * r.ih_sequence);
        }
        copies_commit();
    }
};

// A lane's cells: its unit and one or two sequences of each tile.
template <class S>
struct Cells {
    int32_t h[S::kTiles][S::kOwned];
    int first_slot;  // the first of its sequences within a tile
    uint32_t active = 0;

    __device__ Cells(const Recurrence &r, const Place<S> &at, const void *state) {
        first_slot = at.lane % 4 * 2 + (S::kSlices == 4 ? at.slice % 2 : 0);
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
            for (int i = 0; i < S::kOwned; ++i) {
                const int32_t s = first_slot + i, n = at.first_sequence + tile * r.tile + s;
                h[tile][i] = 0;
                if (s >= r.tile || n >= r.v.batch || at.unit >= r.v.cell.hidden_size) continue;
                active |= 1u << (tile * S::kOwned + i);
                h[tile][i] = gru::load_code(state, r.v.cell.h_bytes,
                                            int64_t(n) * r.v.cell.hidden_size + at.unit) -
                             r.v.cell.h_zero;
            }
        }
    }
    __device__ bool has(int tile, int i) const {
        return (active >> (tile * S::kOwned + i) & 1) != 0;
    }
    // Element of a tensor [batch,h]
    __device__ int64_t index(const Recurrence &r, const Place<S> &at, int tile, int i) const {
        const int64_t sequence = at.first_sequence + tile * r.tile + first_slot + i;
        return sequence * r.v.cell.hidden_size + at.unit;
    }
};

// y of a lane's cells in a tile. One branch: the stores after it need none.
template <class S>
__device__ void store_tile(const Recurrence &r, const Cells<S> &cells, int tile, char *y) {
    char *to[S::kOwned];
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) to[i] = i == 0 ? y : y + r.y_sequence;
    if (r.v.y_is_float) {
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            const float value = float(cells.h[tile][i]) * r.v.h_factor;
            if (cells.has(tile, i)) *reinterpret_cast<float *>(to[i]) = value;
        }
    } else if (r.v.cell.h_bytes == 1) {
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            const int32_t code = cells.h[tile][i] + r.v.cell.h_zero;
            if (cells.has(tile, i)) *reinterpret_cast<int8_t *>(to[i]) = int8_t(code);
        }
    } else {
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            const int32_t code = cells.h[tile][i] + r.v.cell.h_zero;
            if (cells.has(tile, i)) *reinterpret_cast<int16_t *>(to[i]) = int16_t(code);
        }
    }
}

template <class S, class Rules>
__device__ void begin_tiles(const Recurrence &r, const Place<S> &at, const void *state,
                            SharedMany<S, Rules> &shared) {
    begin_barriers(&shared.barrier[0][0], S::kTiles);
    for (int32_t i = int32_t(threadIdx.x); i < S::kTiles * S::kTileBytes; i += S::kThreads) {
        const int32_t tile = i / S::kTileBytes, s = i / S::kHidden % 8, unit = i % S::kHidden;
        const int32_t n = at.first_sequence + tile * r.tile + s;
        shared.h[0][tile][unit / 16 * 128 + (s ^ exchange(unit)) * 16 + unit % 16] =
            s < r.tile ? first_view(r, state, n, unit) : uint8_t(0);
    }
    // What no copy overwrites must still be numbers of 16 bits.
    uint4 *const ih = reinterpret_cast<uint4 *>(shared.ih);
    for (uint32_t i = threadIdx.x; i < sizeof(shared.ih) / 16; i += S::kThreads) ih[i] = {};
}

// A tile's step, up to its next h on the way.
template <class S, class Rules>
__device__ void advance_tile(const Recurrence &r, const Place<S> &at, const Fragments<S> &weights,
                             const Unit &unit, SharedMany<S, Rules> &shared, const Rules &rules,
                             int tile, int32_t t, int first_slot, int32_t (&h)[S::kOwned]) {
    int32_t sums[S::kOwned][3];
    wait_for_h(shared.barrier[t & 1][tile], t, uint32_t(r.tile * S::kHidden),
               threadIdx.x == 0 && t + 2 < r.steps);
    multiply_tile(at, weights, shared, shared.h[t & 1][tile], sums);
    // All that is read comes before anything is written, so that two cells can run side by side.
    gru::InputSums<int32_t> input[S::kOwned];
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
        const uint8_t *const codes = shared.ih[t & 1][tile][at.group] +
                                     uint32_t(first_slot + i) * kIhRow +
                                     uint32_t(at.unit - at.first_unit) * sizeof(InputCodes);
        input[i] = input_of(rules, r.v.cell, *reinterpret_cast<const uint2 *>(codes));
    }
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) h[i] = unit.next_h(rules, input[i], sums[i], h[i]);
    uint8_t(&outgoing)[128] = shared.outgoing[at.group];
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
        outgoing[((first_slot + i) ^ exchange(at.unit)) * 16 + at.unit - at.first_unit] =
            uint8_t(rules.view(h[i]));
    }
    named_barrier_wait(at.group + 1, S::kGroupThreads);
    if (t + 1 < r.steps) {
        const int odd = int(t + 1) & 1;
        send_tile(at, shared_address(outgoing), r.tile,
                  shared_address(shared.h[odd][tile]) + uint32_t(at.first_unit * 8),
                  shared_address(&shared.barrier[odd][tile]));
    }
}

template <class S, class Rules>
__device__ void run_steps(const Recurrence &r, SharedMany<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    const Place<S> at = {int32_t(blockIdx.x) / S::kBlocks * r.sequences};
    void *const state = current_state(r.v);
    begin_tiles(r, at, state, shared);
    Fragments<S> weights;
    weights.load(cell, at.first_unit, at.slice * S::kColumns);
    Unit unit;
    unit.load(cell, at.unit, rules);
    Cells<S> cells(r, at, state);
    IhCopy<S> ih(r, at, shared);
    char *y = y_of(r.v, cells.index(r, at, 0, 0));
    __syncthreads();
    cluster_sync();
    expect_first_h(&shared.barrier[0][0], S::kTiles, uint32_t(r.tile * S::kHidden), r.steps);
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) ih.issue(r, tile, 0);
    for (int32_t t = 0; t < r.steps; ++t) {
        if (t + 1 < r.steps) {
            ih.from += r.ih_step;
        } else {
            ih.active = 0;
        }
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) {
            ih.issue(r, tile, t + 1);
            advance_tile(r, at, weights, unit, shared, rules, tile, t, cells.first_slot,
                         cells.h[tile]);
            store_tile(r, cells, tile, y + tile * r.tile * r.y_sequence);
        }
        y += r.y_step;
    }
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            if (!cells.has(tile, i)) continue;
            gru::store_code(state, cell.h_bytes, cells.index(r, at, tile, i),
                            cells.h[tile][i] + cell.h_zero);
        }
    }
}

}  // namespace
}  // namespace qk::cuda

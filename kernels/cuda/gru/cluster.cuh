// All steps of a recurrence in one launch. R stays in the registers of a cluster's blocks as matrix
// operands; a block owns kHidden / kBlocks units, gets every block's part of h into its shared
// memory at each step, and sends its own part of the next h to all.
//
// A warp multiplies the three rows of 16 units with a slice of h; the warps of a slice's group add
// their sums through shared memory. h is double-buffered: a block that sends h of step t + 1 has
// read h of step t, and who receives it from all may therefore overwrite h of step t everywhere.
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
    // One sequence: words of four codes, each with the number of its step beside it, so that data
    // and news travel as one. More: rows of codes, 64 bytes beyond a multiple of 128, so that the
    // rows of a quarter warp lie in different banks; a barrier counts their bytes in.
    static constexpr int kRow = kOne ? 2 * kHidden : kHidden + 64;
    static constexpr int kBuffer = kBatch * kRow;
    static constexpr int kStepBytes = kBatch * kHidden;  // received in a step
    static constexpr int kLanes = kOne ? 8 : 32;         // that hold different sums
};

template <class S, class Rules>
struct Shared {
    alignas(16) uint64_t barrier[2];
    alignas(128) uint8_t h[2][S::kBuffer];
    alignas(16) int4 partial[S::kGroups][S::kTiles][4][S::kSlices][S::kLanes];  // u, r, n
    alignas(16) uint8_t outgoing[S::kGroups][S::kOne ? 1 : S::kBatch][16];      // a group's next h
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
};

// One unit, as its lane keeps it, and its sequences: differences from the zero points.
template <class S>
struct Owned {
    int32_t unit;
    bool active;
    int32_t offset[3], shift[3];
    int32_t sequence[S::kOwned], h[S::kOwned];

    __device__ bool has(const Recurrence &r, int i) const {
        return active && sequence[i] < r.v.batch;
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
        const int32_t place = S::kOne ? unit / 4 * 8 + unit % 4 : sequence * S::kRow + unit;
        to[0][place] = uint8_t(code);
        if constexpr (S::kOne) to[0][place + 4] = to[1][place + 4] = 0;  // tags: of step 0
    }
}

// 16 codes of h from `from`; tagged ones once they are those of step t.
template <class S>
__device__ uint4 read_h(uint32_t from, int pair, uint32_t t) {
    if constexpr (S::kOne) {
        uint4 first, second;
        do {
            first = peek_16(from + uint32_t(pair) * 128);
            second = peek_16(from + uint32_t(pair) * 128 + 16);
        } while (first.y != t || first.w != t || second.y != t || second.w != t);
        return {first.x, first.z, second.x, second.z};
    } else {
        return shared_load_16(from + uint32_t(pair) * 64);
    }
}

// One sequence: eight units of a warp to every block of the cluster. They are two words, which
// sixteen lanes hold each, one a block.
__device__ inline void send_tagged(uint32_t to, int32_t code, uint32_t t, uint32_t blocks) {
    const int lane = int(threadIdx.x) % 32, byte = lane / 4 % 4;
    uint32_t word = uint32_t(code & 0xff) << (byte * 8);
    word |= __shfl_xor_sync(~0u, word, 4);
    word |= __shfl_xor_sync(~0u, word, 8);
    const uint32_t block = uint32_t(byte * 4 + lane % 4);
    to += uint32_t(lane / 16 * 8);
    if (block < blocks) remote_store_8(remote_address(to, block), word, t);
}

// More sequences: a group's 16 units of each, by all threads of the group.
template <class S>
__device__ void send_rows(const uint8_t (&rows)[S::kBatch][16], uint32_t to, uint32_t barrier) {
    const int thread = int(threadIdx.x) % S::kGroupThreads;
#pragma unroll
    for (int i = thread; i < S::kBatch * S::kBlocks; i += S::kGroupThreads) {
        const uint32_t row = uint32_t(i) / S::kBlocks, block = uint32_t(i) % S::kBlocks;
        const uint4 units = *reinterpret_cast<const uint4 *>(rows[row]);
        remote_store_16(remote_address(to + row * S::kRow, block), units,
                        remote_address(barrier, block));
    }
}

// What a warp is and where its things lie.
template <class S>
struct Place {
    int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int group = warp / S::kSlices, slice = warp % S::kSlices;
    int32_t first_sequence = int32_t(blockIdx.x) / S::kBlocks * S::kBatch;
    int32_t first_unit = int32_t(cluster_rank()) * S::kUnits + group * 16;
    // The half of the 16 units and, of four slices, the column of two that the warp finishes.
    int half = S::kSlices == 2 ? slice : slice / 2, column = S::kSlices == 2 ? 0 : slice % 2;
    int different = S::kOne ? lane / 4 : lane;
    bool finishes = !(S::kOne && column == 1);
};

// Sums of this warp's slice, of every tile, to the group.
template <class S, class Rules>
__device__ void multiply(const Place<S> &at, const Fragments<S> &weights, Shared<S, Rules> &shared,
                         int64_t t) {
    const uint32_t h_at = shared_address(shared.h[t & 1]);
    const uint32_t column = uint32_t(at.slice * S::kColumns + at.lane % 4 * 16);
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
        int32_t sums[3][4] = {};
        const uint32_t from = S::kOne ? h_at + column * 2
                                      : h_at + uint32_t(tile * 8 + at.lane / 4) * S::kRow + column;
#pragma unroll
        for (int pair = 0; pair < S::kPairs; ++pair) {
            weights.multiply(pair, read_h<S>(from, pair, uint32_t(t)), sums);
        }
#pragma unroll
        for (int p = 0; p < 4; p += S::kOne ? 2 : 1) {
            shared.partial[at.group][tile][p][at.slice][at.different] = {sums[0][p], sums[1][p],
                                                                         sums[2][p], 0};
        }
    }
}

// The next h of one of a lane's cells, from its group's sums.
template <class S, class Rules>
__device__ int32_t next_h(const Place<S> &at, const Owned<S> &o, int i,
                          const gru::InputSums<int32_t> &input, Shared<S, Rules> &shared,
                          const Rules &rules) {
    const int p = at.half * 2 + (S::kColumnsOwned == 2 ? i % 2 : at.column);
    int4 sum = {o.offset[0], o.offset[1], o.offset[2], 0};
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
        const int4 part = shared.partial[at.group][i / S::kColumnsOwned][p][s][at.different];
        sum.x += part.x, sum.y += part.y, sum.z += part.z;
    }
    const int32_t hh[3] = {rules.hidden(sum.x, o.shift[0]), rules.hidden(sum.y, o.shift[1]),
                           rules.hidden(sum.z, o.shift[2])};
    return gru::gates_to_h(rules, input, hh, o.h[i], nullptr);
}

template <class S>
__device__ void store_y(const Recurrence &r, const Owned<S> &o, int i, int64_t t) {
    const gru::Cell &cell = r.v.cell;
    if (!o.has(r, i) || (S::kOne && threadIdx.x % 4 != 0)) return;
    const int64_t row = t * r.v.batch + o.sequence[i];
    write_y(r.v, row * cell.hidden_size + o.unit, o.h[i] + cell.h_zero);
}

// One sequence: what counts is how soon the next h is everywhere.
template <class S, class Rules>
__device__ void run_one(const Recurrence &r, const Place<S> &at, const Fragments<S> &weights,
                        Owned<S> &o, Shared<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    gru::InputSums<int32_t> input = input_of(rules, cell, o.load_ih(r, 0, 0));
    uint2 ahead = o.load_ih(r, 0, 1);
    const uint32_t place = uint32_t(at.first_unit + at.half * 8) * 2;
    for (int64_t t = 0; t < r.v.steps; ++t) {
        multiply(at, weights, shared, t);
        if (!at.finishes) {
            named_barrier_arrive(at.group + 1, S::kGroupThreads);
            continue;
        }
        named_barrier_wait(at.group + 1, S::kGroupThreads);
        o.h[0] = next_h(at, o, 0, input, shared, rules);
        if (t + 1 < r.v.steps) {
            send_tagged(shared_address(shared.h[(t + 1) & 1]) + place, rules.view(o.h[0]),
                        uint32_t(t + 1), S::kBlocks);
        }
        input = input_of(rules, cell, ahead);
        ahead = o.load_ih(r, 0, t + 2);
        store_y(r, o, 0, t);
    }
}

template <class S, class Rules>
__device__ void run_many(const Recurrence &r, const Place<S> &at, const Fragments<S> &weights,
                         Owned<S> &o, Shared<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    const uint32_t barrier_at = shared_address(shared.barrier);
    for (int64_t t = 0; t < r.v.steps; ++t) {
        const uint32_t now = uint32_t(t) & 1, next = now ^ 1;
        uint2 codes[S::kOwned];
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) codes[i] = o.load_ih(r, i, t);
        if (t > 0) {
            barrier_wait(barrier_at + now * 8, (uint32_t(t - 1) >> 1) & 1);
            if (threadIdx.x == 0) barrier_expect(barrier_at + now * 8, S::kStepBytes);
        }
        multiply(at, weights, shared, t);
        named_barrier_wait(at.group + 1, S::kGroupThreads);
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) {
            o.h[i] = next_h(at, o, i, input_of(rules, cell, codes[i]), shared, rules);
            shared
                .outgoing[at.group][o.sequence[i] - at.first_sequence][at.half * 8 + at.lane / 4] =
                uint8_t(rules.view(o.h[i]));
        }
        if (t + 1 < r.v.steps) {
            named_barrier_wait(at.group + 1, S::kGroupThreads);
            send_rows<S>(shared.outgoing[at.group],
                         shared_address(shared.h[next]) + uint32_t(at.first_unit),
                         barrier_at + next * 8);
        }
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) store_y(r, o, i, t);
    }
}

template <class S, class Rules>
__device__ void run_steps(const Recurrence &r, Shared<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    const Place<S> at;
    void *const state = current_state(r.v);
    load_h<S>(r, state, at.first_sequence, shared.h);
    Fragments<S> weights;
    weights.load(cell, at.first_unit, at.slice * S::kColumns);
    Owned<S> o;
    o.unit = at.first_unit + at.half * 8 + at.lane / 4;
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
        const int column = S::kColumnsOwned == 2 ? i % 2 : at.column;
        o.sequence[i] =
            at.first_sequence + (S::kOne ? 0 : i / S::kColumnsOwned * 8 + at.lane % 4 * 2 + column);
    }
    o.load(r, state);
    __syncthreads();
    cluster_sync();
    if constexpr (S::kOne) {
        run_one(r, at, weights, o, shared, rules);
    } else {
        run_many(r, at, weights, o, shared, rules);
    }
    if (!at.finishes) return;
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
        if (!o.has(r, i) || (S::kOne && at.lane % 4 != 0)) continue;
        gru::store_code(state, cell.h_bytes, int64_t(o.sequence[i]) * cell.hidden_size + o.unit,
                        o.h[i] + cell.h_zero);
    }
}

template <class S, class Rules>
__global__ void __launch_bounds__(S::kThreads, 1) advance(const __grid_constant__ Recurrence r) {
    extern __shared__ __align__(128) char memory[];
    Shared<S, Rules> &shared = *reinterpret_cast<Shared<S, Rules> *>(memory);
    if (!S::kOne && threadIdx.x == 0) {
        const uint32_t barrier = shared_address(shared.barrier);
        for (uint32_t i = 0; i < 2; ++i) barrier_init(barrier + i * 8, 1);
        barrier_init_fence();
        for (uint32_t i = 0; i < 2; ++i) barrier_expect(barrier + i * 8, S::kStepBytes);
    }
    if constexpr (std::is_same_v<Rules, AnyRules>) {
        run_steps<S, Rules>(r, shared, Rules(r.v.cell));
    } else {
        shared.tables.fill(r.v.cell);
        run_steps<S, Rules>(r, shared, Rules{r.plain, shared.tables});
    }
}

}  // namespace
}  // namespace qk::cuda

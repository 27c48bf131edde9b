// All steps of a recurrence in one launch. R stays in the registers of a cluster's blocks as matrix
// operands; a block owns kHidden / kBlocks units, gets every block's part of h into its shared
// memory at each step, and sends its own part of the next h to all.
//
// A warp multiplies the three rows of 16 units with a slice of h; the warps of a slice's group add
// their sums through shared memory. h is double-buffered: a block that sends h of step t + 1 has
// read h of step t, and who receives it from all may therefore overwrite h of step t everywhere.
#pragma once
#include "cuda/gru/cluster_parts.cuh"

namespace qk::cuda {
namespace {

// What a warp is and where its things lie.
template <class S>
struct Place {
    int32_t first_sequence;
    int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int group = warp / S::kSlices, slice = warp % S::kSlices;
    int32_t first_unit = int32_t(cluster_rank()) * S::kUnits + group * 16;
    // The half of the 16 units and, of four slices, the column of two that the warp finishes.
    int half = S::kSlices == 2 ? slice : slice / 2, column = S::kSlices == 2 ? 0 : slice % 2;
    int different = S::kOne ? lane / 4 : lane;
    bool finishes = !(S::kOne && column == 1);
};

// What a warp has summed, to its group.
template <class S>
__device__ void store_sums(const Place<S> &at, const int32_t (&sums)[3][4],
                           const int32_t (&plain)[2][3],
                           int4 (&to)[4][S::kSlices * S::kParts][S::kLanes]) {
#pragma unroll
    for (int p = 0; p < 4; p += S::kOne ? 2 : 1) {
        int4 sum = {sums[0][p], sums[1][p], sums[2][p], 0};
        int part = at.slice;
        if constexpr (S::kParts > 1) {  // the four lanes of a row have copies and parts
            if (at.lane % 4 != 0) sum = {};
            sum.x += plain[p / 2][0], sum.y += plain[p / 2][1], sum.z += plain[p / 2][2];
            part = at.slice * 4 + at.lane % 4;
        }
        to[p][part][at.different] = sum;
    }
}

// Sums of this warp's slice, of every tile, to the group.
template <class S, class Rules>
__device__ void multiply(const Place<S> &at, const Fragments<S> &weights, Shared<S, Rules> &shared,
                         int64_t t) {
    const uint32_t h_at = shared_address(shared.h[t & 1]);
    const uint32_t column = uint32_t(at.slice * S::kColumns + at.lane % 4 * 16);
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
        int32_t sums[3][4] = {};
        const uint32_t from =
            h_at + column + uint32_t(S::kOne ? 0 : (tile * 8 + at.lane / 4) * S::kRow);
        int32_t plain[2][3] = {};
#pragma unroll
        for (int pair = 0; pair < S::kPairs; ++pair) {
            const uint4 h = shared_load_16(from + uint32_t(pair) * 64);
            if (pair % 2 == 1 && pair / 2 < S::kPlainPairs) {
                weights.multiply_plain(pair, h, plain);
            } else {
                weights.multiply(pair, h, sums);
            }
        }
        store_sums(at, sums, plain, shared.partial[at.group][tile]);
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
    for (int s = 0; s < S::kSlices * S::kParts; ++s) {
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
    write_aligned_y(r.v, row * cell.hidden_size + o.unit, o.h[i] + cell.h_zero);
}

// Until all of h of step t is here; then the barrier may count that of step t + 2.
template <class S>
__device__ void wait_for_h(const Recurrence &r, const uint64_t (&barriers)[2], int64_t t) {
    if (t == 0) return;
    const uint32_t barrier = shared_address(&barriers[t % 2]);
    barrier_wait(barrier, uint32_t(t - 1) >> 1 & 1);
    if (threadIdx.x == 0) barrier_expect(barrier, step_bytes<S>(r));
}

// One sequence: what counts is how soon the next h is everywhere.
template <class S, class Rules>
__device__ void run_one(const Recurrence &r, const Place<S> &at, const Fragments<S> &weights,
                        Owned<S> &o, Shared<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    gru::InputSums<int32_t> input = input_of(rules, cell, o.load_ih(r, 0, 0));
    uint2 ahead = o.load_ih(r, 0, 1);
    const Sender sender(shared.h[0] + at.first_unit + at.half * 8, shared.barrier, S::kBlocks);
    for (int64_t t = 0; t < r.v.steps; ++t) {
        wait_for_h<S>(r, shared.barrier, t);
        multiply(at, weights, shared, t);
        if (!at.finishes) {
            named_barrier_arrive(at.group + 1, S::kGroupThreads);
            continue;
        }
        named_barrier_wait(at.group + 1, S::kGroupThreads);
        o.h[0] = next_h(at, o, 0, input, shared, rules);
        if (t + 1 < r.v.steps) {
            sender.send(rules.view(o.h[0]), uint32_t(t + 1) % 2, S::kBuffer);
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
        const uint32_t next = uint32_t(t + 1) % 2;
        uint2 codes[S::kOwned];
#pragma unroll
        for (int i = 0; i < S::kOwned; ++i) codes[i] = o.load_ih(r, i, t);
        wait_for_h<S>(r, shared.barrier, t);
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
            send_rows<S>(shared.outgoing[at.group], r.tile,
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
    const Place<S> at = {int32_t(blockIdx.x) / S::kBlocks * r.tile};
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
    o.last_sequence = min(at.first_sequence + r.tile, int32_t(r.v.batch));
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
    if (threadIdx.x == 0) {
        const uint32_t barrier = shared_address(shared.barrier);
        for (uint32_t i = 0; i < 2; ++i) barrier_init(barrier + i * 8, 1);
        barrier_init_fence();
        for (uint32_t i = 0; i < 2; ++i) barrier_expect(barrier + i * 8, step_bytes<S>(r));
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

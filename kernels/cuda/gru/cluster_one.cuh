// One sequence a cluster: what counts is how soon the next h is everywhere.
#pragma once
#include "cuda/gru/cluster_parts.cuh"

namespace qk::cuda {
namespace {

constexpr int kAhead = 4;  // steps of W x on their way: a thread copies its own by itself

template <class S, class Rules>
struct SharedOne {
    alignas(16) uint64_t barrier[2];  // of h of even and odd steps
    alignas(128) uint8_t h[2][S::kHidden];
    alignas(16) uint8_t outgoing[S::kUnits];
    alignas(16) int4 partial[S::kGroups][2][8];  // u, r, n: what the other warp finishes
    uint64_t ih[kAhead][S::kThreads];
    typename Rules::Tables tables;
};

// The lane's unit: its sums of the three gates.
template <class S, class Rules>
__device__ void multiply_one(const Place<S> &at, const Fragments<S> &weights,
                             SharedOne<S, Rules> &shared, int32_t t, int32_t (&own)[3]) {
    const uint32_t from =
        shared_address(shared.h[t & 1]) + uint32_t(at.slice * S::kColumns + at.lane % 4 * 16);
    // Where registers last, two sums a gate: a product that waits for another takes 24 cycles, one
    // that does not takes 4.
    constexpr bool kApart = S::kLut4 <= 4;
    int32_t sums[2][3][4] = {};
#pragma unroll
    for (int pair = 0; pair < S::kLut4; ++pair) {
        const uint4 h = shared_load_16(from + uint32_t(pair) * 64);
        if constexpr (kApart) {
            weights.multiply_apart(pair, h, sums);
        } else {
            weights.multiply(pair, h, sums[0]);
        }
    }
    int32_t other[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
        const int32_t first = sums[0][gate][0] + sums[1][gate][0];
        const int32_t second = sums[0][gate][2] + sums[1][gate][2];
        own[gate] = at.half == 0 ? first : second;
        other[gate] = at.half == 0 ? second : first;
    }
    int4(&partial)[2][8] = shared.partial[at.group];
    partial[at.slice][at.lane / 4] = {other[0], other[1], other[2], 0};
    named_barrier_wait(at.group + 1, S::kGroupThreads);
    const int4 rest = partial[at.slice ^ 1][at.lane / 4];
    own[0] += rest.x, own[1] += rest.y, own[2] += rest.z;
}

// The block's units to every block of the cluster: a thread sends four, so that those to one block
// are side by side in a warp and leave as one packet.
template <class S>
struct Sender {
    static constexpr int kWords = S::kUnits / 4;
    static_assert(S::kBlocks * kWords == S::kThreads);
    uint32_t from, own, to, barrier;  // to: of even steps

    template <class Shared>
    __device__ Sender(const Place<S> &at, Shared &shared) {
        const uint32_t block = threadIdx.x / kWords, word = threadIdx.x % kWords;
        const uint32_t first = cluster_rank() * S::kUnits;
        from = shared_address(shared.outgoing) + word * 4;
        own = shared_address(shared.outgoing) + uint32_t(at.unit) - first;
        to = remote_address(shared_address(shared.h[0]) + first + word * 4, block);
        barrier = remote_address(shared_address(shared.barrier), block);
    }
    __device__ void send(int32_t code, int32_t step) const {
        shared_store_1(own, uint32_t(code));
        __syncthreads();
        const uint32_t odd = uint32_t(step) % 2;
        remote_store_4(to + odd * S::kTileBytes, shared_load_4(from), barrier + odd * 8);
    }
};

template <class S, class Rules>
__device__ void run_steps(const Recurrence &r, SharedOne<S, Rules> &shared, const Rules &rules) {
    const gru::Cell &cell = r.v.cell;
    const Place<S> at = {int32_t(blockIdx.x) / S::kBlocks};
    void *const state = current_state(r.v);
    begin_barriers(shared.barrier, 1);
    for (int32_t i = int32_t(threadIdx.x); i < S::kHidden; i += S::kThreads) {
        shared.h[0][i] = first_view(r, state, at.first_sequence, i);
    }
    Fragments<S> weights;
    weights.load(cell, at.first_unit, at.slice * S::kColumns);
    Unit unit;
    unit.load(cell, at.unit, rules);
    const bool active = at.unit < cell.hidden_size;
    const int64_t own = int64_t(at.first_sequence) * cell.hidden_size + at.unit;
    int32_t h = active ? gru::load_code(state, cell.h_bytes, own) - cell.h_zero : 0;
    char *y = y_of(r.v, own);
    const char *ih = reinterpret_cast<const char *>(r.ih + own);
    const auto issue_ih = [&](int32_t step) {
        if (active && step < r.steps) {
            copy_8(shared_address(&shared.ih[step % kAhead][threadIdx.x]), ih);
            ih += r.ih_step;
        }
        copies_commit();
    };
    const auto take_ih = [&](int32_t step) {
        copies_wait_but<kAhead - 2>();
        const uint64_t codes =
            *const_cast<volatile uint64_t *>(&shared.ih[step % kAhead][threadIdx.x]);
        return input_of(rules, cell, {uint32_t(codes), uint32_t(codes >> 32)});
    };
    for (int i = 0; i < kAhead; ++i) shared.ih[i][threadIdx.x] = 0;
    __syncthreads();
    cluster_sync();
    expect_first_h(shared.barrier, 1, S::kHidden, r.steps);
    for (int32_t step = 0; step < kAhead - 1; ++step) issue_ih(step);
    gru::InputSums<int32_t> input = take_ih(0);
    const Sender<S> sender(at, shared);
    // Of the lanes that have the same cell, one.
    const bool stores = active && at.lane % 4 == 0;
    const int32_t expects = threadIdx.x == 0 ? r.steps - 2 : 0;  // so many steps
    for (int32_t t = 0; t < r.steps; ++t) {
        wait_for_h(shared.barrier[t & 1], t, S::kHidden, t < expects);
        int32_t sums[3];
        multiply_one(at, weights, shared, t, sums);
        h = unit.next_h(rules, input, sums, h);
        if (t + 1 < r.steps) sender.send(rules.view(h), t + 1);
        issue_ih(t + kAhead - 1);
        input = take_ih(t + 1);
        if (stores) store_y(r.v, y, h);
        y += r.y_step;
    }
    if (stores) gru::store_code(state, cell.h_bytes, own, h + cell.h_zero);
}

}  // namespace
}  // namespace qk::cuda

// The sums of linear/sm90/gemm/large.cuh become y, 16 rows of x at a time: a warpgroup transposes
// its 64 rows of w by 16 of x in shared memory, so that whole lines of 128 bytes of y leave: a
// store that touches 16 lines takes four times as long as one that touches four.
//
// Blocks of a cluster hold sums of the same outputs. Piece q of 16 rows of x belongs to block
// q mod split: the others write their sums of it into that block's shared memory, from the
// registers of a thread for the thread with the same number, and it adds those of block 0, 1, ..
#pragma once
#include "cuda/linear/sm90/gemm/ring.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct LargeOutput {
    using T = typename S::T;
    static constexpr int N = S::N, kAcc = N / 2, kPieces = N / 16;
    static constexpr uint32_t kFour = S::kConsumers * 128 * 16;  // bytes: 4 sums of every thread

    const GemmProblem &p;
    int64_t row;  // of w: the first of this thread's 8 that leave together
    int32_t x_first;
    uint32_t to, from;  // shared memory, of the first of two pieces
    float bias[2];      // of the rows that this thread has sums of
    bool lines;         // 16 bytes of y at a time

    __device__ LargeOutput(const GemmProblem &problem, const Item &it, uint32_t turns)
        : p(problem), x_first(it.x_first) {
        constexpr uint32_t kPitch = S::kTransposePitch;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
        const uint32_t group = threadIdx.x >> 7, thread = threadIdx.x & 127;
        const int64_t first = int64_t(it.row_tile) * 16 + group * 64;
        const uint32_t here = turns + group * 2 * S::kTransposeBytes;
        to = here + (lane / 16 * 8 + lane % 8) * kPitch + warp * 32 + (lane / 8 & 1) * 16;
        from = here + thread / 8 * kPitch + thread % 8 * 16;
        row = first + thread % 8 * 8;
        bias[0] = bias_of(first + warp * 16 + lane / 4);
        bias[1] = bias_of(first + warp * 16 + lane / 4 + 8);
        lines = p.y_pitch % 8 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
    }

    __device__ float bias_of(int64_t r) const {
        if (p.bias == nullptr || r >= p.w.geometry.n) return 0.0f;
        return load_float(p.bias_type, p.bias, r);
    }

    // `turn`: 0 and 1 alternate, so one barrier a piece keeps them apart.
    __device__ void store_piece(int piece, uint32_t turn, const float (&d)[8]) const {
        const uint32_t buffer = turn * S::kTransposeBytes;
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] = pack_pair(T{}, __fadd_rn(d[i * 2], bias[i & 1]),
                                 __fadd_rn(d[i * 2 + 1], bias[i & 1]));
        }
        matrices_store_transposed(to + buffer, pairs);
        named_barrier_wait(2 + int(threadIdx.x >> 7), 128);
        const int64_t x_row = x_first + piece * 16 + int32_t(threadIdx.x & 127) / 8;
        if (x_row >= p.m || row >= p.w.geometry.n) return;
        uint16_t *const y = static_cast<uint16_t *>(p.y) + x_row * p.y_pitch + row;
        const uint4 v = shared_load_16(from + buffer);
        if (lines) {
            global_store_16(y, v);
        } else {
            store_values(y, from + buffer);
        }
    }

    __device__ __noinline__ void store_values(uint16_t *y, uint32_t at) const {
        const int64_t count = min64(p.w.geometry.n - row, 8);
#pragma unroll 1
        for (int i = 0; i < count; ++i) store_as(y, i, uint16_t(shared_load_2(at + i * 2)));
    }

    __device__ void store(const float (&acc)[kAcc]) const {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
            float d[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) d[i] = acc[piece * 8 + i];
            store_piece(piece, piece % 2, d);
        }
    }

    // Where the sums of block 0 for a piece are in its owner's memory; the others' follow. An
    // owner has one piece of `split` in a row: `round` is the first of these.
    __device__ static uint32_t landing(uint32_t shared, uint32_t round) {
        return shared + round * 2 * kFour + threadIdx.x * 16;
    }

    // To the owners, this block among them: what follows is a loop, with sums in memory.
    __device__ void send_sums(uint32_t shared, uint32_t rank, const float (&acc)[kAcc]) const {
        const uint32_t split = uint32_t(p.split);
        uint32_t owner = 0, round = 0;
#pragma unroll
        for (uint32_t q = 0; q < kPieces; ++q) {
            const uint32_t there = landing(remote_address(shared, owner), round + rank);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float *const v = acc + q * 8 + i * 4;
                cluster_store_16(there + i * kFour, {v[0], v[1], v[2], v[3]});
            }
            if (++owner == split) owner = 0;
            if (q + 1 == round + split) round += split;
        }
    }

    __device__ void store_own_pieces(uint32_t shared, uint32_t rank) const {
        const uint32_t split = uint32_t(p.split);
        uint32_t turn = 0, round = 0;
#pragma unroll 1
        for (uint32_t q = rank; q < kPieces; q += split) {
            float sum[8];
            uint32_t from_block = landing(shared, round);
            load_sums(from_block, sum);
#pragma unroll 1
            for (uint32_t r = 1; r < split; ++r) {
                float more[8];
                load_sums(from_block += 2 * kFour, more);
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], more[i]);
            }
            store_piece(int(q), turn, sum);
            turn ^= 1;
            round += split;
        }
    }

    __device__ static void load_sums(uint32_t at, float (&sums)[8]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 v = shared_load_floats(at + i * kFour);
            sums[i * 4] = v.x, sums[i * 4 + 1] = v.y, sums[i * 4 + 2] = v.z, sums[i * 4 + 3] = v.w;
        }
    }
};

}  // namespace
}  // namespace qk::cuda

// y = x . transpose(w) + bias for more than 64 rows of x on sm_90a: the weights are the matrix
// operand in registers, x the one in shared memory (linear/sm90/gemm/ring.cuh).
//
//   warpgroup r of R:      [ decode tile 1 ]     [ decode tile 2 ]     [ decode tile 3 ]
//   tensor cores:    [ multiply tile 0        ][ multiply tile 1     ][ multiply tile 2     ]
//
// A block owns 64 R rows of w and N rows of x: 64 x N sums a warpgroup. Operands are decoded into
// one of two sets of registers while the products of the other run, so a warpgroup always has
// products queued. There are no registers for separate f32 sums of a tile: the scale,
// rounded to x's type, multiplies the weights first, as if they had been dequantized to x's type.
//
// Blocks go on from product to product (the producers fill the ring for the next one while sums are
// stored). Where there are fewer products than multiprocessors, and in a last wave that would leave
// half of them idle, the blocks of a cluster cut k and add their sums in a fixed order.
//
// After a change look for C7514 in what `nvcc -Xptxas -v` says: where ptxas finds the sums in use
// between products it waits after each of them, and a tile takes 1400 clocks instead of 1060.
#pragma once
#include "cuda/linear/sm90/gemm/ring.cuh"

namespace qk::cuda {
namespace {

// Sums become y 16 rows of x at a time: a warpgroup transposes its 64 rows of w by 16 of x in
// shared memory, so that whole lines of 128 bytes of y leave: a store that touches 16 lines takes
// four times as long as one that touches four.
//
// Blocks of a cluster hold sums of the same outputs. Piece q of 16 rows of x belongs to block
// q mod split: the others write their sums of it into that block's shared memory, from the
// registers of a thread for the thread with the same number, and it adds those of block 0, 1, ..
template <class S>
struct LargeOutput {
    using T = typename S::T;
    static constexpr int N = S::N, kAcc = N / 2, kPieces = N / 16;
    static constexpr uint32_t kFour = S::kConsumers * 128 * 16;  // bytes: 4 sums of every thread

    const GemmProblem &p;
    int64_t column;  // of y: the first of this thread's 8 that leave together
    int32_t x_first;
    uint32_t to, from;  // shared memory, of the first of two pieces
    float bias[2];      // of the columns that this thread has sums of
    bool lines;         // 16 bytes of y at a time

    __device__ LargeOutput(const GemmProblem &problem, const Item &it, uint32_t turns)
        : p(problem), x_first(it.x_first) {
        constexpr uint32_t kPitch = S::kTransposePitch;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
        const uint32_t group = threadIdx.x >> 7, thread = threadIdx.x & 127;
        const int64_t first = int64_t(it.row_tile) * 16 + group * 64;
        const uint32_t here = turns + group * 2 * S::kTransposeBytes;
        to = here + (lane / 16 * 8 + lane % 8) * kPitch + warp * 32 + (lane / 8 & 1) * 16;
        from = here + thread / 8 * kPitch + S::Order::row(own()) * 2;
        column = first + own();
        bias[0] = bias_of(first + S::Order::column(warp * 16 + lane / 4));
        bias[1] = bias_of(first + S::Order::column(warp * 16 + lane / 4 + 8));
        lines = p.y_pitch % 8 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0 &&
                (!S::kTransposed || p.order == nullptr);
    }

    // The first column of those of this thread, of the warpgroup's 64.
    __device__ static uint32_t own() { return threadIdx.x % 8 * 8; }
    // The column of y that a stored one of w's is.
    __device__ static int64_t moved(const GemmProblem &p, int64_t c) {
        if (!S::kTransposed || p.order == nullptr) return c;
        return ordered_column(load_as<int32_t>(p.order, c), p.y_columns);
    }
    __device__ float bias_of(int64_t c) const {
        if (p.bias == nullptr || c >= p.y_columns) return 0.0f;
        return load_float(p.bias_type, p.bias, moved(p, c));
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
        if (x_row >= p.m || column >= p.y_columns) return;
        uint16_t *const y = static_cast<uint16_t *>(p.y) + x_row * p.y_pitch;
        if (lines) {
            global_store_16(y + column, S::Order::load_8(from + buffer));
        } else {
            store_values(p, y, column, from + buffer);
        }
    }

    // Not a member: registers of a thread that has one would go to memory.
    __device__ static __noinline__ void store_values(const GemmProblem &p, uint16_t *y,
                                                     int64_t column, uint32_t at) {
        const int64_t count = min64(p.y_columns - column, 8);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const uint32_t here = at + S::Order::bytes_to(own(), i);
            store_as(y, moved(p, column + i), uint16_t(shared_load_2(here)));
        }
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

template <class S>
struct LargeGemm : Gemm<S> {
    using Base = Gemm<S>;
    using typename Base::Places;
    using typename Base::Raw;
    using T = typename S::T;
    using Operands = uint32_t[4][4];
    static constexpr int N = S::N, kTiles = S::kTiles;
    using Sums = float[N / 2];
    // How many tiles before its products a tile's codes are read: where products are short, the
    // latency would show; where they are long, the ring has no room for it.
    static constexpr int kAhead = N == 256 ? 1 : 2;
    static_assert(S::Q == 1 && 2 % kTiles == 0);

    // Where a consumer stands: how many tiles are left, the stages of the tile whose products come
    // next, of the one before, and of the one that is read next, and the first tile of the latter.
    struct Cursor {
        int32_t left, tile;
        Turn turn, reads;
        uint32_t before;
        Raw raw;  // of the tile that is decoded next
    };

    __device__ void multiply(uint32_t slot_at, int t, const Operands &a, bool add,
                             Sums &sums) const {
        const uint64_t x = wgmma_descriptor(this->slot(slot_at) + t * (S::kX / kTiles));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) Wgmma<T, N>::run(sums, a[j], x + 2 * j, add || j > 0);
        wgmma_commit();
    }

    // Tile t of the next stage to be read; its first tile waits for it.
    __device__ void read_next(const Places &at, Cursor &c, int t) const {
        if (t == 0) barrier_wait(this->full + c.reads.slot * 8, c.reads.parity);
        this->read(at, c.reads.slot, c.tile, t, c.raw);
        if (t + 1 == kTiles) {
            c.reads.next(this->p.slots);
            c.tile += kTiles;
        }
    }

    // Multiplies a tile, which is tile t of its stage, and meanwhile decodes the next one. `more`:
    // one follows that, to be read.
    __device__ void step(const Places &at, Cursor &c, int t, Operands &now, Operands &next,
                         Sums &sums, bool add, bool more) const {
        const uint32_t here = c.turn.slot;
        multiply(here, t, now, add, sums);
        if (t + 1 == kTiles) c.turn.next(this->p.slots);
        if (kAhead == 1) read_next(at, c, (t + 1) % kTiles);
        wgmma_wait<1>();  // the products of the tile before are done
        keep(next);
        if (t == 0 && add) release(c.before);
        float scale[2];
        this->decode(c.raw, next, scale);
        if (kAhead == 2 && more) read_next(at, c, t);
        c.before = here;
        --c.left;
    }

    __device__ void release(uint32_t slot_at) const { barrier_arrive(this->empty + slot_at * 8); }

    __device__ void consume(const Item &it, Turn &turn, Sums &sums) const {
        if (it.first >= it.last) return;
        const Places at(*this, it);
        Operands even, odd = {};
        float scale[2];
        Cursor c = {it.last - it.first, it.first, turn, turn, 0, {}};
        read_next(at, c, 0);
        this->decode(c.raw, even, scale);
        if (kAhead == 2 && c.left > 1) read_next(at, c, 1 % kTiles);
        bool add = false;
        while (c.left > 2) {
            step(at, c, 0, even, odd, sums, add, true);
            step(at, c, kTiles - 1, odd, even, sums, true, kTiles == 2 || c.left > 2);
            add = true;
        }
        if (kTiles == 2 || c.left == 2) {
            step(at, c, 0, even, odd, sums, add, false);
            multiply(c.turn.slot, kTiles - 1, odd, true, sums);
        } else {
            multiply(c.turn.slot, 0, even, add, sums);
        }
        wgmma_wait<0>();
        keep(sums);
        if (kTiles == 1 && it.last - it.first > 1) release(c.before);
        release(c.turn.slot);
        c.turn.next(this->p.slots);
        turn = c.turn;
    }
};

// What a block multiplies, one after the other: items whose k it takes alone, every gridDim-th,
// rows of x first; then, where its cluster has one, an item whose k the cluster's blocks share.
struct Items {
    int32_t row, x;  // of the next
    int32_t cut;     // the shared item's number, less than 0 where there is none

    __device__ explicit Items(const GemmProblem &p)
        : row(int32_t(blockIdx.x) / p.x_blocks), x(int32_t(blockIdx.x) % p.x_blocks) {
        const int32_t after = (int32_t(gridDim.x) - int32_t(blockIdx.x) - 1) / p.split;
        cut = after < p.cut_rows * p.x_blocks ? after : -1;
    }
    __device__ bool whole(const GemmProblem &p) const { return row < p.whole_rows; }

    template <class S>
    __device__ Item item(const GemmProblem &p, S) const {
        const int32_t stages = (p.tiles + S::kTiles - 1) / S::kTiles;
        return {row * S::kRowTiles, x * S::N, 0, stages * S::kTiles};
    }
    template <class S>
    __device__ Item cut_item(const GemmProblem &p, uint32_t rank, S) const {
        const uint32_t stages = uint32_t(p.tiles + S::kTiles - 1) / S::kTiles;
        const uint32_t split = uint32_t(p.split);
        return {(p.whole_rows + cut / p.x_blocks) * S::kRowTiles, cut % p.x_blocks * S::N,
                int32_t(stages * rank / split) * S::kTiles,
                int32_t(stages * (rank + 1) / split) * S::kTiles};
    }
    __device__ void next(const GemmProblem &p) {
        row += p.step_rows;
        x += p.step_x;
        if (x >= p.x_blocks) x -= p.x_blocks, ++row;
    }
};

// The producer warps. The first copies are issued as soon as the barriers are ready.
template <class S>
__device__ void produce(const LargeGemm<S> &g, Items items, uint32_t rank) {
    const auto each_item = [&](auto issue) {
        Turn turn(1);
        for (; items.whole(g.p); items.next(g.p)) issue(items.item(g.p, S()), turn);
        if (items.cut >= 0) issue(items.cut_item(g.p, rank, S()), turn);
    };
    if (int(threadIdx.x) >> 5 == S::kConsumers * 4) {
        wait_for_previous_kernel();  // x may be its y
        if (elect_one()) {
            each_item([&](const Item &it, Turn &turn) { g.issue_boxes(it, turn); });
        }
        __syncwarp();
    } else if constexpr (S::kMade) {
        int32_t others = (int(threadIdx.x) >> 5) - S::kConsumers * 4 - 1;  // take stages before
        each_item([&](const Item &it, Turn &turn) { g.make_scales(it, turn, others); });
    } else if (int(threadIdx.x) >> 5 == S::kConsumers * 4 + 1) {
        each_item([&](const Item &it, Turn &turn) { g.issue_scales(it, turn); });
    }
    if (items.cut >= 0) {
        cluster_arrive_relaxed();
        cluster_wait();
        cluster_sync();
    }
}

// The consumer warps.
template <class S>
__device__ void multiply_items(const LargeGemm<S> &g, Items items, uint32_t rank, uint32_t base) {
    typename LargeGemm<S>::Sums sums = {};
    Turn turn(0);
    const uint32_t turns = base + S::kTable + uint32_t(g.p.slots) * S::kStage;
    while (true) {
        const bool whole = items.whole(g.p);
        if (!whole && items.cut < 0) return;
        const Item item = whole ? items.item(g.p, S()) : items.cut_item(g.p, rank, S());
        g.consume(item, turn, sums);
        const LargeOutput<S> output(g.p, item, turns);
        if (!whole) {
            cluster_arrive_relaxed();
            cluster_wait();  // every ring is free: nothing follows
            output.send_sums(base, rank, sums);
            cluster_sync();
            if (g.fits()) return output.store_own_pieces(base, rank);
            if constexpr (S::kBytes) g.multiply_slowly(item, rank, uint32_t(g.p.split));
            return;
        }
        if (g.fits()) {
            output.store(sums);
        } else if constexpr (S::kBytes) {
            g.multiply_slowly(item, 0, 1);
        }
        items.next(g.p);
    }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_wide(const __grid_constant__ GemmProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[kMaxSlots], empty[kMaxSlots];
    __shared__ float scale_codes[S::kScaleCodes];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    const uint32_t rank = cluster_rank();
    // In flight while the barriers are prepared.
    constexpr bool kCoded = S::kind == ScaleKind::kNested;
    const bool coded = kCoded && (!S::kAnyScale || p.w.scale_format == QK_FORMAT_LUT8);
    const float second_bias = coded ? load_as<float>(p.w.bias, 0) : 0.0f;
    // As a broadcast the compiler knows it to be the same in a warp: addresses stay uniform.
    const int warp = __shfl_sync(~0u, int(threadIdx.x) >> 5, 0);
    allow_next_kernel();
    prepare_block<S>(p, warp, shared_address(full), shared_address(empty), shared, scale_codes);
    // Through a shuffle: else ptxas rematerializes them at every use, from a slow register.
    const auto keep_address = [](uint32_t a) { return __shfl_sync(~0u, a, 0); };
    const LargeGemm<S> g = {
        {{p, keep_address(base + S::kTable), keep_address(shared_address(full)),
          keep_address(shared_address(empty)), base, scale_codes, second_bias}}};
    const Items items(p);
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        produce(g, items, rank);
    } else {
        more_registers<S::kConsumerRegisters>();
        multiply_items(g, items, rank, base);
    }
#endif
}

}  // namespace
}  // namespace qk::cuda

// y = x . transpose(w) + bias for 17 to 64 rows of x on sm_90a, of 8-bit codes from 9 on: the
// weights are the matrix operand in registers, x the one in shared memory
// (linear/sm90/gemm/ring.cuh).
//
//   a warpgroup:   [ decode 1  load 2  fold 0 ] [ decode 2  load 3  fold 1 ]
//   tensor cores:  [ multiply tile 0 ]          [ multiply tile 1 ]
//
// A block owns 64 R rows of w and all rows of x; of its R x Q warpgroups R share the rows, and Q
// alternate over the tiles. The Q sums, and those of the blocks of a cluster
// (which cut k), meet in shared memory and are added in a fixed order. The products of one tile are
// summed from zero and folded with the group's scale in f32, as in linear/sm80/gemv/gemv.cu.
//
// Products are 32 or 64 columns wide (16 for 9 to 16 rows of x), and take 64 or 128 clocks a tile
// of 64 x 64 codes; decoding and folding take 85 or 103 instructions of each warp. Both want
// registers: a product reads and writes its sums there, so the two overlap by half only (148 and
// 201 clocks a tile, without copies).
//
// After a change count WARPGROUP.DEPBAR in the machine code: there is one a tile. Where ptxas finds
// sums in use between products it waits after each of them, often without saying so (C7514).
#pragma once
#include "cuda/linear/sm90/gemm/ring.cuh"
#include "cuda/prim/cluster.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct GemmOutput {
    using T = typename S::T;
    static constexpr int N = S::N, kAcc = N / 2;

    const GemmProblem &p;
    int32_t row_tile, x_first;

    __device__ void store_sums(uint8_t *sums, const float (&acc)[kAcc]) const {
        const uint32_t lane = threadIdx.x & 31, group = threadIdx.x >> 7;
        const uint32_t row = group / S::Q * 64 + (threadIdx.x >> 5 & 3) * 16 + lane / 4;
        float *const to = reinterpret_cast<float *>(sums + group % S::Q * S::kSums) + row +
                          lane % 4 * 2 * (S::kColumn / 4);
#pragma unroll
        for (int i = 0; i < kAcc; ++i) {
            to[(i / 4 * 8 + i % 2) * (S::kColumn / 4) + i / 2 % 2 * 8] = acc[i];
        }
    }

    __device__ float4 sum_of(uint32_t address, uint32_t rank) const {
        return p.split > 1 ? cluster_load(address, rank) : shared_load_floats(address);
    }

    // The blocks of a cluster share the outputs.
    __device__ void store_y(uint32_t sums, uint32_t rank) const {
        constexpr int kFours = S::kRows / 4, kAll = S::kConsumers * 128;
        const int32_t here = int32_t(min64(N, p.m - x_first));
        for (int32_t i = int32_t(rank) * kAll + int32_t(threadIdx.x); i < here * kFours;
             i += p.split * kAll) {
            const int32_t column = i / kFours, four = i % kFours;
            const uint32_t at = sums + column * S::kColumn + four * 16;
            float4 v = sum_of(at, 0);
            for (int32_t part = 1; part < p.split * S::Q; ++part) {
                const float4 next = sum_of(at + part % S::Q * S::kSums, part / S::Q);
                v.x = __fadd_rn(v.x, next.x);
                v.y = __fadd_rn(v.y, next.y);
                v.z = __fadd_rn(v.z, next.z);
                v.w = __fadd_rn(v.w, next.w);
            }
            store_four(x_first + column, int64_t(row_tile) * 16 + four * 4, {v.x, v.y, v.z, v.w});
        }
    }

    struct Four {
        float v[4];
    };

    __device__ void store_four(int64_t x_row, int64_t row, Four y) const {
        const int64_t n = p.w.geometry.n, at = x_row * p.y_pitch + row;
        const int count = int(min64(n - row, 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (p.bias == nullptr || i >= count) continue;
            y.v[i] = __fadd_rn(y.v[i], load_float(p.bias_type, p.bias, row + i));
        }
        uint16_t *const to = static_cast<uint16_t *>(p.y) + at;
        if (count == 4 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
            *reinterpret_cast<uint2 *>(to) = {pack_pair(T{}, y.v[0], y.v[1]),
                                              pack_pair(T{}, y.v[2], y.v[3])};
            return;
        }
        const qk_format type = kFormatOf<T>;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i < count) store_float(type, p.y, at + i, y.v[i]);
        }
    }
};

template <class S>
struct SmallGemm : Gemm<S> {
    using Base = Gemm<S>;
    using typename Base::Places;
    using typename Base::Raw;
    using T = typename S::T;
    using Operands = uint32_t[4][4];
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2;
    static constexpr int kSteps = kTiles / S::Q;  // of a warpgroup in a stage
    // Whether registers hold two tiles. Where not, four warpgroups decode behind each other's
    // products.
    static constexpr bool kAhead = N <= 32 || S::kConsumers < 4;
    using Sums = float[kAcc];
    static_assert(kTiles % S::Q == 0 && (!kAhead || kSteps == 2));

    // Where a consumer stands.
    struct Cursor {
        const Places at;
        int32_t tile;       // of k: the first of this stage
        int q;              // which of its tiles are this warpgroup's
        Turn turn;          // of the next stage
        uint32_t here = 0;  // this stage's slot
        bool more = false;  // whether there is a next stage
    };

    __device__ void multiply(const Cursor &c, int s, const Operands &a, Sums &part) const {
        const uint32_t tile = uint32_t(s * S::Q + c.q) * (S::kX / kTiles);
        const uint64_t x = wgmma_descriptor(this->slot(c.here) + tile);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) Wgmma<T, N>::run(part, a[j], x + 2 * j, j > 0);
        wgmma_commit();
    }

    // Reads the codes of step s of this stage, or, from kSteps on, of the next.
    __device__ void read_step(const Cursor &c, int s, Raw &raw) const {
        if (s < kSteps) return this->read(c.at, c.here, c.tile, s * S::Q + c.q, raw);
        if (s == kSteps && c.more) barrier_wait(this->full + c.turn.slot * 8, c.turn.parity);
        const int32_t tile = c.more ? c.tile + kTiles : c.tile;  // else what it reads is not used
        this->read(c.at, c.turn.slot, tile, (s - kSteps) * S::Q + c.q, raw);
    }

    __device__ static void fold(const Sums &part, const float (&scale)[2], Sums &acc) {
#pragma unroll
        for (int i = 0; i < kAcc; ++i) acc[i] = __fmaf_rn(part[i], scale[i / 2 & 1], acc[i]);
    }

    // While the products of a tile run, the next one is decoded, the one after it read, and the
    // sums of the one before folded.
    __device__ void stage(const Cursor &c, Raw &raw, Operands (&a)[2], float (&scale)[2],
                          Sums &acc) const {
        Sums even, odd;
        float odd_scale[2], next_scale[2];
        multiply(c, 0, a[0], even);
        this->decode(raw, a[1], odd_scale);
        read_step(c, 2, raw);
        wgmma_wait<0>();
        keep(even);
        multiply(c, 1, a[1], odd);
        this->decode(raw, a[0], next_scale);
        read_step(c, 3, raw);
        fold(even, scale, acc);
        scale[0] = next_scale[0];
        scale[1] = next_scale[1];
        wgmma_wait<0>();
        keep(odd);
        fold(odd, odd_scale, acc);
    }

    // Without registers for two.
    __device__ void short_stage(const Cursor &c, Raw &raw, Operands &a, float (&scale)[2],
                                Sums &acc) const {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            Sums part;
            multiply(c, s, a, part);
            read_step(c, s + 1, raw);
            wgmma_wait<0>();
            keep(part);
            fold(part, scale, acc);
            this->decode(raw, a, scale);
        }
    }

    __device__ void consume(const Item &it, int group, Sums &acc) const {
        if (it.first >= it.last) return;
        Cursor c = {Places(*this, it), it.first, group % S::Q, Turn(0)};
        Raw raw;
        Operands a[kAhead ? 2 : 1];
        float scale[2];
        barrier_wait(this->full, 0);
        read_step(c, 0, raw);
        this->decode(raw, a[0], scale);
        if constexpr (kAhead) read_step(c, 1, raw);
        for (; c.tile < it.last; c.tile += kTiles) {
            c.here = c.turn.slot;
            c.turn.next(this->p.slots);
            c.more = c.tile + kTiles < it.last;
            if constexpr (kAhead) {
                stage(c, raw, a, scale, acc);
            } else {
                short_stage(c, raw, a[0], scale, acc);
            }
            __syncwarp();
            barrier_arrive(this->empty + c.here * 8);
        }
    }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_narrow(const __grid_constant__ GemmProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[kMaxSlots], empty[kMaxSlots];
    __shared__ float scale_codes[S::kScaleCodes];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    const uint32_t rank = p.split == 1 ? 0 : cluster_rank();
    allow_next_kernel();
    // In flight while the barriers are prepared.
    const float second_bias = S::kind == ScaleKind::kNested ? load_as<float>(p.w.bias, 0) : 0.0f;
    // As a broadcast the compiler knows it to be the same in a warp: addresses stay uniform.
    const int warp = __shfl_sync(~0u, int(threadIdx.x) >> 5, 0);
    prepare_block<S>(p, warp, shared_address(full), shared_address(empty), shared, scale_codes);
    const SmallGemm<S> g = {{{p, base + S::kTable, shared_address(full), shared_address(empty),
                              base, scale_codes, second_bias}}};
    const int64_t stages = ceil_div(p.tiles, S::kTiles);
    const Item item = {int32_t(blockIdx.y) * S::kRowTiles, 0,
                       int32_t(stages * rank / p.split) * S::kTiles,
                       int32_t(stages * (rank + 1) / p.split) * S::kTiles};
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        Turn turn(1);
        if (warp == S::kConsumers * 4) {
            wait_for_previous_kernel();  // x may be its y
            if (elect_one()) g.issue_boxes(item, turn);
            __syncwarp();
        } else if constexpr (S::kBytes) {
            int32_t others = warp - S::kConsumers * 4 - 1;
            g.make_scales(item, turn, others);
        } else if (warp == S::kConsumers * 4 + 1) {
            g.issue_scales(item, turn);
        }
        if (p.split > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        more_registers<S::kConsumerRegisters>();
        typename SmallGemm<S>::Sums acc = {};
        g.consume(item, warp >> 2, acc);
        const auto meet = [] {
            asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers * 128) : "memory");
        };
        meet();  // the ring is free
        const GemmOutput<S> output = {p, item.row_tile, item.x_first};
        output.store_sums(shared + S::kTable, acc);
        if (p.split > 1) {
            cluster_sync();
        } else {
            meet();
        }
        if (g.fits()) {
            output.store_y(base + S::kTable, rank);
        } else if constexpr (S::kBytes) {
            g.multiply_slowly(item, rank, uint32_t(p.split));
        }
        if (p.split > 1) cluster_sync();  // no block exits while its sums are read
    }
#endif
}

}  // namespace
}  // namespace qk::cuda

// y = x . transpose(w) + bias for 17 to 64 rows of x on sm_90a: the weights are the matrix operand
// in registers, x the one in shared memory (gemm/parts.cuh).
//
//   a warpgroup:   [ decode 1  load 2  fold 0 ] [ decode 2  load 3  fold 1 ]
//   tensor cores:  [ multiply tile 0 ]          [ multiply tile 1 ]
//
// A block owns 64 R U rows of w and all rows of x; of its R x Q warpgroups R share the rows, U
// units of 64 each, and Q take turns at the tiles. The Q sums, and those of the blocks of a cluster
// (which cut k), meet in shared memory and are added in a fixed order. The products of one tile are
// summed from zero and folded with the group's scale in f32, as in decode/matvec.cu.
//
// Products are 32 or 64 columns wide, and take 64 or 128 clocks a tile of 64 x 64 codes; decoding
// and folding take 85 or 103 instructions of each warp. Both want registers: a product reads and
// writes its sums there, so the two overlap by half only (148 and 201 clocks a tile, without
// copies).
//
// After a change count WARPGROUP.DEPBAR in the machine code: there is one a tile. Where ptxas finds
// sums in use between products it waits after each of them, often without saying so (C7514).
#pragma once
#include "cuda/gemm/output.cuh"
#include "cuda/gemm/parts.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct NarrowGemm : Gemm<S> {
    using Base = Gemm<S>;
    using typename Base::Places;
    using typename Base::Raw;
    using T = typename S::T;
    using Operands = uint32_t[4][4];
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2, U = S::U;
    static constexpr int kSteps = kTiles / S::Q * U;  // of a warpgroup in a stage
    static constexpr ScaleKind kind = S::kind;
    using Sums = float[U][kAcc];

    __device__ void multiply(uint32_t slot_at, int t, const Operands &a,
                             float (&sum)[kAcc]) const {
        const uint64_t x = wgmma_descriptor(this->slot(slot_at) + t * (S::kX / kTiles));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) Wgmma<T, N>::run(sum, a[j], x + 2 * j, j > 0);
        wgmma_commit();
    }

    __device__ static void fold(const float (&part)[kAcc], const float (&scale)[2],
                                float (&acc)[kAcc]) {
#pragma unroll
        for (int i = 0; i < kAcc; ++i) acc[i] = __fmaf_rn(part[i], scale[i / 2 & 1], acc[i]);
    }

    // Where a consumer stands: the stage that is multiplied, the next one, whether it is there.
    struct Cursor {
        Turn turn;  // of the next stage
        uint32_t here;
        int32_t tile;  // of k: the first of this stage
        int q;
        bool more;
    };

    template <int s>
    __device__ void load_step(const Places &at, uint32_t slot_at, int32_t tile, int q,
                              Raw &to) const {
        this->read(at, slot_at, tile, s / U * S::Q + q, s % U, to);
    }

    // Step s of a stage: its products start; meanwhile the operands of the next are decoded, the
    // codes of the one after it are loaded, the sums of the step before are folded.
    template <int s>
    __device__ void steps(const Places &at, const Cursor &c, Raw &raw, Operands (&a)[2],
                          float (&scale)[2][2], float (&part)[2][kAcc], Sums &acc) const {
        constexpr int now = s % 2, next = 1 - now;
        multiply(c.here, s / U * S::Q + c.q, a[now], part[now]);
        float next_scale[2];
        this->decode(raw, a[next], next_scale);
        if constexpr (s + 2 < kSteps) {
            load_step<s + 2>(at, c.here, c.tile, c.q, raw);
        } else {
            if (s + 2 == kSteps && c.more) {
                barrier_wait(this->full + c.turn.slot * 8, c.turn.parity);
            }
            load_step<s + 2 - kSteps>(at, c.turn.slot, c.more ? c.tile + kTiles : c.tile, c.q,
                                      raw);
        }
        if constexpr (s > 0) fold(part[next], scale[next], acc[(s - 1) % U]);
        scale[next][0] = next_scale[0];
        scale[next][1] = next_scale[1];
        wgmma_wait<0>();
        keep(part[now]);
        if constexpr (s + 1 == kSteps) {
            fold(part[now], scale[now], acc[s % U]);
        } else {
            steps<s + 1>(at, c, raw, a, scale, part, acc);
        }
    }

    __device__ void consume(const Item &it, int group, Sums &acc) const {
        static_assert(kTiles % S::Q == 0 && kSteps % 2 == 0);
        if (it.first >= it.last) return;
        const Places at(*this, it.row_tile);
        Raw raw;
        Operands a[2];
        float scale[2][2];
        Cursor c = {Turn(0), 0, it.first, group % S::Q, false};
        barrier_wait(this->full, 0);
        load_step<0>(at, 0, it.first, c.q, raw);
        this->decode(raw, a[0], scale[0]);
        load_step<1>(at, 0, it.first, c.q, raw);
        for (; c.tile < it.last; c.tile += kTiles) {
            c.here = c.turn.slot;
            c.turn.next(this->p.slots);
            c.more = c.tile + kTiles < it.last;
            float part[2][kAcc];
            steps<0>(at, c, raw, a, scale, part, acc);
            __syncwarp();
            if ((threadIdx.x & 31) == 0) barrier_arrive(this->empty + c.here * 8);
        }
    }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_narrow(const __grid_constant__ GemmProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[kMaxSlots], empty[kMaxSlots];
    __shared__ float scale_codes[S::kind == ScaleKind::kNested ? 256 : 1];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    const uint32_t rank = p.split == 1 ? 0 : cluster_rank();
    allow_next_kernel();
    const int warp = __shfl_sync(~0u, int(threadIdx.x) >> 5, 0);
    if (warp == S::kConsumers * 4) {
        prepare_barriers<S>(p, shared_address(full), shared_address(empty));
        __syncwarp();
        asm volatile("bar.arrive 1, %0;" ::"n"(S::kThreads) : "memory");
    } else {
        prepare_shared<S>(p, shared, scale_codes);
        asm volatile("bar.sync 1, %0;" ::"n"(S::kThreads) : "memory");
    }
    const NarrowGemm<S> g = {{p,
                              base + S::kTable,
                              shared_address(full),
                              shared_address(empty),
                              base,
                              scale_codes,
                              S::kind == ScaleKind::kNested ? load_as<float>(p.w.bias, 0) : 0.0f}};
    const int64_t stages = ceil_div(p.tiles, S::kTiles);
    const Item item = {int32_t(blockIdx.y) * S::kRowTiles, 0,
                       int32_t(stages * rank / p.split) * S::kTiles,
                       int32_t(stages * (rank + 1) / p.split) * S::kTiles};
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        Turn turn(1);
        if (warp == S::kConsumers * 4) {
            wait_for_previous_kernel();  // x may be its y
            if (elect_one()) g.order_boxes(item, turn);
            __syncwarp();
        } else if (warp == S::kConsumers * 4 + 1) {
            g.order_scales(item, turn);
        }
        meet(p);
        if (p.split > 1) meet(p);
    } else {
        more_registers<S::kConsumerRegisters>();
        typename NarrowGemm<S>::Sums acc = {};
        g.consume(item, warp >> 2, acc);
        asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers * 128) : "memory");  // the ring is free
        const GemmOutput<S> output = {p, item.row_tile, item.x_first};
        output.store_sums(shared + S::kTable, acc);
        meet(p);
        output.store_y(base + S::kTable, rank);
        if (p.split > 1) meet(p);  // nobody leaves while its sums are read
    }
#endif
}

}  // namespace
}  // namespace qk::cuda

// y = x . transpose(w) + bias for middle batches on sm_90a: the weights are the matrix operand in
// registers, x the one in shared memory (gemm/parts.cuh).
//
// A block owns 64 R rows of w and 64 rows of x; R x Q warpgroups consume: R share the rows, Q take
// turns at the tiles. A warpgroup decodes a tile, multiplies, and waits; the others keep the tensor
// cores busy meanwhile. The Q sums, and those of the blocks of a cluster (which cut k), meet in
// shared memory and are added in a fixed order.
//
// The products of one tile are summed from zero and folded with the group's scale in f32, as in
// decode/matvec.cu.
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
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2;

    // Warpgroups take turns at the tensor cores: products that share them all end late, and nobody
    // decodes behind the others' products.
    __device__ static void take_turn(int group) {
        if constexpr (S::kConsumers > 1) {
            asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
        }
    }
    __device__ static void pass_turn(int group) {
        if constexpr (S::kConsumers > 1) {
            asm volatile("bar.arrive %0, 256;" ::"r"(2 + (group + 1) % S::kConsumers) : "memory");
        }
    }

    __device__ void multiply(uint32_t slot_at, int t, const uint32_t (&a)[4][4], bool turn_goes_on,
                             float (&sum)[kAcc]) const {
        const uint64_t x = wgmma_descriptor(this->slot(slot_at) + t * (S::kX / kTiles));
        const int group = int(threadIdx.x >> 7);
        take_turn(group);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) Wgmma<T, N>::run(sum, a[j], x + 2 * j, j > 0);
        wgmma_commit();
        if (turn_goes_on || group + 1 < S::kConsumers) pass_turn(group);
    }

    __device__ void consume(const Item &it, float (&acc)[kAcc]) const {
        static_assert(kTiles % S::Q == 0);
        if (it.first >= it.last) return;
        const int q = int(threadIdx.x >> 7) % S::Q;
        const Places at(*this, it.row_tile);
        Turn turn(0);
        Raw raw;
        if (int(threadIdx.x >> 7) == S::kConsumers - 1) pass_turn(S::kConsumers - 1);
        barrier_wait(this->full, 0);
        this->read(at, 0, it.first, q, raw);
        for (int32_t tile = it.first; tile < it.last; tile += kTiles) {
            const uint32_t here = turn.slot;
            turn.next(this->p.slots);
#pragma unroll
            for (int t = 0; t < kTiles; t += S::Q) {
                uint32_t a[4][4];
                float scale[2], part[kAcc];
                this->decode(raw, a, scale);
                const bool goes_on = t + S::Q < kTiles || tile + kTiles < it.last;
                multiply(here, t + q, a, goes_on, part);
                if (t + S::Q < kTiles) {
                    this->read(at, here, tile, t + S::Q + q, raw);
                } else if (tile + kTiles < it.last) {
                    barrier_wait(this->full + turn.slot * 8, turn.parity);
                    this->read(at, turn.slot, tile + kTiles, q, raw);
                }
                wgmma_wait<0>();
                keep(part);
#pragma unroll
                for (int i = 0; i < kAcc; ++i) {
                    acc[i] = __fmaf_rn(part[i], scale[i / 2 & 1], acc[i]);
                }
            }
            if ((threadIdx.x & 31) == 0) barrier_arrive(this->empty + here * 8);
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
    const int warp = int(threadIdx.x) >> 5;
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
    const Item item = {int32_t(blockIdx.z) * S::kRowTiles, int32_t(blockIdx.y) * S::N,
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
        float acc[S::N / 2] = {};
        g.consume(item, acc);
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

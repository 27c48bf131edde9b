// y = x . transpose(w) + bias for middle and large batches on sm_90a: the weights are the matrix
// operand in registers, x the one in shared memory.
//
//               64 R rows x 64 codes a tile        64 columns x N rows of x
//   producer: [ tensor copy, swizzled by 64 B ]  [ tensor copy, swizzled by 128 B ]  scales, zeros
//   consumer:   word -> 4 registers (decode)  ->  wgmma D[64 x N] += A[64 x 16] . B[16 x N]
//
// A block owns 64 R rows of w and N rows of x; R x Q warpgroups consume: R share the rows, Q take
// turns at the tiles. A warpgroup decodes a tile, multiplies, and waits; the others keep the tensor
// cores busy meanwhile. The Q sums, and those of the blocks of a cluster (which cut k), meet in
// shared memory and are added in a fixed order.
//
// Narrow (N = 64): the products of one tile are summed from zero and folded with the group's scale
// in f32, as in decode/matvec.cu. Wide: f32 registers for both do not exist, so the scale, rounded
// to x's type, multiplies the weights first, as if they had been dequantized to x's type.
#pragma once
#include "cuda/gemm/output.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/tensor_copy.cuh"
#include "cuda/prim/wgmma.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct Gemm {
    using T = typename S::T;
    using Decode = typename S::Decode;
    static constexpr ScaleKind kind = S::kind;
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2;
    static constexpr uint32_t kScales = S::kX + S::kCodes, kZeros = kScales + S::kScale;

    const GemmProblem &p;
    uint32_t ring, full, empty, table;
    const float *scale_codes;
    float second_bias;
    int32_t row_tile, x_first, first, last;  // tiles of k: a whole number of stages

    __device__ uint32_t slot(uint32_t i) const { return ring + i * S::kStage; }

    struct Turn {  // of the ring
        uint32_t slot = 0, parity;
        __device__ explicit Turn(uint32_t first_parity) : parity(first_parity) {}
        __device__ void next(int32_t slots) {
            if (++slot == uint32_t(slots)) slot = 0, parity ^= 1;
        }
    };

    // ---- producers: one lane orders the boxes, one warp the scales and zeros

    __device__ void order_boxes() const {
        Turn turn(1);
        for (int32_t tile = first; tile < last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot), barrier = full + turn.slot * 8;
            barrier_expect(barrier, S::kX + S::kCodes);
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                tensor_copy(to + S::kX + t * (S::kCodes / kTiles), p.codes, 0, (tile + t) * 8,
                            row_tile, barrier);
                tensor_copy(to + t * (S::kX / kTiles), p.x, (tile + t) * 64, x_first, barrier);
            }
        }
    }

    // `bytes` of each group of the stage's tiles, `piece` bytes a copy.
    template <int bytes, int piece>
    __device__ void order_groups(uint32_t to, const uint8_t *plane, int32_t tile) const {
        constexpr int kPieces = bytes / piece;
        for (int i = int(threadIdx.x) & 31; i < S::kRowTiles * kTiles * kPieces; i += 32) {
            const int t = i / kPieces % kTiles, r = row_tile + i / kPieces / kTiles;
            const bool there = r < p.row_tiles && tile + t < p.tiles;
            const int64_t group =
                there ? r * p.w.geometry.groups_per_row + ((tile + t) >> p.group_shift) : 0;
            copy_piece<piece>(to + i * piece, plane + group * bytes + i % kPieces * piece, there);
        }
    }

    __device__ void order_scales() const {
        const bool zeros = !Decode::kPairs && p.w.zero != nullptr;
        Turn turn(1);
        for (int32_t tile = first; tile < last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot);
            order_groups<8 * kPairBytes<kind>, 16>(to + kScales, p.w.scale, tile);
            if (zeros) order_groups<8, 8>(to + kZeros, p.w.zero, tile);
            barrier_arrive_after_copies(full + turn.slot * 8);
        }
    }

    // ---- consumers

    // What a lane adds to a slot to find its codes, scales and zeros.
    struct Places {
        uint32_t codes, scale, zero;
        uint32_t number[2];  // nested: of the rows' group 0

        __device__ explicit Places(const Gemm &g) {
            const uint32_t lane = threadIdx.x & 31, quad = lane >> 2;
            const uint32_t r = (threadIdx.x >> 7) / S::Q * 4 + (threadIdx.x >> 5 & 3);
            codes = S::kX + r * 512 + quad * 64 + (quad >> 1) * 16 + (lane & 3) / 2 * 4;
            const uint32_t at = r * kTiles * 8 + quad;
            scale = kScales + at * kPairBytes<kind>;
            zero = kZeros + at;
            if constexpr (kind == ScaleKind::kNested) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int64_t row = int64_t(g.row_tile + r) * 16 + quad + i * 8;
                    const Geometry &s = g.p.w.geometry;
                    number[i] = uint32_t(min64(row, s.n - 1) * s.groups_per_row);
                }
            }
        }
    };

    // A lane's share of a tile as it is stored.
    struct Raw {
        uint32_t words[4], zero, scale[kind == ScaleKind::kF32 ? 2 : 1];
        float second[kind == ScaleKind::kNested ? 2 : 1];
    };

    // The codes of one step of 16 columns lie in two words of the tile: those of the lane's columns
    // 2 i, 2 i + 1 and 8 + 2 i, 9 + 2 i, halves of either.
    __device__ void read(const Places &at, uint32_t slot_at, int32_t tile, int t, Raw &raw) const {
        const uint32_t stage = slot(slot_at);
        const bool odd = threadIdx.x & 1;
        const uint32_t pick =
            Decode::kPairs ? (odd ? 0x7632u : 0x5410u) : (odd ? 0x7351u : 0x6240u);
        const uint32_t codes = stage + at.codes + t * (S::kCodes / kTiles);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t from = codes ^ j * 16;
            raw.words[j] = __byte_perm(shared_load_4(from), shared_load_4(from + 8), pick);
        }
        if constexpr (!Decode::kPairs) raw.zero = shared_load_1(stage + at.zero + t * 8);
        const uint32_t from = stage + at.scale + t * 8 * kPairBytes<kind>;
        if constexpr (kind == ScaleKind::kF32) {
            const uint2 both = shared_load_8(from);
            raw.scale[0] = both.x;
            raw.scale[1] = both.y;
        } else if constexpr (kind == ScaleKind::kNested) {
            raw.scale[0] = shared_load_2(from);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t number = at.number[i] + ((tile + t) >> p.group_shift);
                raw.second[i] =
                    __ldg(reinterpret_cast<const float *>(p.w.second) + (number >> p.second_shift));
            }
        } else {
            raw.scale[0] = shared_load_4(from);
        }
    }

    // Of rows r and r + 8.
    __device__ void scales(const Raw &raw, float (&scale)[2]) const {
        if constexpr (kind == ScaleKind::kF32) {
            scale[0] = __uint_as_float(raw.scale[0]);
            scale[1] = __uint_as_float(raw.scale[1]);
        } else if constexpr (kind == ScaleKind::kNested) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float code = scale_codes[raw.scale[0] >> 8 * i & 255];
                scale[i] = __fadd_rn(__fmul_rn(code, raw.second[i]), second_bias);
            }
        } else if constexpr (kind == ScaleKind::kBF16) {
            scale[0] = __uint_as_float(raw.scale[0] << 16);
            scale[1] = __uint_as_float(raw.scale[0] & 0xffff0000u);
        } else {
            const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&raw.scale[0]));
            scale[0] = both.x;
            scale[1] = both.y;
        }
    }

    __device__ static uint32_t times(uint32_t a, uint32_t b) {
        using Pair = typename T::Pair;
        const Pair c = __hmul2(*reinterpret_cast<Pair *>(&a), *reinterpret_cast<Pair *>(&b));
        return *reinterpret_cast<const uint32_t *>(&c);
    }

    __device__ void decode(const Raw &raw, uint32_t (&a)[4][4], float (&scale)[2]) const {
        Zeros z = {};
        if constexpr (!Decode::kPairs) z = Decode::zeros(raw.zero);
        scales(raw, scale);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            Decode::decode(raw.words[j], z, table, (threadIdx.x & 31) * 4, a[j]);
        }
        if constexpr (S::kScaled) {
            const uint32_t both[2] = {DecodePairs<T>::pair(scale[0], scale[0]),
                                      DecodePairs<T>::pair(scale[1], scale[1])};
#pragma unroll
            for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = times(a[i / 4][i % 4], both[i & 1]);
        }
    }

    // Warpgroups take turns at the tensor cores: products that share them all end late, and nobody
    // decodes behind the others' products.
    __device__ static void take_turn(int group) {
        if constexpr (S::kOrdered) {
            asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
        }
    }
    __device__ static void pass_turn(int group) {
        if constexpr (S::kOrdered) {
            asm volatile("bar.arrive %0, 256;" ::"r"(2 + (group + 1) % S::kConsumers) : "memory");
        }
    }

    __device__ void multiply(uint32_t slot_at, int t, const uint32_t (&a)[4][4], bool add,
                             bool turn_goes_on, float (&sum)[kAcc]) const {
        const uint64_t x = wgmma_descriptor(slot(slot_at) + t * (S::kX / kTiles));
        const int group = int(threadIdx.x >> 7);
        take_turn(group);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) Wgmma<T, N>::run(sum, a[j], x + 2 * j, add || j > 0);
        wgmma_commit();
        if (turn_goes_on || group + 1 < S::kConsumers) pass_turn(group);
    }

    __device__ void consume(float (&acc)[kAcc]) const {
        static_assert(kTiles % S::Q == 0);
        if (first >= last) return;
        const int q = int(threadIdx.x >> 7) % S::Q;
        const Places at(*this);
        Turn turn(0);
        Raw raw;
        if (int(threadIdx.x >> 7) == S::kConsumers - 1) pass_turn(S::kConsumers - 1);
        barrier_wait(full, 0);
        read(at, 0, first, q, raw);
        for (int32_t tile = first; tile < last; tile += kTiles) {
            const uint32_t here = turn.slot;
            turn.next(p.slots);
#pragma unroll
            for (int t = 0; t < kTiles; t += S::Q) {
                uint32_t a[4][4];
                float scale[2], part[S::kScaled ? 1 : kAcc];
                decode(raw, a, scale);
                const bool goes_on = t + S::Q < kTiles || tile + kTiles < last;
                if constexpr (S::kScaled) {
                    multiply(here, t + q, a, true, goes_on, acc);
                } else {
                    multiply(here, t + q, a, false, goes_on, part);
                }
                if (t + S::Q < kTiles) {
                    read(at, here, tile, t + S::Q + q, raw);
                } else if (tile + kTiles < last) {
                    barrier_wait(full + turn.slot * 8, turn.parity);
                    read(at, turn.slot, tile + kTiles, q, raw);
                }
                wgmma_wait<0>();
                if constexpr (S::kScaled) {
                    keep(acc);
                } else {
                    keep(part);
#pragma unroll
                    for (int i = 0; i < kAcc; ++i) {
                        acc[i] = __fmaf_rn(part[i], scale[i / 2 & 1], acc[i]);
                    }
                }
            }
            if ((threadIdx.x & 31) == 0) barrier_arrive(empty + here * 8);
        }
    }
};

template <class S>
__device__ void prepare_shared(const GemmProblem &p, uint8_t *shared, uint32_t full, uint32_t empty,
                               float *scale_codes) {
    using G = Gemm<S>;
    if (threadIdx.x == 32) {
        prefetch_map(p.codes);
        prefetch_map(p.x);
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.slots; ++i) {
            barrier_init(full + i * 8, 1 + 32);
            barrier_init(empty + i * 8, S::kConsumers * 4);
        }
        barrier_init_fence();
    }
    if constexpr (S::Decode::kPairs) {
        S::Decode::prepare(p.w, shared);
    } else if (p.w.zero == nullptr) {  // every zero is 8
        for (uint32_t i = threadIdx.x; i < p.slots * S::kZero; i += S::kThreads) {
            shared[S::kTable + i / S::kZero * S::kStage + G::kZeros + i % S::kZero] = 0x88;
        }
    }
    if constexpr (S::kind == ScaleKind::kNested) {
        for (int i = int(threadIdx.x); i < 256; i += S::kThreads) {
            scale_codes[i] = load_as<float>(p.w.code, i);
        }
    }
}

// Every thread of the block, or of the cluster.
__device__ inline void meet(const GemmProblem &p) {
    if (p.split == 1) return __syncthreads();
    cluster_sync();
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_middle(const __grid_constant__ GemmProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using G = Gemm<S>;
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[kMaxSlots], empty[kMaxSlots];
    __shared__ float scale_codes[S::kind == ScaleKind::kNested ? 256 : 1];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    const uint32_t rank = p.split == 1 ? 0 : cluster_rank();
    const int64_t stages = ceil_div(p.tiles, S::kTiles);
    allow_next_kernel();
    prepare_shared<S>(p, shared, shared_address(full), shared_address(empty), scale_codes);
    const G g = {p,
                 base + S::kTable,
                 shared_address(full),
                 shared_address(empty),
                 base,
                 scale_codes,
                 S::kind == ScaleKind::kNested ? load_as<float>(p.w.bias, 0) : 0.0f,
                 int32_t(blockIdx.z) * S::kRowTiles,
                 int32_t(blockIdx.y) * S::N,
                 int32_t(stages * rank / p.split) * S::kTiles,
                 int32_t(stages * (rank + 1) / p.split) * S::kTiles};
    __syncthreads();
    const int warp = int(threadIdx.x) >> 5;
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        if (warp == S::kConsumers * 4) {
            wait_for_previous_kernel();  // x may be its y
            if (elect_one()) g.order_boxes();
            __syncwarp();
        } else if (warp == S::kConsumers * 4 + 1) {
            g.order_scales();
        }
        meet(p);
        if (p.split > 1) meet(p);
    } else {
        more_registers<S::kConsumerRegisters>();
        float acc[S::N / 2] = {};
        g.consume(acc);
        asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers * 128) : "memory");  // the ring is free
        const GemmOutput<S> output = {p, g.row_tile, g.x_first};
        output.store_sums(shared + S::kTable, acc);
        meet(p);
        output.store_y(base + S::kTable, rank);
        if (p.split > 1) meet(p);  // nobody leaves while its sums are read
    }
#endif
}

}  // namespace
}  // namespace qk::cuda

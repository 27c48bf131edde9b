// y = x . transpose(w) + bias for 17 rows of x and more, from the packed tiles, on mma.sync: the
// matrix kernel of every GPU from sm_80 on that has no wgmma (gemm/ has it).
//
//   block: 128 rows of w x 64 (32) rows of x, 4 warps of 32 x 64 (32)    k in stages of 64 columns
//
//      codes  8 tiles of 512 B   |         | slot 0 | slot 1 | .. |   <- cp.async, all but one slot
//      x      64 rows of 128 B   | a stage                                                   ahead
//      scales, zeros             |
//
// A word of codes becomes one 16 x 16 operand of w in registers (as in linear/sm80/gemv/gemv.cu),
// for 8 products with x; a lane's 16 columns of a row of x are 2 loads of 16 bytes, whose places
// alternate with the row so that 8 lanes meet 8 different groups of banks: as much as ldmatrix
// reads, in the order of the packed codes. 64 columns are summed from zero and folded
// with the group's scale in f32.
//
// Where there are fewer blocks than multiprocessors, blocks share k (linear/sm80/gemm/plan.hpp);
// their sums meet in the workspace and a second kernel adds them up, always in the same order.
//
// Bytes per output: k / 2 / 64 of codes and 2 k / 128 of x (from L2 as a rule). A 16 x 8 x 16
// product costs a warp 1.1 instructions of decoding, one to fold, a quarter of one to read x. What
// issues the next stage has no branches, so that it can be between the products.
#pragma once
#include "cuda/linear/sm80/gemm/copies.cuh"
#include "cuda/linear/sm80/gemm/shape.cuh"
#include "cuda/prim/shared.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

template <class S>
struct Sm80GemmWork {
    using T = typename S::T;
    using Decode = typename S::Decode;
    using Sums = float[S::kR][S::kB][4];

    const Sm80GemmProblem &p;
    uint8_t *slots;
    const uint32_t *table;
    const float *scale_codes;  // nested
    float scale_bias;
    uint32_t words_at = 0, x_at = 0, scales_at = 0, zeros_at = 0;  // of this lane, in a stage

    __device__ void place() {
        const uint32_t lane = threadIdx.x % 32, tile = threadIdx.x / 32 * S::kR;
        words_at = tile * 512 + lane * 16;
        x_at = S::kXAt + lane / 4 * 128 + (lane % 4 * 2 ^ (lane / 4 & 1)) * 16;
        scales_at = S::kScaleAt + tile * S::kScale + lane / 4 * kPairBytes<S::kind>;
        zeros_at = S::kZeroAt + tile * 8 + lane / 4;
        keep(words_at);
        keep(x_at);
        keep(scales_at);
        keep(zeros_at);
    }

    // Every zero is 8: no copy will change that.
    __device__ void fill_zeros() const {
        for (uint32_t i = threadIdx.x; i < uint32_t(p.slots) * S::kRowTiles; i += S::kThreads) {
            uint8_t *const at = slots + i / S::kRowTiles * S::kStage + S::kZeroAt;
            reinterpret_cast<uint2 *>(at)[i % S::kRowTiles] = {0x88888888u, 0x88888888u};
        }
    }

    __device__ float2 scales(const uint8_t *scale) const {
        if constexpr (S::kind == ScaleKind::kF32) {
            return *reinterpret_cast<const float2 *>(scale);
        } else if constexpr (S::kind == ScaleKind::kNested) {
            const uint32_t quad = threadIdx.x % 32 / 4;
            const float2 second =
                *reinterpret_cast<const float2 *>(scale + 16 + quad * (8 - kPairBytes<S::kind>));
            const uint32_t both = *reinterpret_cast<const uint16_t *>(scale);
            return {nested_scale(scale_codes[both & 255], second.x, scale_bias),
                    nested_scale(scale_codes[both >> 8], second.y, scale_bias)};
        } else {
            return scale_pair_of<S::kind>(*reinterpret_cast<const uint32_t *>(scale));
        }
    }

    // The warp's share of the stage at `at`: two rows of tiles. `issue_more` stands between halves.
    template <class IssueMore>
    __device__ void multiply(const uint8_t *at, Sums &sum, const IssueMore &issue_more) const {
        uint32_t words[S::kR][4];
        Zeros zeros[S::kR];
        float2 scale[S::kR];
#pragma unroll
        for (uint32_t i = 0; i < S::kR; ++i) {
            const uint4 v = *reinterpret_cast<const uint4 *>(at + words_at + i * 512);
            words[i][0] = v.x;
            words[i][1] = v.y;
            words[i][2] = v.z;
            words[i][3] = v.w;
            scale[i] = scales(at + scales_at + i * S::kScale);
            if constexpr (!Decode::kLut4) {
                zeros[i] = Decode::zeros_of(at[zeros_at + i * 8] * 0x01010101u);
            }
        }
        float part[S::kR][S::kB][4] = {};
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint8_t *const x_from = at + (x_at ^ half * 16);
            uint4 x[S::kB];
#pragma unroll
            for (int b = 0; b < S::kB; ++b) {
                x[b] = *reinterpret_cast<const uint4 *>(x_from + b * 1024);
            }
            if (half == 1) issue_more();
#pragma unroll
            for (int i = 0; i < S::kR; ++i) {
                uint32_t a[2][4];
                Decode::decode(words[i][half * 2], zeros[i], table, a[0]);
                Decode::decode(words[i][half * 2 + 1], zeros[i], table, a[1]);
#pragma unroll
                for (int b = 0; b < S::kB; ++b) {
                    mma_16x8x16<T>(part[i][b], a[0], x[b].x, x[b].y);
                }
#pragma unroll
                for (int b = 0; b < S::kB; ++b) {
                    mma_16x8x16<T>(part[i][b], a[1], x[b].z, x[b].w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < S::kR; ++i) {
#pragma unroll
            for (int b = 0; b < S::kB; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum[i][b][j] = __fmaf_rn(part[i][b][j], j / 2 == 0 ? scale[i].x : scale[i].y,
                                             sum[i][b][j]);
                }
            }
        }
    }

    __device__ void run(int32_t row_tile, int64_t x_first, int32_t first, int32_t last,
                        Sums &sum) const {
        Sm80GemmCopies<S> copies(p, row_tile, x_first, first, last);
        Sm80GemmCopies<S> x_copies = copies;
        for (int32_t i = 0; i + 1 < p.slots; ++i, copies.advance()) {
            copies.issue_codes(slots + i * S::kStage);
            copies.issue_scales(slots + i * S::kStage);
        }
        wait_for_previous_kernel();  // x may be its y
        for (int32_t i = 0; i + 1 < p.slots; ++i, x_copies.advance()) {
            x_copies.issue_x(slots + i * S::kStage);
            copies_commit();
        }
        uint32_t here = 0, next = uint32_t(p.slots - 1) * S::kStage;
        const uint32_t ring = uint32_t(p.slots) * S::kStage;
        for (int32_t tile = first; tile < last; ++tile) {
            wait_for_stage(p.slots);
            __syncthreads();  // the stage is there for all, and all have left the slot that is next
            multiply(slots + here, sum, [&] {
                copies.issue_codes(slots + next);
                copies.issue_scales(slots + next);
                copies.issue_x(slots + next);
                copies.advance();
                copies_commit();
            });
            here = here + S::kStage == ring ? 0 : here + S::kStage;
            next = next + S::kStage == ring ? 0 : next + S::kStage;
        }
    }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2)
    multiply_sm80_gemm(const __grid_constant__ Sm80GemmProblem p) {
    QK_LAUNCH_SHARED(shared);
    uint8_t *const base = reinterpret_cast<uint8_t *>(shared);
    allow_next_kernel();
    if constexpr (S::Decode::kLut4) {
        S::Decode::prepare(p.w, reinterpret_cast<uint32_t *>(base), false);
    }
    float *const scale_codes = reinterpret_cast<float *>(base + S::kTable);
    if constexpr (S::kNested) {
        for (uint32_t i = threadIdx.x; i < 256; i += S::kThreads) {
            scale_codes[i] = reinterpret_cast<const float *>(p.w.code)[i];
        }
    }
    Sm80GemmWork<S> product = {p, base + S::kRing, reinterpret_cast<const uint32_t *>(base),
                               scale_codes, S::kNested ? load_as<float>(p.w.bias, 0) : 0.0f};
    product.place();
    if (!S::Decode::kLut4 && p.w.zero == nullptr) product.fill_zeros();
    const int32_t row_tile = int32_t(blockIdx.x / uint32_t(p.x_blocks)) * S::kRowTiles;
    const int64_t x_first = int64_t(blockIdx.x % uint32_t(p.x_blocks)) * S::kX;
    const int32_t first = int32_t(int64_t(p.tiles) * blockIdx.y / p.split);
    const int32_t last = int32_t(int64_t(p.tiles) * (blockIdx.y + 1) / p.split);
    typename Sm80GemmWork<S>::Sums sum = {};
    product.run(row_tile, x_first, first, last, sum);
    __syncthreads();  // the ring is free
    const Sm80GemmOutput<S> output = {p, reinterpret_cast<float *>(shared), row_tile, x_first};
    output.store_sums(sum);
    __syncthreads();
    output.store();
}

// As many stages as leave room for two blocks on a multiprocessor, which has 1 KiB more for each
// than a block can ask for; else as many as one block can have. Less than 2: there is no room.
template <class S>
int32_t sm80_gemm_slots(int32_t shared) {
    constexpr int32_t kMostSlots = 4, kReserved = 1024;
    int32_t slots = kMostSlots;
    while (slots > 2 && int32_t(S::shared_bytes(slots)) * 2 + kReserved > shared) --slots;
    if (int32_t(S::shared_bytes(slots)) * 2 + kReserved <= shared) return slots;
    for (slots = kMostSlots; slots >= 2 && int32_t(S::shared_bytes(slots)) > shared;) --slots;
    return slots;
}

template <class S>
Status run_shape(const Launch &launch, Sm80GemmProblem *p) {
    p->slots = sm80_gemm_slots<S>(launch.device.shared_bytes);
    const int64_t row_blocks = ceil_div(p->row_tiles, S::kRowTiles);
    Shape3 shape = {dim3(uint32_t(row_blocks * p->x_blocks), uint32_t(p->split)), S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->slots);
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", multiply_sm80_gemm<S>, shape, *p);
}

}  // namespace

template <Codes codes, qk_format x>
Status Sm80Gemm<codes, x>::run(const Launch &launch, Sm80GemmProblem *p) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, U4<T>, Lut4<T>>;
    return with_scale_kind(p->w.scale_format, [&](auto kind) {
        return p->m <= 32 ? run_shape<Sm80GemmShape<T, Decode, kind.value, 4>>(launch, p)
                          : run_shape<Sm80GemmShape<T, Decode, kind.value, 8>>(launch, p);
    });
}

}  // namespace qk::cuda

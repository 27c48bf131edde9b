// y = x . transpose(w) + bias for 65 rows of x and more, from the packed tiles, on mma.sync: the
// matrix kernel of every GPU from sm_80 on that has no wgmma (gemm/ has it), where cuBLASLt is not
// there.
//
//   block: 64 (32) rows of w x 64 rows of x, 4 warps of 32 (16) x 32      k in steps of 64 columns
//
//      codes 4 (2) tiles of 512 B |            | slot 0 | slot 1 | .. | slot 5 |  <- cp.async, five
//      x     64 rows of 128 B     |  a step ->                                       steps ahead
//
// A word of codes becomes one 16 x 16 operand of w in registers (as in decode/matvec.cu), for 4
// products with x; a lane's 16 columns of a row of x are 2 loads of 16 bytes, whose places
// alternate with the row so that 8 lanes meet 8 different banks. A step is summed from zero and
// folded with the group's scale in f32. k is not cut: a row of y depends on k and the groups alone.
//
// Bytes per output: k / 2 / 64 of codes and 2 k / 64 of x (from L2 as a rule).
#pragma once
#include <string.h>

#include "cuda/direct/operands.cuh"

namespace qk::cuda {
namespace {

constexpr int kXBlock = 64, kSlots = 6, kStepColumns = 64;
constexpr int32_t kThreads = 128;
constexpr int kXTiles = 4;  // of 8 rows of x, of a warp
constexpr uint32_t kTileBytes = 512, kXBytes = kXBlock * kStepColumns * 2;

struct Problem : LinearView {
    int32_t row_tiles, steps;
    int32_t group_shift;   // log2 of the steps a group
    int32_t second_shift;  // nested: log2 of second_group
};

// 16 bytes, or zeros, that arrive by themselves.
__device__ inline void copy_16_or_zeros(void *to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = uint32_t(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#elif defined(QK_CUDA_SIMULATED)
    if (there) memcpy(to, from, 16);
    if (!there) memset(to, 0, 16);
#endif
}

__device__ inline void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until the copies of all steps but the newest are in.
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kSlots - 2) : "memory");
#endif
}

template <class T, class Decode, int kRowTiles>
struct Middle {
    static constexpr int kBlockTiles = 2 * kRowTiles;  // of 16 rows
    static constexpr uint32_t kCodeBytes = kBlockTiles * kTileBytes;
    static constexpr uint32_t kSlotBytes = kCodeBytes + kXBytes;
    static constexpr size_t kTable = Decode::kPairs ? kTableWords * 4 : 0;
    static constexpr size_t kShared = kTable + kSlots * kSlotBytes;

    const Problem &p;
    uint8_t *slots;
    const uint32_t *table;
    int64_t first_tile, x_first;
    int warp_row, warp_x;        // of the warp: its first tile and row of x in the block
    float scale_bias;            // nested
    float sum[kRowTiles][kXTiles][4] = {};

    // Scales and zeros of rows r and r + 8 of the lane, as they are stored: whatever is done with
    // them here would wait for them.
    struct Group {
        uint2 scale[kRowTiles];
        uint32_t zero[kRowTiles];
    };

    __device__ void order(int32_t step) const {
        if (step < p.steps) {
            uint8_t *const slot = slots + step % kSlots * kSlotBytes;
            for (uint32_t at = threadIdx.x * 16; at < kCodeBytes; at += kThreads * 16) {
                const int64_t tile = first_tile + at / kTileBytes;
                const bool there = tile < p.row_tiles;
                const int64_t from = ((there ? tile : 0) * p.steps + step) * kTileBytes;
                copy_16_or_zeros(slot + at, p.w.data + from + at % kTileBytes, there);
            }
            const int64_t k = p.w.geometry.k;
            for (uint32_t i = threadIdx.x; i < kXBytes / 16; i += kThreads) {
                const uint32_t row = i / 8, chunk = i % 8;
                const int64_t column = int64_t(step) * kStepColumns + chunk * 8;
                const bool there = x_first + row < p.m && column < k;
                const int64_t from = there ? (x_first + row) * k + column : 0;
                copy_16_or_zeros(slot + kCodeBytes + row * 128 + (chunk ^ (row & 1)) * 16,
                                 static_cast<const uint8_t *>(p.x) + from * 2, there);
            }
        }
        end_of_copies();
    }

    __device__ int64_t tile_of(int i) const { return first_tile + warp_row + i; }

    __device__ Group load_group(int32_t step) const {
        Group g = {};
        const int64_t group = step >> p.group_shift;
        const int quad = int(threadIdx.x) % 32 / 4;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
            const int64_t tile = min64(tile_of(i), p.row_tiles - 1);
            const int64_t at = (tile * p.w.geometry.groups_per_row + group) * 16 + quad * 2;
            g.zero[i] = 0x88;
            if (p.w.zero != nullptr) g.zero[i] = p.w.zero[at / 2];
            if (p.w.scale_format == QK_FORMAT_F32) {
                g.scale[i] = reinterpret_cast<const uint2 *>(p.w.scale)[at / 2];
            } else if (p.w.scale_format == QK_FORMAT_LUT8) {
                g.scale[i].x = reinterpret_cast<const uint16_t *>(p.w.scale)[at / 2];
            } else {
                g.scale[i].x = reinterpret_cast<const uint32_t *>(p.w.scale)[at / 2];
            }
        }
        return g;
    }
    __device__ float scale_of_row(const Group &g, int32_t step, int i, int high) const {
        const uint32_t both = g.scale[i].x, half = both >> 16 * high & 0xffffu;
        switch (p.w.scale_format) {
            case QK_FORMAT_F32:
                return __uint_as_float(high == 0 ? both : g.scale[i].y);
            case QK_FORMAT_F16:
                return __half2float(__ushort_as_half(uint16_t(half)));
            case QK_FORMAT_BF16:
                return __uint_as_float(half << 16);
            default: {  // two fp32 roundings, as bitsandbytes computes it
                const int64_t row = tile_of(i) * 16 + int(threadIdx.x) % 32 / 4 + high * 8;
                const int64_t number = min64(row, p.w.geometry.n - 1) *
                                           p.w.geometry.groups_per_row +
                                       (step >> p.group_shift);
                const float code = reinterpret_cast<const float *>(
                    p.w.code)[both >> 8 * high & 255];
                const float second =
                    reinterpret_cast<const float *>(p.w.second)[number >> p.second_shift];
                return __fadd_rn(__fmul_rn(code, second), scale_bias);
            }
        }
    }

    __device__ void decode(uint32_t word, const uint32_t (&zeros)[2], uint32_t (&a)[4]) const {
        if constexpr (Decode::kPairs) {
            Decode::look_up(word, table, a);
        } else {
            Decode::raw(word, a);
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = Decode::subtract(a[i], zeros[i % 2]);
        }
    }

    __device__ void multiply(int32_t step, const Group &g) {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4;
        const uint8_t *const slot = slots + step % kSlots * kSlotBytes;
        uint32_t words[kRowTiles][4], zeros[kRowTiles][2];
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
            const uint4 v = reinterpret_cast<const uint4 *>(slot)[(warp_row + i) * 32 + lane];
            words[i][0] = v.x;
            words[i][1] = v.y;
            words[i][2] = v.z;
            words[i][3] = v.w;
            if constexpr (!Decode::kPairs) {
                uint32_t raw[4];
                Decode::raw(g.zero[i] * 0x01010101u, raw);
                zeros[i][0] = raw[0];
                zeros[i][1] = raw[1];
            }
        }
        float part[kRowTiles][kXTiles][4] = {};
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            uint4 x[kXTiles];
#pragma unroll
            for (uint32_t b = 0; b < kXTiles; ++b) {
                const uint32_t row = uint32_t(warp_x) + b * 8 + lane / 4;
                const uint32_t chunk = (t * 2 + half) ^ (row & 1);
                x[b] = *reinterpret_cast<const uint4 *>(slot + kCodeBytes + row * 128 + chunk * 16);
            }
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
                uint32_t a[2][4];
                decode(words[i][half * 2], zeros[i], a[0]);
                decode(words[i][half * 2 + 1], zeros[i], a[1]);
#pragma unroll
                for (int b = 0; b < kXTiles; ++b) {
                    mma_16x8x16<T>(part[i][b], a[0], x[b].x, x[b].y);
                    mma_16x8x16<T>(part[i][b], a[1], x[b].z, x[b].w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
            const float scale[2] = {scale_of_row(g, step, i, 0), scale_of_row(g, step, i, 1)};
#pragma unroll
            for (int b = 0; b < kXTiles; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum[i][b][j] = __fmaf_rn(part[i][b][j], scale[j / 2], sum[i][b][j]);
                }
            }
        }
    }

    __device__ void store() const {
        const int lane = int(threadIdx.x) & 31;
        const int64_t n = p.w.geometry.n;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int b = 0; b < kXTiles; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int64_t row = tile_of(i) * 16 + lane / 4 + j / 2 * 8;
                    const int64_t x_row = x_first + warp_x + b * 8 + lane % 4 * 2 + j % 2;
                    if (row >= n || x_row >= p.m) continue;
                    float y = sum[i][b][j];
                    if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row));
                    store_float(p.type, p.y, x_row * n + row, y);
                }
            }
        }
    }
};

template <class T, class Decode, int kRowTiles>
__global__ void __launch_bounds__(kThreads) multiply_middle(const __grid_constant__ Problem p) {
    using M = Middle<T, Decode, kRowTiles>;
#if defined(QK_CUDA_SIMULATED)
    __shared__ uint4 shared[M::kShared / 16];
#else
    extern __shared__ uint4 shared[];
#endif
    uint32_t *const table = reinterpret_cast<uint32_t *>(shared);
    uint8_t *const slots = reinterpret_cast<uint8_t *>(shared) + M::kTable;
    const int warp = int(threadIdx.x) / 32;
    allow_next_kernel();
    if constexpr (Decode::kPairs) Decode::prepare(p.w, table, false);
    wait_for_previous_kernel();  // x may be its y
    M product = {p,
                 slots,
                 table,
                 int64_t(blockIdx.x) * M::kBlockTiles,
                 int64_t(blockIdx.y) * kXBlock,
                 warp % 2 * kRowTiles,
                 warp / 2 * (kXTiles * 8),
                 p.w.scale_format == QK_FORMAT_LUT8 ? load_as<float>(p.w.bias, 0) : 0.0f};
    for (int32_t step = 0; step < kSlots - 1; ++step) product.order(step);
    typename M::Group next = product.load_group(0);
    for (int32_t step = 0; step < p.steps; ++step) {
        const typename M::Group now = next;
        if (step + 1 < p.steps) next = product.load_group(step + 1);
        wait_for_copies();
        __syncthreads();  // this step is there for all, and all have left the slot that is next
        product.order(step + kSlots - 1);
        product.multiply(step, now);
    }
    product.store();
}

}  // namespace
}  // namespace qk::cuda

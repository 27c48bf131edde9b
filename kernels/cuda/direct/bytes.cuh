// y = x . transpose(w) + bias for 8-bit codes that lie row after row, for 1 to 16 rows of x (more
// in passes), on tensor cores.
//
// A block has a run of tiles of 16 rows of w, a warp some slices of k (128 columns each) of them:
//
//     tile of 16 rows     | slice 0 | slice 1 | ... | slice 15 | slice 16 | ...
//     4 tiles, a panel       warp 0    warp 1          warp 15    warp 0
//
// A unit (16 rows x 128 columns, 2 KiB) comes through the warp's own ring in shared memory by
// copies of 16 bytes a lane: no warp waits for another before the sums of a panel meet. A slice of
// x stays in registers while the tiles of a panel pass by; it comes from the L2, once a panel.
//
//     ldmatrix hands lane 4 g + t the codes of columns 4 t .. 4 t + 3 of 16, rows g and g + 8; x
//     follows (8 bytes a lane), since the order of columns inside a product is free
//
// So four codes are one operand register pair: 5 instructions for f16, 8 for bf16, nothing is
// rounded, and scales multiply sums in f32. A unit takes 130 instructions, where the memory of an
// H200 waits for 400. Bytes per row of w: k of codes plus scales, read once.
//
// Nothing is read before the kernel ahead has finished: the weight may be its work.
#pragma once
#include "cuda/direct/bytes_parts.cuh"

namespace qk::cuda {
namespace {

template <class T, class Decode, int kBatches, bool kFine>
struct BytesWarp {
    using Map = BytesMap<kBatches, kFine>;
    // Scales that a lane brings in for a slice.
    static constexpr int kOwn = int(Map::kWarpScales / 32);
    struct Scale {
        uint32_t raw;
        float second;
    };

    const BytesProblem &p;
    const Run block;
    uint8_t *const shared;
    uint32_t lane, warp, ring, slot = 0;
    int32_t part, row_part, k;
    uint32_t copy_to, read_at;  // in a unit: this lane's
    BytesPlace ahead;           // the next unit to be ordered
    float scale_bias = 0;
    float sum[kBytesTiles][kBatches][4];

    __device__ BytesWarp(const BytesProblem &problem, Run tiles, uint8_t *room)
        : p(problem), block(tiles), shared(room) {
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        ring = shared_address(shared) + warp * (Map::kDepth * kByteUnit);
        part = int32_t(warp) & (p.plan.parts() - 1);
        row_part = int32_t(warp) >> p.plan.part_shift;
        k = int32_t(p.w.geometry.k);
        const uint32_t row = lane / 8;  // 16 bytes of rows `row`, `row` + 4, ...
        copy_to = row * 128 + ((lane % 8) ^ row) * 16;
        const uint32_t of = lane % 16;
        read_at = of * 128 + ((lane / 16) ^ (of % 8)) * 16;
        ahead = {0, part, 0, 0, 0};
        ahead.enter(p.plan, block, row_part);
    }

    // Orders the next unit into the current slot; beyond the last one nothing.
    __device__ void order() {
        if (ahead.tiles > 0) {
            const int32_t column = ahead.slice * kBytesColumns + int32_t(lane % 8) * 16;
            const bool there = column < k;
            const uint32_t row = uint32_t(ahead.first + ahead.tile) * 16 + lane / 8;
            const auto last = uint32_t(p.w.geometry.n - 1);
            const uint8_t *const from = p.w.data + (there ? column : 0);
            const uint32_t to = ring + slot * kByteUnit + copy_to;
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                const uint64_t at = uint64_t(min(row + i * 4, last)) * uint32_t(k);
                copy_16_or_zeros((to ^ (i % 2 * 64)) + i * 512, from + at, there);
            }
            advance();
        }
        copies_commit();
    }
    __device__ void advance() {
        if (++ahead.tile < ahead.tiles) return;
        ahead.tile = 0;
        ahead.slice += p.plan.parts();
        if (ahead.slice < p.plan.slices) return;
        ahead.slice = part;
        ++ahead.panel;
        ahead.enter(p.plan, block, row_part);
    }

    // The lane's i-th scale of a slice: of row e, or of row e / 8 and part e mod 8 of the slice.
    __device__ Scale load_scale(int32_t first_tile, uint32_t group, int i) const {
        const uint32_t e = lane + uint32_t(i) * 32;
        const uint32_t row = min(uint32_t(first_tile) * 16 + e / Map::kFolds,
                                 uint32_t(p.w.geometry.n - 1));
        const uint64_t at = uint64_t(row) * uint32_t(p.w.geometry.groups_per_row) + group;
        switch (p.w.scale_format) {
            case QK_FORMAT_F32:
                return {__ldg(reinterpret_cast<const uint32_t *>(p.w.scale) + at), 0};
            case QK_FORMAT_LUT8:
                return {
                    __ldg(p.w.scale + at),
                    __ldg(reinterpret_cast<const float *>(p.w.second) + (at >> p.second_shift))};
            default:
                return {__ldg(reinterpret_cast<const uint16_t *>(p.w.scale) + at), 0};
        }
    }
    // Nested: two fp32 roundings, as bitsandbytes computes it.
    __device__ float scale_value(const Scale &s) const {
        switch (p.w.scale_format) {
            case QK_FORMAT_F32:
                return __uint_as_float(s.raw);
            case QK_FORMAT_F16:
                return __half2float(__ushort_as_half(uint16_t(s.raw)));
            case QK_FORMAT_BF16:
                return __uint_as_float(s.raw << 16);
            default: {
                const auto *const codes =
                    reinterpret_cast<const float *>(shared + Map::kScaleCodes);
                return __fadd_rn(__fmul_rn(codes[s.raw], s.second), scale_bias);
            }
        }
    }
    // The group of what the lane brings in for a slice.
    __device__ uint32_t group_of(int32_t slice) const {
        const int32_t column = slice * kBytesColumns + int32_t(lane % Map::kFolds) * 16;
        return uint32_t(min(column, k - 1)) / p.group;
    }
    __device__ void load_scales(const BytesPlace &at, Scale (&own)[kOwn]) const {
        const uint32_t group = group_of(at.slice);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) own[i] = load_scale(at.first, group, i);
    }
    __device__ float *scales() const {
        return reinterpret_cast<float *>(shared + Map::kScales) + warp * Map::kWarpScales;
    }
    __device__ void keep_scales(const Scale (&own)[kOwn]) const {
        __syncwarp();  // the last slice's have been read
#pragma unroll
        for (int i = 0; i < kOwn; ++i) scales()[lane + uint32_t(i) * 32] = scale_value(own[i]);
        __syncwarp();
    }

    __device__ void fold(float (&to)[kBatches][4], const float (&d)[kBatches][4], int tile,
                         uint32_t fold) const {
        const float *const at = scales() + (uint32_t(tile) * 16 + lane / 4) * Map::kFolds + fold;
        const float low = at[0], high = at[8 * Map::kFolds];
#pragma unroll
        for (int i = 0; i < kBatches * 4; ++i) {
            float &sum = to[i / 4][i % 4];
            sum = __fmaf_rn(d[i / 4][i % 4], i % 4 < 2 ? low : high, sum);
        }
    }

    // The unit in the slot, with x for its columns; the slot is filled again meanwhile. steps: of
    // 16 columns, to the end of k.
    __device__ void multiply_unit(int tile, const uint2 (&x)[kBatches][kByteSteps],
                                  int32_t steps) {
        copies_wait_but<Map::kDepth - 1>();
        __syncwarp();
        const uint32_t at = ring + slot * kByteUnit + read_at;
        uint4 q[kByteSteps / 2];
#pragma unroll
        for (uint32_t i = 0; i < kByteSteps / 2; ++i) q[i] = shared_load_matrices(at ^ i * 32);
        __syncwarp();
        order();
        slot = slot + 1 < Map::kDepth ? slot + 1 : 0;
        float d[kBatches][4] = {};
#pragma unroll
        for (int s = 0; s < kByteSteps; ++s) {
            if (kFine && s >= steps) break;
            const uint32_t upper = s % 2 == 0 ? q[s / 2].x : q[s / 2].z;
            const uint32_t lower = s % 2 == 0 ? q[s / 2].y : q[s / 2].w;
            uint32_t a[4];
            Decode::decode(upper, a[0], a[2]);
            Decode::decode(lower, a[1], a[3]);
#pragma unroll
            for (int b = 0; b < kBatches; ++b) {
                mma_16x8x16<T>(d[b], a, x[b][s].x, x[b][s].y);
            }
            if constexpr (kFine) {
                fold(sum[tile], d, tile, uint32_t(s));
#pragma unroll
                for (int i = 0; i < kBatches * 4; ++i) d[i / 4][i % 4] = 0;
            }
        }
        if constexpr (!kFine) fold(sum[tile], d, tile, 0);
    }

    __device__ void keep_sums(int32_t tiles) const {
        auto *const to = reinterpret_cast<float *>(shared + Map::kSums) + warp * Map::kWarpSums;
#pragma unroll
        for (int i = 0; i < kBytesTiles; ++i) {
            if (i >= tiles) continue;
#pragma unroll
            for (int j = 0; j < kBatches * 2; ++j) {
                const uint32_t row = lane / 4 + uint32_t(j % 2) * 8;
                const uint32_t at = Map::place(row, uint32_t(j / 2) * 8 + lane % 4 * 2);
                *reinterpret_cast<float2 *>(to + uint32_t(i) * 16 * Map::kColumns + at) = {
                    sum[i][j / 2][j % 2 * 2], sum[i][j / 2][j % 2 * 2 + 1]};
            }
        }
    }

    // Returns with the sums of the panel's tiles.
    __device__ void add_panel(const BytesX<T, kBatches> &rows, BytesPlace at,
                              uint2 (&next)[kBatches][kByteSteps], Scale (&own)[kOwn]) {
        // Registers have room for x of one slice more where there is one batch.
        constexpr bool kAhead = kBatches == 1;
#pragma unroll
        for (int i = 0; i < kBytesTiles * kBatches * 4; ++i) {
            sum[i / (kBatches * 4)][i / 4 % kBatches][i % 4] = 0;
        }
#pragma unroll 1
        while (at.slice < p.plan.slices) {
            const int32_t column = at.slice * kBytesColumns;
            uint2 x[kBatches][kByteSteps];
            if constexpr (kAhead) {
#pragma unroll
                for (int s = 0; s < kByteSteps; ++s) x[0][s] = next[0][s];
            } else {
                rows.load(column, k, x);
            }
            keep_scales(own);
            at.slice += p.plan.parts();
            BytesPlace then = at;  // of the slice after this one, in the next panel or here
            if (then.slice >= p.plan.slices) {
                then.slice = part;
                ++then.panel;
                then.enter(p.plan, block, row_part);
            }
            if constexpr (kAhead) rows.load(then.slice * kBytesColumns, k, next);
            load_scales(then, own);
#pragma unroll
            for (int i = 0; i < kBytesTiles; ++i) {
                if (i < at.tiles) multiply_unit(i, x, (k - column) / 16);
            }
        }
    }
};

template <class T, class Decode, int kBatches, bool kFine>
__global__ void __launch_bounds__(kBytesThreads, 1)
    multiply_bytes(const __grid_constant__ BytesProblem p) {
    using Warp = BytesWarp<T, Decode, kBatches, kFine>;
    using Map = typename Warp::Map;
    extern __shared__ uint4 room[];
    allow_next_kernel();
    uint8_t *const shared = reinterpret_cast<uint8_t *>(room);
    const Run block = p.plan.tiles.part(int32_t(blockIdx.x));
    const int64_t x_first = int64_t(blockIdx.y) * (8 * kBatches);
    Warp work(p, block, shared);
    const BytesX<T, kBatches> rows(p, x_first);
    wait_for_previous_kernel();
    BytesPlace at = work.ahead;
    uint2 x[kBatches][kByteSteps];
    typename Warp::Scale own[Warp::kOwn];
    if constexpr (kBatches == 1) rows.load(at.slice * kBytesColumns, work.k, x);
    work.load_scales(at, own);
#pragma unroll 1
    for (uint32_t i = 0; i < Map::kDepth; ++i) {
        work.slot = i;
        work.order();
    }
    work.slot = 0;
    if (p.w.scale_format == QK_FORMAT_LUT8) {
        auto *const codes = reinterpret_cast<float *>(shared + Map::kScaleCodes);
        if (threadIdx.x < 256) {
            codes[threadIdx.x] = __ldg(reinterpret_cast<const float *>(p.w.code) + threadIdx.x);
        }
        work.scale_bias = __ldg(reinterpret_cast<const float *>(p.w.bias));
        __syncthreads();
    }
    auto *const sums = reinterpret_cast<float *>(shared + Map::kSums);
#pragma unroll 1
    for (at.panel = 0; at.panel < p.plan.panels; ++at.panel) {
        at.slice = work.part;
        at.enter(p.plan, block, work.row_part);
        work.add_panel(rows, at, x, own);
        if (at.panel > 0) __syncthreads();  // the last panel's sums have been read
        work.keep_sums(at.tiles);
        __syncthreads();
        store_panel<T, kBatches, Map>(p, sums, block, at.panel, x_first);
    }
}

}  // namespace
}  // namespace qk::cuda

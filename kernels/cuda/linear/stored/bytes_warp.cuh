// A warp's part of the kernel for 8-bit codes (linear/stored/bytes.cu): its ring, x, scales and
// sums.
#pragma once
#include "cuda/linear/stored/bytes_parts.cuh"

namespace qk::cuda {
namespace {

template <class T, class Decode, int kBatches, bool kFine>
struct BytesWarp {
    static constexpr int kTerms = Decode::kTerms;
    static constexpr bool kTable = kTerms > 1;
    using Map = BytesMap<kBatches, kFine, kTable>;
    // For entries of a table x is there twice; for 16 rows, only once it is needed.
    static constexpr bool kTwice = kTable && kBatches == 1;
    using X = uint32_t[kBatches][kByteSteps][kTwice ? 4 : 2];
    // Scales that a lane loads for a slice; and that it does at once, ahead if they are all.
    static constexpr int kScales = int(Map::kSliceScales / 128), kOwn = kFine ? 4 : kScales;
    static constexpr int kGang = int(Map::kGang);
    // Scales are asked for together with the first codes, and come later than these.
    static constexpr bool kScalesLate = !kFine && kBatches == 1;
    struct Scale {
        uint32_t raw;
        float second;
    };

    const BytesProblem &p;
    const Run block;
    uint32_t lane, lanes, ring, barriers, x, scales;
    uint32_t slot = 0, parity = 0, x_parity = 0;
    int32_t part, row_part;
    uint32_t read_at, x_at;          // in a unit, in a box of x: this lane's
    BytesPlace ahead;                // the next unit to be issued
    BytesPlace scales_ahead;         // the next slice whose scales are not under way
    uint32_t gang = 0;               // of the slice, among those whose scales came together
    float scale_bias = 0, unit = 1;  // unit: of a table's terms
    uint32_t finite = 0;             // a table's: four codes of a number
    float sum[kBytesTiles][kBatches][4];

    __device__ BytesWarp(const BytesProblem &problem, Run tiles) : p(problem), block(tiles) {
        const uint32_t warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        lanes = lane * 0x04040404u;
        ring = Map::kRing + warp * (Map::kDepth * kByteUnit);
        barriers = Map::kBarriers + warp * Map::kWarpBarriers;
        x = Map::kX + warp * Map::kWarpX;
        scales = Map::kScales + warp * (Map::kGang * Map::kSliceScales);
        part = int32_t(warp) & (p.plan.parts() - 1);
        row_part = int32_t(warp) >> p.plan.part_shift;
        // The copy engine swaps the 16-byte pieces of every 128 bytes by the number of the line.
        const uint32_t row = lane % 16, x_row = lane / 4, half = lane % 4 / 2;
        read_at = row * 128 + (lane / 16 ^ row % 8) * 16;
        x_at = x + x_row * 128 + (half ^ x_row) * 16 + lane % 2 * 8;
        ahead = {0, part, 0, 0, 0};
        ahead.enter(p.plan, block, row_part);
        scales_ahead = ahead;
    }

    __device__ void init_barriers() const {
        if (elect_one()) {
#pragma unroll
            for (uint32_t i = 0; i <= Map::kDepth; ++i) barrier_init(barriers + i * 8, 1);
            barrier_init_fence();
        }
        __syncwarp();
    }

    // Issues the next unit into the current slot; beyond the last one nothing. `read`: the last
    // word that was loaded from the slot. The copy engine needs no memory to write the zeros of
    // what is outside of w: it would overtake loads that are still in flight.
    __device__ void issue(uint32_t read) {
        if (ahead.tiles <= 0) return;
        if (elect_one()) {
            const uint32_t full = barriers + slot * 8;
            barrier_expect(full, kByteUnit);
            tensor_copy(ring + slot * kByteUnit + zero_after(read), p.codes,
                        ahead.slice * kBytesColumns, (ahead.first + ahead.tile) * 16, full);
        }
        __syncwarp();
        if (++ahead.tile < ahead.tiles) return;
        ahead.tile = 0;
        ahead.next_slice(p.plan, block, part, row_part);
    }
    // Waits for what was issued before the first unit was multiplied.
    __device__ void drain() const {
        barrier_wait(barriers + Map::kDepth * 8, 0);
        BytesPlace at = {0, part, 0, 0, 0};
        at.enter(p.plan, block, row_part);
        for (uint32_t i = 0; i < Map::kDepth && at.tiles > 0; ++i) {
            barrier_wait(barriers + i * 8, 0);
            if (++at.tile < at.tiles) continue;
            at.tile = 0;
            at.next_slice(p.plan, block, part, row_part);
        }
    }
    __device__ void next_slot() {
        if (++slot < Map::kDepth) return;
        slot = 0;
        parity ^= 1;
    }

    __device__ void issue_x(int32_t slice, int32_t first, uint32_t read) const {
        if (elect_one()) {
            const uint32_t full = barriers + Map::kDepth * 8;
            barrier_expect(full, p.x_rows * 256);
            tensor_copy(x + zero_after(read), p.x, slice * kBytesColumns, first, full);
            tensor_copy(x + Map::kXBox, p.x, slice * kBytesColumns + 64, first, full);
        }
        __syncwarp();
    }
    static __device__ uint32_t twice(uint32_t pair, int which) {
        return byte_permute(pair, 0, which == 0 ? 0x1010u : 0x3232u);
    }
    __device__ void take_x(X &b) {
        barrier_wait(barriers + Map::kDepth * 8, x_parity);
        x_parity ^= 1;
#pragma unroll
        for (int j = 0; j < kBatches; ++j) {
#pragma unroll
            for (uint32_t s = 0; s < kByteSteps; ++s) {
                const uint2 four =
                    shared_load_8((x_at ^ s % 4 * 32) + s / 4 * Map::kXBox + uint32_t(j) * 1024);
                const uint32_t pairs[2] = {four.x, four.y};
#pragma unroll
                for (int i = 0; i < int(sizeof(b[j][s]) / 4); ++i) {
                    b[j][s][i] = kTwice ? twice(pairs[i / 2], i % 2) : pairs[i];
                }
            }
        }
        __syncwarp();
    }

    // Of the lane's i-th scale of a slice: of row e, or of row e / 8 and part e mod 8 of the slice.
    __device__ Scale load_scale(int32_t first_tile, uint32_t group, int i) const {
        const WeightView &w = p.o.w;
        const uint32_t e = lane + uint32_t(i) * 32;
        const uint32_t row =
            min(uint32_t(first_tile) * 16 + e / Map::kFolds, uint32_t(w.geometry.n - 1));
        const uint64_t at = uint64_t(row) * uint32_t(w.geometry.groups_per_row) + group;
        switch (w.scale_format) {
            case QK_FORMAT_F32: return {__ldg(reinterpret_cast<const uint32_t *>(w.scale) + at), 0};
            case QK_FORMAT_LUT8:
                return {__ldg(w.scale + at),
                        __ldg(reinterpret_cast<const float *>(w.second) + (at >> p.second_shift))};
            default: return {__ldg(reinterpret_cast<const uint16_t *>(w.scale) + at), 0};
        }
    }
    __device__ float scale_value(const Scale &s) const {
        switch (p.o.w.scale_format) {
            case QK_FORMAT_F32: return __uint_as_float(s.raw);
            case QK_FORMAT_F16: return __half2float(__ushort_as_half(uint16_t(s.raw)));
            case QK_FORMAT_BF16: return __uint_as_float(s.raw << 16);
            default: {
                const uint32_t code = shared_load_4(Map::kScaleCodes + s.raw * 4);
                return nested_scale(__uint_as_float(code), s.second, scale_bias);
            }
        }
    }
    __device__ void load_scales(const BytesPlace &at, int first, Scale (&own)[kOwn]) const {
        auto group = uint32_t(at.slice);
        if constexpr (kFine) {
            const auto last = uint32_t(p.o.w.geometry.k / 16) - 1;
            group = min(group * kByteSteps + lane % kByteSteps, last);
        }
        if (p.scale_groups != 1) group = __umulhi(group, p.scale_groups);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            own[i] = {0, 0};
            if (kScalesLate && i * 32 >= at.tiles * 16) continue;
            own[i] = load_scale(at.first, group, first + i);
        }
    }
    // Those of the next slices.
    __device__ void load_gang(Scale (&own)[kGang][kOwn]) {
#pragma unroll
        for (int j = 0; j < kGang; ++j) {
            load_scales(scales_ahead, 0, own[j]);
            scales_ahead.next_slice(p.plan, block, part, row_part);
        }
    }
    // Scales to where all lanes read them. `own`: loaded before, but for kFine.
    __device__ void keep_scales(const BytesPlace &at, Scale (&own)[kGang][kOwn]) {
        __syncwarp();  // the last ones have been read
#pragma unroll
        for (int j = 0; j < kGang; ++j) {
#pragma unroll 1
            for (int first = 0; first < kScales; first += kOwn) {
                if constexpr (kFine) load_scales(at, first, own[j]);
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    shared_store_4(scales + uint32_t(j) * Map::kSliceScales + lane * 4 +
                                       uint32_t(first + i) * 128,
                                   __float_as_uint(scale_value(own[j][i])));
                }
            }
        }
        __syncwarp();
        if constexpr (!kFine) load_gang(own);
    }

    __device__ void fold(float (&to)[kBatches][4], const float (&d)[kBatches][4], int tile,
                         uint32_t fold) const {
        const uint32_t at = scales + gang * Map::kSliceScales + lane / 4 * (Map::kFolds * 4) +
                            (uint32_t(tile) * 16 * Map::kFolds + fold) * 4;
        const float low = __uint_as_float(shared_load_4(at));
        const float high = __uint_as_float(shared_load_4(at + 8 * Map::kFolds * 4));
#pragma unroll
        for (int i = 0; i < kBatches * 4; ++i) {
            float &sum = to[i / 4][i % 4], of = d[i / 4][i % 4];
            if (kTable && std::is_same_v<T, F16>) of = __fmul_rn(of, unit);
            sum = __fmaf_rn(of, i % 4 < 2 ? low : high, sum);
        }
    }

    // The unit in the slot, with x for its columns; the slot is filled again meanwhile. steps: of
    // 16 columns, to the end of k.
    __device__ void multiply_unit(int tile, const X &b, int32_t steps, const BytesPlace &place,
                                  Scale (&own)[kGang][kOwn]) {
        barrier_wait(barriers + slot * 8, parity);
        const uint32_t at = ring + slot * kByteUnit + read_at;
        uint4 q[kByteSteps / 2];
#pragma unroll
        for (uint32_t i = 0; i < kByteSteps / 2; ++i) q[i] = shared_load_matrices(at ^ i * 32);
        __syncwarp();
        issue(q[kByteSteps / 2 - 1].w);
        next_slot();
        if (kTable && !kFine && __builtin_expect(steps < kByteSteps, 0)) end_codes(q, steps);
        float d[kBatches][4] = {};
#pragma unroll
        for (int s = 0; s < kByteSteps; ++s) {
            if (kFine && s >= steps) break;
            uint32_t upper[2 * kTerms], lower[2 * kTerms];  // rows g, g + 8
            Decode::decode(s % 2 == 0 ? q[s / 2].x : q[s / 2].z, lanes, nullptr, upper);
            Decode::decode(s % 2 == 0 ? q[s / 2].y : q[s / 2].w, lanes, nullptr, lower);
#pragma unroll
            for (int t = 0; t < kTerms; ++t) {
                const uint32_t a[4] = {upper[2 * t], lower[2 * t], upper[2 * t + 1],
                                       lower[2 * t + 1]};
#pragma unroll
                for (int j = 0; j < kBatches; ++j) {
                    const uint32_t(&x)[kTwice ? 4 : 2] = b[j][s];
                    if constexpr (kTable && !kTwice) {
                        mma_16x8x16<T>(d[j], a, twice(x[t], 0), twice(x[t], 1));
                    } else {
                        mma_16x8x16<T>(d[j], a, x[2 * t], x[2 * t + 1]);
                    }
                }
            }
            if constexpr (kFine) {
                fold(sum[tile], d, tile, uint32_t(s));
#pragma unroll
                for (int i = 0; i < kBatches * 4; ++i) d[i / 4][i % 4] = 0;
            }
        }
        if (kScalesLate && tile == 0 && gang == 0) keep_scales(place, own);
        if constexpr (!kFine) fold(sum[tile], d, tile, 0);
    }
    // Past the end of k x is 0, but what is there of w is 0 in no table.
    __device__ void end_codes(uint4 (&q)[kByteSteps / 2], int32_t steps) const {
#pragma unroll
        for (int s = 0; s < kByteSteps; ++s) {
            uint32_t &upper = s % 2 == 0 ? q[s / 2].x : q[s / 2].z;
            uint32_t &lower = s % 2 == 0 ? q[s / 2].y : q[s / 2].w;
            // Volatile: or all units would select.
            if (s >= steps) asm volatile("mov.b32 %0, %1;" : "=r"(upper) : "r"(finite));
            if (s >= steps) lower = upper;
        }
    }

    // Panels whose sums meet at once: of few rows of x there is room for several.
    __device__ int32_t meeting() const { return kBatches > 1 ? 1 : 8 >> p.column_shift; }

    // Of 8 rows of x those that there are, of the meeting's panel number `panel`.
    __device__ void keep_sums(int batch, int32_t tiles, int32_t panel) const {
        const uint32_t column = lane % 4 * 2, columns = kBatches > 1 ? 8 : 1u << p.column_shift;
        if (column >= columns) return;
        const uint32_t to = Map::kSums + threadIdx.x / 32 * Map::kWarpSums +
                            (uint32_t(panel * p.plan.height) * 16 + lane / 4) * columns * 4 +
                            column * 4;
#pragma unroll
        for (int i = 0; i < kBytesTiles; ++i) {
            if (i >= tiles) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float *const of = sum[i][batch] + half * 2;
                const uint32_t at = to + uint32_t(i * 2 + half) * 8 * columns * 4;
                if (columns == 1) {
                    shared_store_4(at, __float_as_uint(of[0]));
                } else {
                    shared_store_8(at, {__float_as_uint(of[0]), __float_as_uint(of[1])});
                }
            }
        }
    }

    // The sums of the tiles of a panel.
    __device__ void add_panel(BytesPlace at, int64_t x_first, Scale (&own)[kGang][kOwn]) {
#pragma unroll
        for (int i = 0; i < kBytesTiles * kBatches * 4; ++i) {
            sum[i / (kBatches * 4)][i / 4 % kBatches][i % 4] = 0;
        }
        const int32_t tiles = at.tiles, panel = at.panel;
#pragma unroll 1
        while (at.panel == panel) {
            const int32_t steps = int32_t(p.o.w.geometry.k) / 16 - at.slice * kByteSteps;
            X b;
            take_x(b);
            const BytesPlace here = at;
            if (!kScalesLate && gang == 0) keep_scales(here, own);
            at.next_slice(p.plan, block, part, row_part);
            if (at.panel < p.plan.panels) {
                issue_x(at.slice, int32_t(x_first), b[kBatches - 1][kByteSteps - 1][1]);
            }
#pragma unroll
            for (int i = 0; i < kBytesTiles; ++i) {
                if (i < tiles) multiply_unit(i, b, steps, here, own);
            }
            gang = gang + 1 < uint32_t(kGang) ? gang + 1 : 0;
        }
    }
};

}  // namespace
}  // namespace qk::cuda

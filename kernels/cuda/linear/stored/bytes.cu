// y = x . transpose(w) + bias for 8-bit codes stored row after row, for 1 to 16 rows of x (more
// in passes), on tensor cores, on sm_90 and later.
//
// A block has a run of tiles of 16 rows of w, a warp some slices of k (128 columns each) of them:
//
//     tile of 16 rows     | slice 0 | slice 1 | ... | slice 15 | slice 16 | ...
//     4 tiles, a panel       warp 0    warp 1          warp 15    warp 0
//
// A unit (16 rows x 128 columns, 2 KiB) comes through the warp's own ring in shared memory, a box
// of the copy engine's: no warp waits for another before the sums of a panel meet. A slice of x
// stays in registers while the tiles of a panel pass by; the next one is under way.
//
//     ldmatrix hands lane 4 g + t the codes of columns 4 t .. 4 t + 3 of 16, rows g and g + 8; x
//     follows (8 bytes a lane), since the order of columns inside a product is free
//
// So four codes are one operand register pair: 5 instructions for f16, 8 for bf16, nothing is
// rounded, and scales multiply sums in f32. Bytes per row of w: k of codes plus scales, read once.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/bytes_parts.cuh"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

template <class T, class Decode, int kBatches, bool kFine>
struct BytesWarp {
    static constexpr int kTerms = Decode::kTerms;
    static constexpr bool kTable = kTerms > 1;
    using Map = BytesMap<kBatches, kFine, kTable>;
    using X = uint2[kBatches][kByteSteps];
    // Scales that a lane loads for a slice; and that it does at once, ahead if they are all.
    static constexpr int kScales = int(Map::kSliceScales / 128), kOwn = kFine ? 4 : kScales;
    static constexpr int kGang = int(Map::kGang);
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
    __device__ void take_x(X &b) {
        barrier_wait(barriers + Map::kDepth * 8, x_parity);
        x_parity ^= 1;
#pragma unroll
        for (int j = 0; j < kBatches; ++j) {
#pragma unroll
            for (uint32_t s = 0; s < kByteSteps; ++s) {
                b[j][s] =
                    shared_load_8((x_at ^ s % 4 * 32) + s / 4 * Map::kXBox + uint32_t(j) * 1024);
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
        for (int i = 0; i < kOwn; ++i) own[i] = load_scale(at.first, group, first + i);
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
    __device__ void multiply_unit(int tile, const X &b, int32_t steps) {
        barrier_wait(barriers + slot * 8, parity);
        const uint32_t at = ring + slot * kByteUnit + read_at;
        uint4 q[kByteSteps / 2];
#pragma unroll
        for (uint32_t i = 0; i < kByteSteps / 2; ++i) q[i] = shared_load_matrices(at ^ i * 32);
        __syncwarp();
        issue(q[kByteSteps / 2 - 1].w);
        next_slot();
        float d[kBatches][4] = {};
#pragma unroll
        for (int s = 0; s < kByteSteps; ++s) {
            if ((kFine || kTable) && s >= steps) break;   // what is there is 0 in no table
            uint32_t upper[2][kTerms], lower[2][kTerms];  // rows g, g + 8
            Decode::decode(s % 2 == 0 ? q[s / 2].x : q[s / 2].z, lanes, upper[0], upper[1]);
            Decode::decode(s % 2 == 0 ? q[s / 2].y : q[s / 2].w, lanes, lower[0], lower[1]);
#pragma unroll
            for (int t = 0; t < kTerms; ++t) {
                const uint32_t a[4] = {upper[0][t], lower[0][t], upper[1][t], lower[1][t]};
#pragma unroll
                for (int j = 0; j < kBatches; ++j) mma_16x8x16<T>(d[j], a, b[j][s].x, b[j][s].y);
            }
            if constexpr (kFine) {
                fold(sum[tile], d, tile, uint32_t(s));
#pragma unroll
                for (int i = 0; i < kBatches * 4; ++i) d[i / 4][i % 4] = 0;
            }
        }
        if constexpr (!kFine) fold(sum[tile], d, tile, 0);
    }

    // 8 rows of x.
    __device__ void keep_sums(int batch, int32_t tiles) const {
        const uint32_t to = Map::kSums + threadIdx.x / 32 * Map::kWarpSums + lane * 8;
#pragma unroll
        for (int i = 0; i < kBytesTiles; ++i) {
            if (i >= tiles) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float *const of = sum[i][batch] + half * 2;
                shared_store_8(to + uint32_t(i * 2 + half) * 256,
                               {__float_as_uint(of[0]), __float_as_uint(of[1])});
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
            if (gang == 0) keep_scales(at, own);
            at.next_slice(p.plan, block, part, row_part);
            if (at.panel < p.plan.panels) {
                issue_x(at.slice, int32_t(x_first), b[kBatches - 1][kByteSteps - 1].y);
            }
#pragma unroll
            for (int i = 0; i < kBytesTiles; ++i) {
                if (i < tiles) multiply_unit(i, b, steps);
            }
            gang = gang + 1 < uint32_t(kGang) ? gang + 1 : 0;
        }
    }
};

template <class T, class Decode, int kBatches, bool kFine>
__global__ void __launch_bounds__(kBytesThreads, 1)
    multiply_bytes(const __grid_constant__ BytesProblem p) {
#if __CUDA_ARCH__ >= 900
    using Warp = BytesWarp<T, Decode, kBatches, kFine>;
    using Map = typename Warp::Map;
    if (threadIdx.x == 0) {
        prefetch_map(p.x);
        prefetch_map(p.codes);
    }
    const Run block = p.plan.tiles.part(int32_t(blockIdx.x));
    const int64_t x_first = int64_t(blockIdx.y) * (8 * kBatches);
    Warp work(p, block);
    work.init_barriers();
    BytesPlace at = work.ahead;
    typename Warp::Scale own[Warp::kGang][Warp::kOwn];
    work.issue_x(at.slice, int32_t(x_first), 0);
    if constexpr (!kFine) work.load_gang(own);
#pragma unroll 1
    for (uint32_t i = 0; i < Map::kDepth; ++i) {
        work.issue(0);
        work.slot = i + 1 < Map::kDepth ? i + 1 : 0;
    }
    if (p.o.w.scale_format == QK_FORMAT_LUT8) {
        if (threadIdx.x < 256) {
            const auto *const codes = reinterpret_cast<const uint32_t *>(p.o.w.code);
            shared_store_4(Map::kScaleCodes + threadIdx.x * 4, __ldg(codes + threadIdx.x));
        }
        work.scale_bias = __ldg(reinterpret_cast<const float *>(p.o.w.bias));
        if (!Warp::kTable) __syncthreads();
    }
    if constexpr (Warp::kTable) {
        if (std::is_same_v<T, F16>) work.unit = table_unit<14>(p.o.w.table);
        if (!fill_table<T>(p.o.w.table, work.unit)) {
            work.drain();
            const LinearView &o = p.o;
            return multiply_slowly<T>(
                o.w, o.x, o.bias_type, o.bias, o.y, o.w.geometry.n,
                {int64_t(block.first) * 16, int64_t(block.last) * 16, x_first,
                 min64(x_first + 8 * kBatches, o.m), int32_t(threadIdx.x) / 32, kBytesWarps});
        }
    }
#pragma unroll 1
    for (at.panel = 0; at.panel < p.plan.panels; ++at.panel) {
        at.slice = work.part;
        at.enter(p.plan, block, work.row_part);
        work.add_panel(at, x_first, own);
#pragma unroll
        for (int batch = 0; batch < kBatches; ++batch) {
            if (at.panel + batch > 0) __syncthreads();  // the last sums have been read
            work.keep_sums(batch, at.tiles);
            __syncthreads();
            store_panel<T, Map>(p, block, at.panel, x_first + batch * 8);
        }
    }
#endif
}

template <class T, template <class> class Decode, int kBatches, bool kFine>
Status launch_bytes(const BytesProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks), uint32_t(ceil_div(p.o.m, 8 * kBatches))),
                    kBytesThreads};
    shape.shared_bytes = BytesMap<kBatches, kFine, Decode<T>::kTerms == 2>::kBytes;
    return launch_kernel(launch, "linear", multiply_bytes<T, Decode<T>, kBatches, kFine>, shape, p);
}

template <class T, template <class> class Decode>
Status run_batches(const BytesProblem &p, bool fine, const Launch &launch) {
    if (p.o.m <= 8) {
        return fine ? launch_bytes<T, Decode, 1, true>(p, launch)
                    : launch_bytes<T, Decode, 1, false>(p, launch);
    }
    return fine ? launch_bytes<T, Decode, 2, true>(p, launch)
                : launch_bytes<T, Decode, 2, false>(p, launch);
}

template <class T>
Status run_type(const BytesProblem &p, bool fine, const Launch &launch) {
    return p.o.w.kind == FormatKind::kS8 ? run_batches<T, SignedBytes>(p, fine, launch)
                                         : run_batches<T, TableBytes>(p, fine, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const Geometry &s = args.w.geometry;
    const bool row = s.groups_per_row == 1, fine = !row && s.group_size % kBytesColumns != 0;
    BytesProblem p = {};
    p.o = view_of(args);
    p.plan = plan_bytes(s.n, s.k, launch.device.multiprocessors);
    p.x_rows = uint32_t(min64(p.o.m, p.o.m <= 8 ? 8 : 16));
    const auto steps = uint32_t(s.group_size / (fine ? 16 : kBytesColumns));  // of a group
    p.scale_groups = row ? 0 : steps == 1 ? 1 : 0xffffffffu / steps + 1;
    p.second_shift = log2_of(args.w.scale.second_group);
    const TensorPlane codes = {args.w.data, s.k, s.n, 1, s.k};
    const TensorPlane x = {args.x.data, s.k, p.o.m, 2, s.k * 2};
    QK_TRY(describe_tensor(codes, kBytesColumns, 16, launch.error, &p.codes));
    QK_TRY(describe_tensor(x, 64, int32_t(p.x_rows), launch.error, &p.x));
    return (p.o.type == QK_FORMAT_F16 ? run_type<F16> : run_type<BF16>)(p, fine, launch);
}

static_assert(kBytesShared ==
              max64(max64(BytesMap<1, true, false>::kBytes, BytesMap<2, true, false>::kBytes),
                    max64(BytesMap<1, true, true>::kBytes, BytesMap<2, true, true>::kBytes)));

}  // namespace

const Kernel<LinearArgs> kLinearBytes = linear_kernel<LinearKernel::kBytes>(run);

}  // namespace qk::cuda

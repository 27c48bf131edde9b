// y = x . transpose(w) + bias for 2 to 16 rows of x (more in passes), from the packed tiles, on
// sm_90 and later.
//
// A warp owns the same columns of w in many rows of tiles, so it keeps x for them in registers, as
// operands of the matrix product, while those rows pass by:
//
//     stage 0  row of tiles 0   | x: columns of warp 0 |  ...  | of warp 15 |
//     stage 1  row of tiles 1   |          |           |       |      |     |   then the next
//     ...                       v   warp 0 goes down   v       v            v  16 chunks
//
// Those columns are a chunk of 16 rows x 128 columns. x is read once for a panel of rows. What a
// warp has summed of every row waits in shared memory, [row of tiles][warp][row of x][row of w];
// when the panel is through, all warps add it up, each lane one value of y, in the order of the
// warps.
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once, issued before x is known
// (docs/decisions.md tells why that is safe). 8 weights cost a lane about 9 instructions to decode
// and a product for every 8 rows of x; the memory of an H200 would wait for 27.
#pragma once
#include "cuda/linear/sm90/few_rows/output.cuh"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
struct FewRowsConsumer {
    using Map = FewRowsMap<Decode, kind, kGroupTiles, kBatches>;
    static constexpr int kTiles = Map::kTiles;
    const FewRowsProblem &p;
    Seconds<Map> seconds;
    float scale_bias = 0;
    int32_t x_first;
    uint32_t lane, warp;
    int32_t down, across;           // the place of this warp's chunk in a stage
    uint32_t codes, scales, zeros;  // this lane's places in slot 0
    uint32_t kept, lanes;
    Slot<Map::kSlots> slot;
    uint32_t x[kBatches][kTiles][8];  // two registers a step of 16 columns

    __device__ explicit FewRowsConsumer(const FewRowsProblem &problem) : p(problem), seconds{0, 0} {
        x_first = int32_t(blockIdx.y * Map::kColumns);
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        down = int32_t(warp) / p.plan.width;
        across = int32_t(warp) - down * p.plan.width;
        codes = Map::kRing + warp * Map::kChunkBytes + lane * 16;
        scales =
            Map::kRing + Map::kScaleAt + warp * Map::chunk_scales(p) + lane / 4 * kPairBytes<kind>;
        zeros = Map::kRing + Map::kZeroAt + warp * Map::chunk_zeros(p) + lane / 4;
        lanes = Decode::lanes();
        kept = Map::kSums + warp * Map::kWarpSums + lane % 4 * (2 * kColumnBytes) + lane / 4 * 4;
        // Keeps the compiler from rematerializing them for every chunk.
        asm("" : "+r"(codes), "+r"(scales), "+r"(zeros), "+r"(kept), "+r"(lane));
        seconds.at = Map::kSums + uint32_t(p.plan.panel_stages()) * Map::kStageSums;
    }

    // Lanes without a row of x hold zeros: their columns of the product are never stored.
    __device__ void load_x(int32_t chunk) {
        const auto *const base = static_cast<const uint8_t *>(p.x);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const int32_t row = x_first + b * 8 + int32_t(lane / 4);
            const int64_t at = int64_t(row) * p.k + chunk * (kTiles * 64) + int32_t(lane % 4 * 16);
            const auto *const from = reinterpret_cast<const uint4 *>(base + at * 2);
#pragma unroll
            for (int i = 0; i < kTiles * 2; ++i) {
                uint4 q = {0, 0, 0, 0};
                if (row < p.m) q = from[i / 2 * 8 + i % 2];
                uint32_t *const quad = &x[b][i / 2][i % 2 * 4];
                quad[0] = q.x;
                quad[1] = q.y;
                quad[2] = q.z;
                quad[3] = q.w;
            }
        }
    }

    // Nested scales: of the four lanes with rows r and r + 8 two have those of r, two those of
    // r + 8, a group of the chunk each.
    __device__ float own_scale(uint32_t from, int32_t row_tile, int32_t chunk) const {
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t group = lane % Map::kGroups, below = lane / 2 % 2;
            const uint32_t code = shared_load_1(from + group * Map::kGroupScales + below);
            const uint32_t row = uint32_t(row_tile) * 16 + lane / 4 + below * 8;
            const uint32_t number = row * p.groups + uint32_t(chunk) * Map::kGroups + group;
            return seconds.scale(p, code, number, scale_bias);
        }
        return 0;
    }
    __device__ float2 group_scales(uint32_t from, uint32_t group, float own) const {
        if constexpr (kind == ScaleKind::kNested) {
            return {__shfl_sync(~0u, own, int(group), 4), __shfl_sync(~0u, own, int(group + 2), 4)};
        } else {
            return scale_pair<kind>(from + group * Map::kGroupScales);
        }
    }

    // Small groups: in which of the chunk's this lane's columns of tile i are.
    __device__ uint32_t part_of(int i) const {
        return (uint32_t(i) * 4 + lane % 4) >> p.part_shift;
    }
    // The scales of rows r and r + 8 of one of the chunk's groups, as numbers of x's type.
    __device__ uint32_t part_scales(int32_t row_tile, int32_t chunk, uint32_t part) const {
        const uint32_t from = scales + slot.index * Map::kStage + part * Map::kGroupScales;
        if constexpr (kind == ScaleKind::kNested) {
            const int64_t row = int64_t(row_tile) * 16 + lane / 4;
            const int32_t group = chunk * (kTiles * 4 >> p.part_shift) + int32_t(part);
            const float2 both =
                seconds.scales(p, shared_load_2(from), row, p.n - 1, group, scale_bias);
            return pack_pair(T{}, both.x, both.y);
        } else {
            return scale_pair_as<T, kind>(from);
        }
    }
    // Those of this lane's columns. Nested scales cost more: where the four lanes of a row have
    // what they need together, each computes one.
    __device__ void part_scales(int32_t row_tile, int32_t chunk, uint32_t (&scale)[kTiles]) const {
        if (kind == ScaleKind::kNested && p.part_shift == 1) {
            const uint32_t own = part_scales(row_tile, chunk, lane % 4);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) scale[i] = __shfl_sync(~0u, own, int(part_of(i)), 4);
        } else {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) scale[i] = part_scales(row_tile, chunk, part_of(i));
        }
    }

    // Two tiles side by side: a product waits for the one before it on the same sum. `scale`: of
    // small groups.
    __device__ void multiply_tiles(const uint4 (&q)[kTiles], const Zeros (&zero)[kTiles],
                                   const uint32_t (&scale)[kTiles],
                                   float (&part)[kTiles][kBatches][4]) const {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint32_t words[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
                uint32_t a[4];
                Decode::decode(words[s], zero[i], lanes, a);
                if constexpr (Map::kSmallGroups) scale_step<T>(a, scale[i]);
#pragma unroll
                for (int b = 0; b < kBatches; ++b) {
                    mma_16x8x16<T>(part[i][b], a, x[b][i][2 * s], x[b][i][2 * s + 1]);
                }
            }
        }
    }

    // Adds the products of a chunk to `sum`. Groups of one tile or two: they are folded with their
    // scale.
    __device__ void multiply_groups(int32_t row_tile, int32_t chunk,
                                    float (&sum)[kBatches][4]) const {
        const uint32_t offset = slot.index * Map::kStage;
        const float own = own_scale(scales + offset, row_tile, chunk);
        uint4 q[kTiles];
        float2 scale[kTiles];
        Zeros zero[kTiles] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const uint32_t group = uint32_t(i / kGroupTiles);
            q[i] = shared_load_16(codes + offset + i * 512);
            scale[i] = scale[0];
            zero[i] = zero[0];
            if (i % kGroupTiles != 0) continue;
            scale[i] = group_scales(scales + offset, group, own);
            if (!Decode::kLut4) {
                zero[i] = Decode::zeros(shared_load_1(zeros + offset + group * 8));
            }
        }
        float part[kTiles][kBatches][4] = {};
        multiply_tiles(q, zero, {}, part);
#pragma unroll
        for (int i = 0; i < kTiles * kBatches * 4; ++i) {
            const int tile = i / (kBatches * 4), b = i / 4 % kBatches, j = i % 4;
            const float by = j < 2 ? scale[tile].x : scale[tile].y;
            sum[b][j] = __fmaf_rn(part[tile][b][j], by, sum[b][j]);
        }
    }

    // Groups of 16 and 32: the operands have been multiplied by it.
    __device__ void multiply_parts(int32_t row_tile, int32_t chunk,
                                   float (&sum)[kBatches][4]) const {
        const uint32_t offset = slot.index * Map::kStage;
        uint4 q[kTiles];
        uint32_t scale[kTiles];
        Zeros zero[kTiles] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            q[i] = shared_load_16(codes + offset + i * 512);
            if (!Decode::kLut4) {
                zero[i] = Decode::zeros(shared_load_1(zeros + offset + part_of(i) * 8));
            }
        }
        part_scales(row_tile, chunk, scale);
        float part[kTiles][kBatches][4] = {};
        multiply_tiles(q, zero, scale, part);
#pragma unroll
        for (int i = 0; i < kTiles * kBatches * 4; ++i) {
            float &to = sum[i / 4 % kBatches][i % 4];
            to = __fadd_rn(to, part[i / (kBatches * 4)][i / 4 % kBatches][i % 4]);
        }
    }

    // The sums of a row of tiles, which other passes have left (`more`), with another chunk. `at`:
    // this lane's place.
    __device__ void add_chunk(int32_t row_tile, int32_t chunk, uint32_t at, bool more) const {
        float sum[kBatches][4] = {};
        if (more) {
#pragma unroll
            for (int i = 0; i < kBatches * 4; ++i) {
                sum[i / 4][i % 4] = __uint_as_float(shared_load_4(at + kept_at(i)));
            }
        }
        if constexpr (Map::kSmallGroups) {
            multiply_parts(row_tile, chunk, sum);
        } else {
            multiply_groups(row_tile, chunk, sum);
        }
#pragma unroll
        for (int i = 0; i < kBatches * 4; ++i) {
            shared_store_4(at + kept_at(i), __float_as_uint(sum[i / 4][i % 4]));
        }
    }
    static __device__ constexpr uint32_t kept_at(int i) {
        return uint32_t(i / 4 * 8 + i % 2) * kColumnBytes + uint32_t(i % 4 / 2 * 32);
    }

    // The rows of tiles [first, last) and their chunks from number `done` on.
    __device__ void add_pass(int32_t first, int32_t last, int32_t done, bool new_x) {
        const int32_t chunk = done + across;
        const bool mine = down < p.plan.height && across < min(p.plan.width, p.plan.chunks - done);
        if (mine && new_x) load_x(chunk);
        uint32_t at = kept;
#pragma unroll 1
        for (int32_t row = first; row < last; row += p.plan.height) {
            barrier_wait(Map::full(slot.index), slot.parity);
            if (mine && row + down < last) add_chunk(row + down, chunk, at, done > 0);
            barrier_arrive(Map::empty(slot.index));
            slot.advance();
            at += Map::kStageSums;
        }
    }

    // Before x is known.
    __device__ void prepare(Run rows) {
        if constexpr (!Decode::kLut4) {
            if (p.zero == nullptr) fill_zeros<Map>();
        }
        if constexpr (kind == ScaleKind::kNested) {
            fill_scale_codes<Map>(p);
            seconds.fill(p, rows);
            scale_bias = __ldg(p.scale_bias);
        }
        Decode::prepare(p.entries, kFewRowsWarps * 32);
    }

    __device__ void run(Run rows) {
        if (kind == ScaleKind::kNested) copies_wait();
        wait_for_all();
        if (kind == ScaleKind::kNested) seconds.read();
        for (int32_t first = rows.first; first < rows.last; first += p.plan.panel) {
            const int32_t last = min(rows.last, first + p.plan.panel);
            const bool new_x = first == rows.first || p.plan.passes > 1;
            for (int32_t done = 0; done < p.plan.chunks; done += p.plan.width) {
                add_pass(first, last, done, new_x);
            }
            wait_for_consumers();
            FewRowsOutput<T, Map>(p).store_panel(first, last);
            if (last < rows.last) wait_for_consumers();  // the sums have been read
        }
    }
};

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
__global__ void __launch_bounds__(kRingThreads, 1)
    multiply_few_rows(const __grid_constant__ FewRowsProblem p) {
    using Work = FewRowsConsumer<T, Decode, kind, kGroupTiles, kBatches>;
#if __CUDA_ARCH__ >= 900
    allow_next_kernel();
    const Run rows = p.plan.rows.part(int32_t(blockIdx.x));
    // Expected, so that its code comes first: cold instructions delay the first copy.
    if (__builtin_expect(threadIdx.x >= kFewRowsWarps * 32, 1)) {
        const bool first = threadIdx.x == kFewRowsWarps * 32;
        FewRowsProducer<typename Work::Map> producer(p, rows);
        if (first) {
            producer.init_barriers();
            producer.issue();
        }
        __syncwarp();
        announce_barriers();
        if (first) producer.issue_rest();
        return;
    }
    Work work(p);
    work.prepare(rows);
    wait_for_previous_kernel();
    work.run(rows);
#endif
}

template <class Map>
FewRowsPlan plan_of(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    const int32_t processors = device.multiprocessors;
    const int64_t second_group = args.w.scale.second_group;
    const auto plan = [&](int32_t room) {
        return plan_few_rows(s.n, s.k / kFewRowsColumns, kFewRowsStep, processors, room);
    };
    const int64_t fixed = Map::kSums + second_bytes(plan(1).rows, s.groups_per_row, second_group);
    return plan((device.shared_bytes - int32_t(fixed)) / int32_t(Map::kStageSums));
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
Status launch_few_rows(const LinearArgs &args, const Launch &launch) {
    using Map = FewRowsMap<Decode, kind, kGroupTiles, kBatches>;
    const FewRowsPlan plan = plan_of<Map>(args, launch.device);
    const Geometry &s = args.w.geometry;
    const uint32_t groups = uint32_t(kFewRowsColumns / min64(s.group_size, 64));  // small ones
    const FewRowsProblem p = {
        tiles_problem(args),
        plan,
        uint32_t(second_bytes(plan.rows, s.groups_per_row, args.w.scale.second_group)),
        groups * Map::kGroupScales,
        groups * 8,
        s.group_size == 32 ? 1u : 0u,
        coded_scales(args.w.scale, *launch.device.tables)};
    Shape3 shape = {dim3(uint32_t(plan.blocks), uint32_t(ceil_div(p.m, int64_t{Map::kColumns}))),
                    kRingThreads};
    shape.shared_bytes =
        Map::kSums + uint32_t(plan.panel_stages()) * Map::kStageSums + p.second_bytes;
    shape.overlaps = true;
    return launch_kernel(launch, "linear",
                         multiply_few_rows<T, Decode, kind, kGroupTiles, kBatches>, shape, p);
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status run_batches(const LinearArgs &args, const Launch &launch) {
    if (args.x.rows <= 8) return launch_few_rows<T, Decode, kind, kGroupTiles, 1>(args, launch);
    return launch_few_rows<T, Decode, kind, kGroupTiles, 2>(args, launch);
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    if (s.groups_per_row * 64 == s.k) return run_batches<T, Decode, kind, 1>(args, launch);
    if (s.groups_per_row * 128 == s.k) return run_batches<T, Decode, kind, 2>(args, launch);
    return run_batches<T, Decode, kind, 0>(args, launch);
}

}  // namespace

template <Codes codes, qk_format x>
Status FewRows<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>;
    return with_scale_kind(args.w.scale.format->id, [&](auto kind) {
        return run_groups<T, Decode, kind.value>(args, launch);
    });
}

}  // namespace qk::cuda

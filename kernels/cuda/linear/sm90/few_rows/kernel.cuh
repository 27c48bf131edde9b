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
#include "cuda/linear/sm90/few_rows/f32.cuh"
#include "cuda/linear/sm90/few_rows/output.cuh"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
struct FewRowsChunkOf {
    using Map = FewRowsMap<Decode, kind, kGroupTiles, kBatches>;
    using Type = WarpsChunk<T, Decode, kind, kGroupTiles, kBatches, Map, false>;
};
template <class Decode, ScaleKind kind, int kGroupTiles>
struct FewRowsChunkOf<F32, Decode, kind, kGroupTiles, 1> {
    using Type = HalvesChunk<Decode, kind, kGroupTiles, FewRowsMap<Decode, kind, kGroupTiles, 1>>;
};
template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
using FewRowsChunk = typename FewRowsChunkOf<T, Decode, kind, kGroupTiles, kBatches>::Type;

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
struct FewRowsConsumer : FewRowsChunk<T, Decode, kind, kGroupTiles, kBatches> {
    using Base = FewRowsChunk<T, Decode, kind, kGroupTiles, kBatches>;
    using Map = FewRowsMap<Decode, kind, kGroupTiles, kBatches>;
    using Base::codes, Base::scales, Base::zeros, Base::lanes, Base::lane, Base::warp;
    using Base::seconds, Base::scale_bias, Base::scale_one;
    static constexpr int kParts = std::is_same_v<T, F32> ? kPartsOfX<kGroupTiles> : 1;
    const FewRowsProblem &p;
    int32_t x_first;
    int32_t down, across;  // the place of this warp's chunk in a stage
    uint32_t kept;
    Slot<Map::kSlots> slot;

    __device__ explicit FewRowsConsumer(const FewRowsProblem &problem)
        : Base(problem, Map::kRing), p(problem) {
        x_first = int32_t(blockIdx.y) * (int32_t(Map::kColumns) / kParts);
        down = int32_t(warp) / p.plan.width;
        across = int32_t(warp) - down * p.plan.width;
        lanes = Decode::lanes(0);
        kept = Map::kSums + warp * Map::kWarpSums + lane % 4 * (2 * kColumnBytes) + lane / 4 * 4;
        // Keeps the compiler from rematerializing them for every chunk.
        asm("" : "+r"(codes), "+r"(scales), "+r"(zeros), "+r"(kept), "+r"(lane));
        seconds.at = Map::kSums + uint32_t(p.plan.panel_stages()) * Map::kStageSums;
    }

    // The sums of a row of tiles, which other passes have left (`more`), with another chunk. `at`:
    // this lane's place. kRounds: x comes in rounds, of which a chunk needs all.
    template <bool kRounds>
    __device__ void add_chunk(int32_t row_tile, int32_t chunk, uint32_t at, bool more) {
        float sum[kBatches][4] = {};
        if (more) {
#pragma unroll
            for (int i = 0; i < kBatches * 4; ++i) {
                sum[i / 4][i % 4] = __uint_as_float(shared_load_4(at + kept_at(i)));
            }
        }
        const uint32_t offset = slot.index * Map::kStage;
        if constexpr (kRounds) {
            bool left = false;
#pragma unroll 1
            do {
                this->load_x(x_first, chunk, left);
                this->multiply(offset, row_tile, chunk, sum, left);
                left = this->rest;
            } while (left);
        } else {
            this->multiply(offset, row_tile, chunk, sum);
        }
#pragma unroll
        for (int i = 0; i < kBatches * 4; ++i) {
            shared_store_4(at + kept_at(i), __float_as_uint(sum[i / 4][i % 4]));
        }
    }
    static __device__ constexpr uint32_t kept_at(int i) {
        return uint32_t(i / 4 * 8 + i % 2) * kColumnBytes + uint32_t(i % 4 / 2 * 32);
    }

    // A chunk of the rows of tiles [first, last), where it is this warp's.
    template <bool kRounds>
    __device__ void add_stages(int32_t first, int32_t last, int32_t chunk, bool mine, bool more) {
        uint32_t at = kept;
#pragma unroll 1
        for (int32_t row = first; row < last; row += p.plan.height) {
            barrier_wait(Map::full(slot.index), slot.parity);
            if (mine && row + down < last) add_chunk<kRounds>(row + down, chunk, at, more);
            barrier_arrive(Map::empty(slot.index));
            slot.advance();
            at += Map::kStageSums;
        }
    }

    // The rows of tiles [first, last) and their chunks from number `done` on.
    __device__ void add_pass(int32_t first, int32_t last, int32_t done, bool new_x) {
        const int32_t chunk = done + across;
        const bool mine = down < p.plan.height && across < min(p.plan.width, p.plan.chunks - done);
        if (mine && new_x) this->load_x(x_first, chunk);
        if constexpr (std::is_same_v<T, F32>) {
            if (__builtin_expect(mine && this->rest, 0)) {
                add_stages<true>(first, last, chunk, mine, done > 0);
                this->rest = true;  // of the panels that follow, too
                return;
            }
        }
        add_stages<false>(first, last, chunk, mine, done > 0);
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
        if constexpr (kIsCoded<kind>) scale_one = __ldg(p.second);
        Decode::prepare(p.entries, kFewRowsWarps * 32, 0);
    }

    __device__ void run(Run rows) {
        if (kind == ScaleKind::kNested) copies_wait();
        wait_for_all();
        for (int32_t first = rows.first; first < rows.last; first += p.plan.panel) {
            const int32_t last = min(rows.last, first + p.plan.panel);
            const bool new_x = first == rows.first || p.plan.passes > 1;
            for (int32_t done = 0; done < p.plan.chunks; done += p.plan.width) {
                add_pass(first, last, done, new_x);
            }
            wait_for_consumers();
            FewRowsOutput<T, Map, kParts>(p).store_panel(first, last);
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
    FewRowsProblem p = {
        chunks_problem(args, Map::kGroupScales), plan,
        uint32_t(second_bytes(plan.rows, s.groups_per_row, args.w.scale.second_group))};
    int64_t rows = Map::kColumns;  // of x, of a block
    if constexpr (std::is_same_v<T, F32>) rows /= kPartsOfX<kGroupTiles>;
    if constexpr (std::is_same_v<T, F32> && Decode::kLut4) {
        with_halves(p.entries, &p.entry_unit, [](auto) { return QK_OK; });
    }
    Shape3 shape = {dim3(uint32_t(plan.blocks), uint32_t(ceil_div(p.m, rows))), kRingThreads};
    shape.shared_bytes =
        Map::kSums + uint32_t(plan.panel_stages()) * Map::kStageSums + p.second_bytes;
    shape.overlaps = true;
    return launch_kernel(launch, "linear",
                         multiply_few_rows<T, Decode, kind, kGroupTiles, kBatches>, shape, p);
}

// Scales that are made of codes leave fewer instructions for addresses of look-ups: a larger table.
template <Codes codes, class T, ScaleKind kind>
using FewRowsDecode =
    std::conditional_t<codes == Codes::kU4, RingU4<T>,
                       std::conditional_t<kIsCoded<kind>, WideLut4<T>, RingLut4<T>>>;

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status run_batches(const LinearArgs &args, const Launch &launch) {
    if constexpr (std::is_same_v<T, F32>) {
        if constexpr (kGroupTiles == 0) {
            if (args.w.geometry.group_size == 16) {
                return launch_few_rows<T, Decode, kind, -2, 1>(args, launch);
            }
        }
        return launch_few_rows<T, Decode, kind, kGroupTiles, 1>(args, launch);
    } else {
        if (args.x.rows <= 8) return launch_few_rows<T, Decode, kind, kGroupTiles, 1>(args, launch);
        return launch_few_rows<T, Decode, kind, kGroupTiles, 2>(args, launch);
    }
}

// A template: else the file of every instance would compile these kernels.
template <class T>
Status run_lut4_f32(const LinearArgs &args, const Launch &launch) {
    TilesProblem p = tiles_problem(args);
    float unit;
    return with_halves(p.entries, &unit, [&](auto decode) {
        return with_chunk_scales<false>(args, launch, [&](auto kind, auto tiles) {
            return run_batches<T, decltype(decode), kind.value, tiles.value>(args, launch);
        });
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status FewRows<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    using Operand = std::conditional_t<x == QK_FORMAT_F32, F16, T>;
    if constexpr (codes == Codes::kLut4 && x == QK_FORMAT_F32) {
        return run_lut4_f32<T>(args, launch);
    } else {
        return with_chunk_scales<codes == Codes::kLut4>(args, launch, [&](auto kind, auto tiles) {
            using Decode = FewRowsDecode<codes, Operand, kind.value>;
            return run_batches<T, Decode, kind.value, tiles.value>(args, launch);
        });
    }
}

}  // namespace qk::cuda

// y = x . transpose(w) + bias for 9 to 16 rows of x, from the packed tiles, on sm_90 and later.
//
// A warp owns the same columns of w in many rows of tiles and keeps x for them in registers, as in
// few_rows/kernel.cuh. With 16 rows of x these are 128 columns; so the blocks of a cluster divide
// k, and no warp loads x twice:
//
//              block 0                        block 1
//     stage 0  row of tiles 0 | warp 0 | ... | warp 15 |    | warp 0 | ... | warp 15 |
//     stage 1  row of tiles 1 |        |     |         |    |        |     |         |
//     ...
//
// What the warps have of a row of tiles waits in the place of its codes until other warps have
// added it up (output.cuh) and sent it to one block of the cluster, each row in turn another one.
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once, issued before x is known
// (docs/decisions.md tells why that is safe). A chunk of 16 rows x 128 columns is about 135
// instructions, 16 of them products, which no other instruction is issued beside for 6 clocks.
#pragma once
#include "cuda/linear/sm90/cluster_rows/output.cuh"
#include "cuda/linear/sm90/cluster_rows/plan.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

// Of 96 for every thread; sm_90a can move them.
constexpr int kOtherRegisters = 64, kMultiplierRegisters = 104;

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
using ClusterRowsChunk = WarpsChunk<T, Decode, kind, kGroupTiles, kClusterRowsBatches,
                                    ClusterRowsMap<Decode, kind, kGroupTiles>, true>;

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
struct ClusterRowsConsumer : ClusterRowsChunk<T, Decode, kind, kGroupTiles> {
    using Base = ClusterRowsChunk<T, Decode, kind, kGroupTiles>;
    using Map = ClusterRowsMap<Decode, kind, kGroupTiles>;
    using Base::codes, Base::scales, Base::zeros, Base::lanes, Base::lane, Base::warp;
    using Base::seconds, Base::scale_bias, Base::scale_one;
    const ClusterRowsProblem &p;
    const ClusterRowsPart &part;

    __device__ ClusterRowsConsumer(const ClusterRowsProblem &problem, const ClusterRowsPart &mine)
        : Base(problem, mine.own + Map::kRing), p(problem), part(mine) {
        lanes = Decode::lanes(part.own);
        seconds.at =
            part.own + part.met + uint32_t(p.plan.owned(p.plan.most_rows(), 0) + 1) / 2 * 16;
        seconds.codes = part.own + Map::kScaleCodes;
        // Keeps the compiler from rematerializing them for every chunk.
        asm("" : "+r"(codes), "+r"(scales), "+r"(zeros), "+r"(lane));
    }

    // Zeros of 8 in every slot: nothing overwrites them.
    __device__ void fill_zero_points() const {
#pragma unroll 1
        for (uint32_t slot = 0; slot < Map::kSlots; ++slot) {
            const uint32_t to = part.own + Map::kRing + slot * Map::kStage + Map::kZeroAt;
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < kRingWarps * Map::kChunkZeros / 4;
                 i += kRingWarps * 32) {
                shared_store_4(to + i * 4, 0x88888888u);
            }
        }
    }

    // Before x is known.
    __device__ void prepare() {
        if constexpr (!Decode::kLut4) {
            if (p.zero == nullptr) fill_zero_points();
        }
        if constexpr (kind == ScaleKind::kNested) {
            fill_scale_codes<Map>(p, part.own + Map::kScaleCodes);
            seconds.fill(p, part.rows);
            scale_bias = __ldg(p.scale_bias);
        }
        if constexpr (kIsCoded<kind>) scale_one = __ldg(p.second);
        Decode::prepare(p.entries, kRingWarps * 32, part.own);
    }

    __device__ void run() {
        const auto across = int32_t(warp);
        const bool mine = across < part.width;
        if (mine) this->load_x(0, part.chunk + across);
        if (kind == ScaleKind::kNested) copies_wait();
        named_barrier_wait(3, kClusterRowsThreads);
        if (!mine) return;
        Slot<Map::kSlots> slot;
#pragma unroll 1
        for (int32_t row = part.rows.first; row < part.rows.last; ++row) {
            const uint32_t offset = slot.index * Map::kStage;
            barrier_wait(part.own + Map::full(slot.index), slot.parity);
            float sum[kClusterRowsBatches][4] = {};
            this->multiply(offset, row, part.chunk + across, sum);
#pragma unroll
            for (uint32_t b = 0; b < kClusterRowsBatches; ++b) {
                shared_store_16(codes + offset + b * Map::kBatchSums,
                                {__float_as_uint(sum[b][0]), __float_as_uint(sum[b][1]),
                                 __float_as_uint(sum[b][2]), __float_as_uint(sum[b][3])});
            }
            barrier_arrive(part.own + Map::summed(slot.index));
            slot.advance();
        }
    }
};

// The warps that do not multiply: one issues the copies, two add up, one stores.
template <class T, class Map>
__device__ void serve(const ClusterRowsProblem &p, const ClusterRowsPart &part) {
    const uint32_t role = threadIdx.x / 32 - kRingWarps;
    ClusterRowsProducer<Map> producer(p, part);
    if (role == 0) {
        producer.init_barriers();
        if (threadIdx.x % 32 == 0) producer.issue();
        __syncwarp();
    }
    cluster_arrive_relaxed();
    named_barrier_wait(3, kClusterRowsThreads);
    if (role == 0) {
        if (threadIdx.x % 32 == 0) producer.issue_rest();
        __syncwarp();
    }
    cluster_wait();  // others' barriers are there
    const ClusterRowsOutput<T, Map> output(p, part);
    if (role == 3) {
        wait_for_previous_kernel();  // y may be what it reads
        output.store_all();
    } else if (role > 0) {
        output.send_all(role - 1);
    }
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kClusterRowsThreads, 1)
    multiply_cluster_rows(const __grid_constant__ ClusterRowsProblem p) {
#if __CUDA_ARCH__ >= 900
    using Work = ClusterRowsConsumer<T, Decode, kind, kGroupTiles>;
    using Map = typename Work::Map;
    allow_next_kernel();
    const ClusterRowsPart part(p, Map{});
    // Likely, so that its code comes first: cold instructions delay the first copy.
    if (__builtin_expect(threadIdx.x >= kRingWarps * 32, 1)) {
        fewer_registers<kOtherRegisters>();
        serve<T, Map>(p, part);
        return;
    }
    more_registers<kMultiplierRegisters>();
    Work work(p, part);
    work.prepare();
    cluster_arrive_relaxed();
    wait_for_previous_kernel();
    work.run();
    cluster_wait();
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_cluster_rows(const LinearArgs &args, const Launch &launch) {
    using Map = ClusterRowsMap<Decode, kind, kGroupTiles>;
    const Geometry &s = args.w.geometry;
    const ClusterRowsPlan plan =
        plan_cluster_rows(s.n, s.k / kFewRowsColumns, kFewRowsStep, launch.device.multiprocessors);
    const ClusterRowsProblem p = {
        chunks_problem(args, Map::kGroupScales), plan,
        uint32_t(second_bytes(plan.rows, s.groups_per_row, args.w.scale.second_group))};
    Shape3 shape = {dim3(uint32_t(plan.clusters * kClusterRowsBlocks)), kClusterRowsThreads};
    shape.shared_bytes = Map::kSums - kSharedStart + size_t(cluster_rows_sums(plan)) +
                         size_t(plan.owned(plan.most_rows(), 0) + 1) / 2 * 16 + p.second_bytes;
    shape.overlaps = true;
    shape.cluster = kClusterRowsBlocks;
    return launch_kernel(launch, "linear", multiply_cluster_rows<T, Decode, kind, kGroupTiles>,
                         shape, p);
}

}  // namespace

template <Codes codes, qk_format x>
Status ClusterRows<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, WideLut4<T>>;
    return with_chunk_scales<Decode::kLut4>(args, launch, [&](auto kind, auto tiles) {
        return launch_cluster_rows<T, Decode, kind.value, tiles.value>(args, launch);
    });
}

}  // namespace qk::cuda

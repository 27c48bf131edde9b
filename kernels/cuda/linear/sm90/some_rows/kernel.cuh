// y = x . transpose(w) + bias for 2 to 16 rows of x (more in passes), or for 17 to 24, from the
// packed tiles, on sm_90 and later.
//
// A warp has two rows of tiles (32 rows of w) and adds up all of k that is its own in registers:
//
//     stage            | chunk 0 | chunk 1 | ...  (128 columns each, `slices` of them)
//     row of tiles 0,1 |  warp 0 |  warp 1 |
//     row of tiles 2,3 |  warp s |  ...    |      and the same columns of x beside them
//     ...
//
// The warps of a column of this picture multiply by the same x, which is in the stage, and read
// it once for both rows of tiles. At the end the slices of a row meet in shared memory and are
// added in their order. Where there are few rows, blocks of a cluster divide k, so that x does not
// cross the L2 more often than the weight does; their sums meet the same way.
//
// Bytes per row of w: k / 2 of codes plus scales and zeros, read once, issued before x is known
// (docs/decisions.md tells why that is safe). A chunk of 16 rows is about 150 instructions with 16
// or 24 rows of x: 8 weights cost a lane 9 to decode and a product for every 8 rows of x. With 24
// the products of both tiles of a chunk go into one set of sums, as registers for two lack.
#pragma once
#include "cuda/linear/sm90/some_rows/output.cuh"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/sm90/some_rows/warp.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

// Of 96 for every thread; sm_90a can move them.
constexpr int kProducerRegisters = 32, kConsumerRegisters = 112;

template <class T, class Decode, ScaleKind kind, int kGroup, int kBatches>
struct SomeRowsConsumer : SomeRowsChunks<T, Decode, kind, kGroup, kBatches> {
    using Base = SomeRowsChunks<T, Decode, kind, kGroup, kBatches>;
    using Base::half, Base::works, Base::sum, Base::Base;
    using Base::p, Base::part, Base::own, Base::slice, Base::slot, Base::seconds, Base::scale_bias;
    using Base::scale_one;
    using typename Base::Map;

    template <int kTiles>
    __device__ void add_stages() {
#pragma unroll 1
        for (int32_t first = part.chunks.first; first < part.chunks.last; first += p.plan.slices) {
            const int32_t chunk = first + slice;
            barrier_wait(own + Map::full(slot.index), slot.parity);
            if (chunk < part.chunks.last) {
                this->template add<kTiles>(chunk);
            }
            barrier_arrive(own + Map::empty(slot.index));
            slot.advance(p.stage);
        }
    }

    // Before x is known.
    __device__ void prepare() {
        if (threadIdx.x < 16) shared_store_4(own + Map::kZeros + threadIdx.x * 4, 0);
        if constexpr (!Decode::kLut4) {
            if (p.zero == nullptr) fill_zero_points();
        }
        if constexpr (kind == ScaleKind::kNested) {
            fill_scale_codes<Map>(p, own + Map::kScaleCodes);
            seconds.fill(p, part.rows);
            scale_bias = __ldg(p.scale_bias);
        }
        if constexpr (kIsCoded<kind>) scale_one = __ldg(p.second);
        Decode::prepare(p.entries, kSomeRowsWarps * 32, own);
    }
    // Zeros of 8 in every slot: nothing overwrites them.
    __device__ void fill_zero_points() const {
        const auto words = p.plan.pairs * 2 * p.stage.groups * 2;
#pragma unroll 1
        for (int32_t i = int32_t(threadIdx.x); i < words * p.stage.slots;
             i += kSomeRowsWarps * 32) {
            const int32_t at = i / words;
            shared_store_4(own + Map::kRing +
                               uint32_t(at * p.stage.bytes + p.stage.zeros + (i - at * words) * 4),
                           0x88888888u);
        }
    }

    __device__ void run() {
        if (kind == ScaleKind::kNested) copies_wait();
        __syncwarp();
        if (p.plan.cluster > 1) cluster_arrive_relaxed();
        named_barrier_wait(3, kSomeRowsThreads);
        if (half) {
            add_stages<1>();
        } else if (works) {
            add_stages<2>();
        }
        wait_for_consumers();
        const SomeRowsSums<T, kBatches> sums(p, part, own + Map::kRing);
        if (works) sums.keep(sum);
        wait_for_consumers();
        if (p.plan.cluster > 1) {
            if (threadIdx.x == 0) barrier_expect(own + Map::kReceived, sums.received_bytes());
            __syncwarp();
            cluster_wait();  // others' barriers are there
        }
        sums.store(seconds.at + p.second_bytes, own + Map::kReceived);
    }
};

template <class T, class Decode, ScaleKind kind, int kGroup, int kBatches>
__global__ void __launch_bounds__(kSomeRowsThreads, 1)
    multiply_some_rows(const __grid_constant__ SomeRowsProblem p) {
#if __CUDA_ARCH__ >= 900
    using Work = SomeRowsConsumer<T, Decode, kind, kGroup, kBatches>;
    allow_next_kernel();
    const SomeRowsPart part(p);
    // Likely, so that its code comes first: cold instructions delay the first copy.
    if (__builtin_expect(threadIdx.x >= kSomeRowsWarps * 32, 1)) {
        fewer_registers<kProducerRegisters>();
        const SomeRowsProducer<T, Decode, typename Work::Map, Work::kColumns> producer(p, part);
        producer.init_barriers();
        if (p.plan.cluster > 1) cluster_arrive_relaxed();
        named_barrier_arrive(3, kSomeRowsThreads);
        producer.run();
        if (p.plan.cluster > 1) cluster_wait();
        return;
    }
    more_registers<kConsumerRegisters>();
    Work work(p, part);
    work.prepare();
    wait_for_previous_kernel();
    work.run();
#endif
}

template <Codes codes, class T>
using SomeRowsDecode =
    std::conditional_t<std::is_same_v<T, F32>,
                       std::conditional_t<codes == Codes::kU4, U4Terms, Lut4Terms>,
                       std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>>;

template <class T, class Decode, ScaleKind kind, int kGroup, int kBatches>
Status launch_some_rows(const LinearArgs &args, const Launch &launch) {
    using Work = SomeRowsConsumer<T, Decode, kind, kGroup, kBatches>;
    SomeRowsProblem p = some_rows_problem(args);
    const SomeRowsCase c = some_rows_case(args);
    const SomeRowsCut cut =
        cut_some_rows(c, launch.device.multiprocessors, launch.device.shared_bytes,
                      kBatches > 2 ? kSomeRowsMany : c.most());
    p.plan = cut.plan;
    p.second_bytes = cut.second_bytes;
    p.stage = some_rows_stage(cut.plan.pairs, cut.plan.slices, Work::kColumns, cut.sizes);
    p.groups_magic = 0xffffffffu / uint32_t(p.stage.groups) + 1;
    p.pieces_magic = 0xffffffffu / (uint32_t(p.stage.groups) * Work::Map::kGroupScales / 16) + 1;
    p.slices_magic = uint32_t(ceil_div(65536, cut.plan.slices));
    p.cluster_shift = log2_of(cut.plan.cluster);
    Shape3 shape = {dim3(uint32_t(cut.plan.clusters * cut.plan.cluster),
                         uint32_t(ceil_div(p.m, int64_t{Work::kColumns}))),
                    kSomeRowsThreads};
    shape.shared_bytes = Work::Map::kRing - kSharedStart + uint32_t(p.stage.slots * p.stage.bytes) +
                         p.second_bytes + cut.received_bytes;
    shape.overlaps = true;
    shape.cluster = cut.plan.cluster;
    return launch_kernel(launch, "linear", multiply_some_rows<T, Decode, kind, kGroup, kBatches>,
                         shape, p);
}

template <class T, class Decode, ScaleKind kind, int kGroup>
Status run_batches(const LinearArgs &args, const Launch &launch) {
    // Else 16 rows would not fit the registers.
    if constexpr (std::is_same_v<T, F32>) {
        return launch_some_rows<T, Decode, kind, kGroup, 1>(args, launch);
    } else {
        return args.x.rows <= kSomeRowsBatch
                   ? launch_some_rows<T, Decode, kind, kGroup, 1>(args, launch)
                   : launch_some_rows<T, Decode, kind, kGroup, 2>(args, launch);
    }
}

// Calls run(kind). Looked-up codes in groups of 16 and 32: MXFP4, NVFP4.
template <bool kOwnCoded, class Run>
Status with_part_scales(const LinearArgs &args, const Launch &launch, const Run &run) {
    const ScalePlane &scale = args.w.scale;
    if constexpr (kOwnCoded) {
        return with_coded_kind(scale, *launch.device.tables, run);
    } else {
        return with_scale_kind(scale.format->id, run);
    }
}

template <class T, class Decode>
Status run_groups(const LinearArgs &args, const Launch &launch) {
    const int32_t shift = some_rows_case(args).group_shift();
    if (shift < 6) {
        constexpr bool kOwnCoded = Decode::kLut4 && !std::is_same_v<T, F32>;
        return with_part_scales<kOwnCoded>(args, launch, [&](auto kind) {
            return shift == 4 ? run_batches<T, Decode, kind.value, 16>(args, launch)
                              : run_batches<T, Decode, kind.value, 32>(args, launch);
        });
    }
    return with_scale_kind(args.w.scale.format->id, [&](auto kind) {
        return shift == 6 ? run_batches<T, Decode, kind.value, 64>(args, launch)
                          : run_batches<T, Decode, kind.value, 128>(args, launch);
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status SomeRows<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    return run_groups<T, SomeRowsDecode<codes, T>>(args, launch);
}

// 17 to 24 rows of x. Groups of 16 and 32 columns would not fit the registers.
template <Codes codes, qk_format x>
Status Rows24<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = SomeRowsDecode<codes, T>;
    constexpr int kBatches = kSomeRowsMany / kSomeRowsBatch;
    return with_scale_kind(args.w.scale.format->id, [&](auto kind) {
        return some_rows_case(args).group_shift() == 6
                   ? launch_some_rows<T, Decode, kind.value, 64, kBatches>(args, launch)
                   : launch_some_rows<T, Decode, kind.value, 128, kBatches>(args, launch);
    });
}

}  // namespace qk::cuda

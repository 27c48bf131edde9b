// Launches of the kernel for small batches (linear/sm90/some_rows/kernel.cuh), by the formats of a
// weight.
#pragma once
#include "cuda/linear/sm90/some_rows/instances.hpp"
#include "cuda/linear/sm90/some_rows/kernel.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

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
    if constexpr (std::is_same_v<T, F32> || kGroup == 16) {
        return launch_some_rows<T, Decode, kind, kGroup, 1>(args, launch);
    } else {
        return args.x.rows <= kSomeRowsBatch
                   ? launch_some_rows<T, Decode, kind, kGroup, 1>(args, launch)
                   : launch_some_rows<T, Decode, kind, kGroup, 2>(args, launch);
    }
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const LinearArgs &args, const Launch &launch) {
    switch (some_rows_case(args).group_shift()) {
        case 4: return run_batches<T, Decode, kind, 16>(args, launch);
        case 5: return run_batches<T, Decode, kind, 32>(args, launch);
        case 6: return run_batches<T, Decode, kind, 64>(args, launch);
        default: return run_batches<T, Decode, kind, 128>(args, launch);
    }
}

}  // namespace

template <Codes codes, qk_format x>
Status SomeRows<codes, x>::run(const LinearArgs &args, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = SomeRowsDecode<codes, T>;
    return with_scale_kind(args.w.scale.format->id, [&](auto kind) {
        return run_groups<T, Decode, kind.value>(args, launch);
    });
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

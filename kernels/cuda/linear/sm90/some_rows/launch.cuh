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
Status launch_slices(const LinearArgs &args, const Launch &launch) {
    using Work = SlicesConsumer<T, Decode, kind, kGroup, kBatches>;
    SlicesProblem p = slices_problem(args);
    const SlicesCase c = slices_case(args);
    const SlicesCut cut = cut_slices(c, launch.device.multiprocessors, launch.device.shared_bytes,
                                     kBatches > 2 ? kSlicesMany : c.most());
    p.plan = cut.plan;
    p.second_bytes = cut.second_bytes;
    p.stage = slices_stage(cut.plan.pairs, cut.plan.slices, Work::kColumns, cut.sizes);
    p.groups_magic = 0xffffffffu / uint32_t(p.stage.groups) + 1;
    p.pieces_magic = 0xffffffffu / (uint32_t(p.stage.groups) * Work::Map::kGroupScales / 16) + 1;
    p.slices_magic = uint32_t(ceil_div(65536, cut.plan.slices));
    p.cluster_shift = log2_of(cut.plan.cluster);
    Shape3 shape = {dim3(uint32_t(cut.plan.clusters * cut.plan.cluster),
                         uint32_t(ceil_div(p.m, int64_t{Work::kColumns}))),
                    kSlicesThreads};
    shape.shared_bytes = Work::Map::kRing - kSharedStart + uint32_t(p.stage.slots * p.stage.bytes) +
                         p.second_bytes + cut.received_bytes;
    shape.overlaps = true;
    shape.cluster = cut.plan.cluster;
    return launch_kernel(launch, "linear", multiply_slices<T, Decode, kind, kGroup, kBatches>,
                         shape, p);
}

template <class T, class Decode, ScaleKind kind, int kGroup>
Status run_batches(const LinearArgs &args, const Launch &launch) {
    // Else 16 rows would not fit the registers.
    if constexpr (std::is_same_v<T, F32> || kGroup == 16) {
        return launch_slices<T, Decode, kind, kGroup, 1>(args, launch);
    } else {
        return args.x.rows <= kSlicesBatch
                   ? launch_slices<T, Decode, kind, kGroup, 1>(args, launch)
                   : launch_slices<T, Decode, kind, kGroup, 2>(args, launch);
    }
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const LinearArgs &args, const Launch &launch) {
    switch (slices_case(args).group_shift()) {
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
    constexpr int kBatches = kSlicesMany / kSlicesBatch;
    return with_scale_kind(args.w.scale.format->id, [&](auto kind) {
        return slices_case(args).group_shift() == 6
                   ? launch_slices<T, Decode, kind.value, 64, kBatches>(args, launch)
                   : launch_slices<T, Decode, kind.value, 128, kBatches>(args, launch);
    });
}

}  // namespace qk::cuda

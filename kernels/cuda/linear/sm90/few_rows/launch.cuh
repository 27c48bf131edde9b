// Launches of the kernel for few rows of x, by the formats of a weight.
#pragma once
#include "cuda/linear/sm90/few_rows/instances.hpp"
#include "cuda/linear/sm90/few_rows/kernel.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

template <class Map>
FewRowsPlan plan_of(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    const int32_t processors = device.multiprocessors;
    const auto plan = [&](int32_t room) {
        return plan_few_rows(s.n, s.k / kFewRowsColumns, kFewRowsStep, processors, room);
    };
    const uint32_t fixed = Map::kSums + second_bytes(args.w, plan(1).rows);
    return plan((device.shared_bytes - int32_t(fixed)) / int32_t(Map::kStageSums));
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches>
Status launch_few_rows(const LinearArgs &args, const Launch &launch) {
    using Map = FewRowsMap<Decode, kind, kGroupTiles, kBatches>;
    const FewRowsPlan plan = plan_of<Map>(args, launch.device);
    const FewRowsProblem p = {tiles_problem(args), second_bytes(args.w, plan.rows), plan};
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
    return s.groups_per_row * 64 == s.k ? run_batches<T, Decode, kind, 1>(args, launch)
                                        : run_batches<T, Decode, kind, 2>(args, launch);
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

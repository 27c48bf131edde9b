// Launches of the kernel for one row of x, by the formats of a weight.
#pragma once
#include "cuda/decode/vector.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

inline uint32_t seconds_bytes(const VectorProblem &p) {
    return p.second == nullptr ? 0 : (p.last_second + 1) * 4;
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_vector(const VectorProblem &p, const Launch &launch) {
    using Warp = VectorWarp<T, Decode, kind, kGroupTiles>;
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kVectorThreads};
    shape.shared_bytes = Warp::kSums - kSharedStart + p.plan.sums_bytes + seconds_bytes(p);
    shape.overlaps = true;
    return launch_kernel(launch, "linear", multiply<T, Decode, kind, kGroupTiles>, shape, p);
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const VectorProblem &p, const Launch &launch) {
    return p.group_shift == 0 ? launch_vector<T, Decode, kind, 1>(p, launch)
                              : launch_vector<T, Decode, kind, 2>(p, launch);
}

template <class T, class Decode>
Status run_scales(qk_format scale, const VectorProblem &p, const Launch &launch) {
    return with_scale_kind(scale, [&](auto kind) {
        return run_groups<T, Decode, kind.value>(p, launch);
    });
}

}  // namespace
}  // namespace qk::cuda

// The kernel for one row of x (decode/vector.cuh) and its launches, by the formats of a weight.
#pragma once
#include "cuda/decode/vector.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kVectorThreads, XColumns<T, kGroupTiles == 0>::kBlocks)
    multiply(const __grid_constant__ VectorProblem p) {
#if __CUDA_ARCH__ >= 900
    allow_next_kernel();
    const Run rows = p.plan.rows.part(int32_t(blockIdx.x));
    VectorWarp<T, Decode, kind, kGroupTiles> work(p, rows);
    work.prepare(rows);
    __syncthreads();
    work.run(rows);
    if (work.count > 0) work.store_partial(work.unit, &work.sums);
    __syncthreads();
    work.store_rows(rows);
#endif
}

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
    if constexpr (!std::is_same_v<T, F32>) {
        if (p.group_shift < 0) return launch_vector<T, Decode, kind, 0>(p, launch);
    }
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

// Products of one x by several weights of one kind: the kernel for one row of x (launch.cuh), whose
// blocks have rows of one weight each.
//
//     block    |  0  1  2  ... |  86  ...  |  108  ...  |
//     weight           0             1            2
#pragma once
#include "cuda/linear/sm90/gemv/launch.cuh"
#include "cuda/linear/sm90/gemv/siblings_plan.hpp"

namespace qk::cuda {

namespace {

// The product of the block.
__device__ inline const GemvProblem &product_of(const GemvProblems &all) {
    int32_t number = 0;
#pragma unroll
    for (int32_t i = 1; i < kSiblings; ++i) {
        number += int32_t(blockIdx.x) >= all.each[i].plan.first_block;
    }
    return all.each[number];
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kGemvThreads, kGemvBlocks)
    multiply_siblings(const __grid_constant__ GemvProblems all) {
#if __CUDA_ARCH__ >= 900
    multiply_block<T, Decode, kind, kGroupTiles>(product_of(all));
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_siblings(const GemvProblems &all, const Launch &launch) {
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles>;
    Shape3 shape = {dim3(uint32_t(all.blocks)), kGemvThreads};
    for (const GemvProblem &p : all.each) {
        const uint32_t end = Warp::kSums - kSharedStart + p.plan.sums_bytes + seconds_bytes(p);
        if (end > shape.shared_bytes) shape.shared_bytes = end;
    }
    shape.overlaps = true;
    return launch_kernel(launch, "linear", multiply_siblings<T, Decode, kind, kGroupTiles>, shape,
                         all);
}

}  // namespace

template <Codes codes, qk_format x>
Status GemvSiblings<codes, x>::run(const GemvProblems &all, qk_format scale, const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, RingU4<T>, RingLut4<T>>;
    return with_scale_kind(scale, [&](auto kind) {
        return with_group_tiles(all.each[0].group_shift, [&](auto tiles) {
            return launch_siblings<T, Decode, kind.value, tiles.value>(all, launch);
        });
    });
}

}  // namespace qk::cuda

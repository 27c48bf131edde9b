// Launches the shapes of one type of x and one way to decode.
#pragma once
#include "cuda/gemm/warpgroup.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

template <class S>
Status run_shape(const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    constexpr uint32_t kStatic = 2048;  // barriers and the table of nested scales
    p->slots = S::slots(uint32_t(shared_memory(launch.device_index)) - kStatic);
    QK_TRY(describe_planes(args, S::kRowTiles, S::N, launch.error, p));
    Shape3 shape = {dim3(uint32_t(p->split), uint32_t(ceil_div(p->m, S::N)),
                         uint32_t(ceil_div(p->row_tiles, S::kRowTiles))),
                    S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->slots);
    shape.overlaps = true;
    shape.cluster = p->split;
    return launch_kernel(launch, "linear", multiply_middle<S>, shape, *p);
}

template <class T, class Decode, ScaleKind kind>
Status run_cut(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    constexpr bool pairs = Decode::kPairs;  // their table takes room from the ring
    constexpr int thin = pairs ? 2 : 1, turns = pairs ? 2 : 4;
    switch (cut) {
        case GemmCut::kThinNarrow:
            return run_shape<GemmShape<T, Decode, kind, 64, 1, 2, 4, false>>(args, launch, p);
        case GemmCut::kTallNarrow:
            return run_shape<GemmShape<T, Decode, kind, 64, 4, 1, 2, false>>(args, launch, p);
        case GemmCut::kThinWide:
            return run_shape<GemmShape<T, Decode, kind, 128, thin, turns, turns, true>>(args,
                                                                                       launch, p);
        default:
            return run_shape<GemmShape<T, Decode, kind, 128, 4, 1, pairs ? 1 : 2, true>>(
                args, launch, p);
    }
}

template <class T, class Decode>
Status run_scales(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    switch (p->w.scale_format) {
        case QK_FORMAT_F16:
            return run_cut<T, Decode, ScaleKind::kF16>(cut, args, launch, p);
        case QK_FORMAT_BF16:
            return run_cut<T, Decode, ScaleKind::kBF16>(cut, args, launch, p);
        case QK_FORMAT_F32:
            return run_cut<T, Decode, ScaleKind::kF32>(cut, args, launch, p);
        default:
            return run_cut<T, Decode, ScaleKind::kNested>(cut, args, launch, p);
    }
}

}  // namespace
}  // namespace qk::cuda

// Launches the shapes of one type of x and one way to decode.
#pragma once
#include "cuda/linear/sm90/gemm/large.cuh"
#include "cuda/linear/sm90/gemm/small.cuh"
#include "cuda/linear/sm90/gemm/source_8bit.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

template <class S>
Status describe(const LinearArgs &args, int32_t x_rows, ErrorText *error, GemmProblem *p) {
    if constexpr (S::kTransposed) return describe_planes(args, 4, S::R, x_rows, error, p);
    if constexpr (!S::kBytes) return describe_planes(args, S::kRowTiles, 1, x_rows, error, p);
    return describe_bytes(args, S::kBoxTiles * 64, S::kRows, x_rows, error, p);
}

template <class S>
Status run_narrow(const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    p->slots = S::slots(uint32_t(launch.device.shared_bytes) - kStaticShared);
    p->stage_x = uint32_t(p->m) * 128 * S::kTiles;
    QK_TRY(describe<S>(args, int32_t(p->m), launch.error, p));
    Shape3 shape = {dim3(uint32_t(p->split), uint32_t(ceil_div(p->row_tiles, S::kRowTiles))),
                    S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->slots);
    shape.overlaps = true;
    shape.cluster = p->split;
    return launch_kernel(launch, "linear", multiply_narrow<S>, shape, *p);
}

// Alone, a block takes one item after the other; a cluster has one, after those of its blocks.
template <class S>
Status run_wide(const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    p->slots = S::slots(uint32_t(launch.device.shared_bytes) - kStaticShared);
    QK_TRY(describe<S>(args, S::N, launch.error, p));
    p->x_blocks = int32_t(ceil_div(p->m, S::N));
    const int32_t row_blocks = int32_t(ceil_div(p->row_tiles, S::kRowTiles));
    if (p->split > 1 && p->cut_rows == 0) p->cut_rows = row_blocks;
    p->whole_rows = row_blocks - p->cut_rows;
    const int64_t whole = int64_t(p->x_blocks) * p->whole_rows;
    const int64_t cut = int64_t(p->x_blocks) * p->cut_rows * p->split;
    const int64_t at_once = launch.device.multiprocessors / p->split * p->split;
    const int32_t blocks = int32_t(max64(min64(whole, at_once), cut));
    p->step_rows = blocks / p->x_blocks;
    p->step_x = blocks % p->x_blocks;
    Shape3 shape = {dim3(uint32_t(blocks)), S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->slots);
    shape.overlaps = true;
    shape.cluster = p->split;
    return launch_kernel(launch, "linear", multiply_wide<S>, shape, *p);
}

template <class T, class Decode, ScaleKind kind>
Status run_cut(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    switch (cut) {
        case GemmCut::k64x64:
            // Where codes are looked up, products of 16 columns take longer in these blocks.
            if constexpr (OfBytes<Decode> && Decode::kEntryBytes == 0) {
                if (p->m <= 16) {
                    return run_narrow<GemmShape<T, Decode, kind, 16, 1, 2, 4>>(args, launch, p);
                }
            }
            if (p->m <= 32) {
                return run_narrow<GemmShape<T, Decode, kind, 32, 1, 2, 4>>(args, launch, p);
            }
            return run_narrow<GemmShape<T, Decode, kind, 64, 1, 2, 4>>(args, launch, p);
        case GemmCut::k256x64:
            if constexpr (OfBytes<Decode>) {  // tiles have kernels of their own to 16 rows of x
                if (p->m <= 16) {
                    return run_narrow<GemmShape<T, Decode, kind, 16, 4, 1, 2>>(args, launch, p);
                }
            }
            if (p->m <= 32) {
                return run_narrow<GemmShape<T, Decode, kind, 32, 4, 1, 2>>(args, launch, p);
            }
            return run_narrow<GemmShape<T, Decode, kind, 64, 4, 1, 2>>(args, launch, p);
        case GemmCut::k128x128:
            return run_wide<GemmShape<T, Decode, kind, 128, 2, 1, 2>>(args, launch, p);
        case GemmCut::k192x128:
            return run_wide<GemmShape<T, Decode, kind, 128, 3, 1, 2>>(args, launch, p);
        default: return run_wide<GemmShape<T, Decode, kind, 256, 2, 1, 1>>(args, launch, p);
    }
}

// Groups of 16 and 32.
template <class T, class Decode>
Status run_wide_small_groups(GemmCut cut, const LinearArgs &args, const Launch &launch,
                             GemmProblem *p) {
    constexpr ScaleKind any = ScaleKind::kNested;
    if (cut == GemmCut::k128x128) {
        return run_wide<GemmShape<T, Decode, any, 128, 2, 1, 2, true>>(args, launch, p);
    }
    return run_wide<GemmShape<T, Decode, any, 256, 2, 1, 1, true>>(args, launch, p);
}

template <class T, class Decode>
Status run_small_groups(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p) {
    constexpr ScaleKind any = ScaleKind::kNested;
    switch (cut) {
        case GemmCut::k128x64:
            if (p->m <= 32) {
                return run_wide<GemmShape<T, Decode, any, 32, 2, 1, 2, true>>(args, launch, p);
            }
            return run_wide<GemmShape<T, Decode, any, 64, 2, 1, 2, true>>(args, launch, p);
        case GemmCut::k256x64:
            if (p->m <= 32) {
                return run_wide<GemmShape<T, Decode, any, 32, 4, 1, 2, true>>(args, launch, p);
            }
            return run_wide<GemmShape<T, Decode, any, 64, 4, 1, 2, true>>(args, launch, p);
        default: break;
    }
    if constexpr (Decode::kLut4) {  // to 64 rows of x the table is faster
        if (p->w.format == QK_FORMAT_FP4_E2M1) {
            return run_wide_small_groups<T, DecodeE2m1<T>>(cut, args, launch, p);
        }
    }
    return run_wide_small_groups<T, Decode>(cut, args, launch, p);
}

}  // namespace

template <Codes codes, qk_format x>
Status Sm90Gemm<codes, x>::run(GemmCut cut, const LinearArgs &args, const Launch &launch,
                               GemmProblem *p) {
    using T = TypeOf<x>;
    if constexpr (codes == Codes::kS8) {
        return run_cut<T, DecodeS8<T>, ScaleKind::kF32>(cut, args, launch, p);
    } else if constexpr (codes == Codes::kE4m3) {
        return run_cut<T, DecodeE4m3<T>, ScaleKind::kF32>(cut, args, launch, p);
    } else if constexpr (codes == Codes::kLut8) {
        return run_cut<T, DecodeLut8<T>, ScaleKind::kF32>(cut, args, launch, p);
    } else {
        using Decode = std::conditional_t<codes == Codes::kU4, DecodeU4<T>, DecodeLut4<T>>;
        if (p->part_shift < 2) return run_small_groups<T, Decode>(cut, args, launch, p);
        return with_scale_kind(p->w.scale_format, [&](auto kind) {
            return run_cut<T, Decode, kind.value>(cut, args, launch, p);
        });
    }
}

}  // namespace qk::cuda

// The kernel for one row of x (linear/sm90/gemv/warp.cuh) and its launches, by the formats of a
// weight.
#pragma once
#include "cuda/linear/sm90/gemv/f32.cuh"
#include "cuda/linear/sm90/gemv/warp.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {

namespace {

// sum_of_partials, of up to 16, all asked for before the first is added. For a thread that has one
// such sum: those of experts, which have some, take longer with it.
__device__ inline float sum_at_once(uint32_t from, int32_t partials) {
    float terms[kGemvWarps];
#pragma unroll
    for (int32_t i = 0; i < kGemvWarps; ++i) {
        const uint32_t at = from + uint32_t(i) * kRowBytes;
        terms[i] = i < partials ? __uint_as_float(shared_load_4(at)) : 0;
    }
    float y = terms[0];
#pragma unroll
    for (int32_t i = 1; i < kGemvWarps; ++i) {
        if (i < partials) y = __fadd_rn(y, terms[i]);
    }
    return y;
}

// Partial sums of a row, in their order, to y.
template <class T, class Decode, class Warp>
__device__ void store_rows(const GemvProblem &p, Run rows) {
    const uint32_t at = threadIdx.x;
    if (int32_t(at) >= y_rows(p, rows)) return;
    const int64_t y_row = int64_t(rows.first) * 16 + at;
    const uint32_t from =
        Warp::kSums + at / 16 * uint32_t(p.plan.partials) * kRowBytes + at % 16 * 4;
    float y = sum_at_once(from, p.plan.partials);
    if constexpr (std::is_same_v<T, F32> && Decode::kLut4) y = __fmul_rn(y, p.entry_unit);
    if (p.bias != nullptr) y = __fadd_rn(y, __uint_as_float(shared_load_4(Warp::kBias + at * 4)));
    store_y<T>(p.y, y_row, y);
}

// A block's rows of y.
template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__device__ void multiply_block(const GemvProblem &p) {
    allow_next_kernel();
    const Run rows = OwnRows().of_block(p);
    GemvWarp<T, Decode, kind, kGroupTiles> work(p, rows);
    work.prepare(rows);
    __syncthreads();
    work.run(rows);
    __syncthreads();
    store_rows<T, Decode, decltype(work)>(p, OwnRows().of_block(p));
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
__global__ void __launch_bounds__(kGemvThreads, kGemvBlocks)
    multiply(const __grid_constant__ GemvProblem p) {
#if __CUDA_ARCH__ >= 900
    multiply_block<T, Decode, kind, kGroupTiles>(p);
#endif
}

template <class T, class Decode, ScaleKind kind, int kGroupTiles>
Status launch_gemv(const GemvProblem &p, const Launch &launch) {
    using Warp = GemvWarp<T, Decode, kind, kGroupTiles>;
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kGemvThreads};
    shape.shared_bytes = Warp::kSums - kSharedStart + p.plan.sums_bytes + seconds_bytes(p);
    shape.overlaps = true;
    GemvProblem problem = p;
    if constexpr (std::is_same_v<T, F32>) {
        // Units of x that a warp does not keep in registers are kept here, where there is room.
        const uint32_t behind = round_up(p.plan.sums_bytes + seconds_bytes(p), 16);
        const uint32_t end =
            Warp::kSums - kSharedStart + behind + uint32_t(p.plan.units) * Warp::X::kPlaceBytes;
        if (p.plan.unit_step != 0 && int64_t(end) <= launch.device.shared_bytes) {
            problem.x_places = behind;
            shape.shared_bytes = end;
        }
    }
    return launch_kernel(launch, "linear", multiply<T, Decode, kind, kGroupTiles>, shape, problem);
}

template <class T, class Decode, ScaleKind kind>
Status run_groups(const GemvProblem &p, const Launch &launch) {
    return with_group_tiles(p.group_shift, [&](auto tiles) {
        return launch_gemv<T, Decode, kind, tiles.value>(p, launch);
    });
}

template <class T, class Decode>
Status run_scales(qk_format scale, const GemvProblem &p, const Launch &launch) {
    return with_scale_kind(scale,
                           [&](auto kind) { return run_groups<T, Decode, kind.value>(p, launch); });
}

// x is two terms of 11 bits, in columns of their own; a value that a code looks up is one or two
// (tile/halves.cuh). A template: else the file of every instance would compile these kernels.
template <class T>
Status run_lut4_f32(GemvProblem p, qk_format scale, const Launch &launch) {
    return with_halves(p.entries, &p.entry_unit, [&](auto decode) {
        return run_scales<T, decltype(decode)>(scale, p, launch);
    });
}

}  // namespace

template <Codes codes, qk_format x>
Status Gemv<codes, x>::run(const GemvProblem &p, qk_format scale, const Launch &launch) {
    using T = TypeOf<x>;
    using Operand = std::conditional_t<x == QK_FORMAT_F32, F16, T>;
    if constexpr (codes == Codes::kU4) {
        return run_scales<T, RingU4<Operand>>(scale, p, launch);
    } else if constexpr (x == QK_FORMAT_F32) {
        return run_lut4_f32<T>(p, scale, launch);
    } else {
        return run_scales<T, RingLut4<Operand>>(scale, p, launch);
    }
}

}  // namespace qk::cuda

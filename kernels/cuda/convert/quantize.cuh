// What the kernels of the quantizer share: the problem, and which elements a group has.
#pragma once
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"
#include "format/group_scale.hpp"

namespace qk::cuda {

// SCALE, SCALE2 and SCALE_BIAS of nested scales. SCALE holds the sums of chunks meanwhile.
Status nest_scales(const QuantizeArgs &args, const Launch &launch);

namespace {

struct QuantizeProblem {
    WeightView w;
    QuantizeRule rule;
    qk_format from_format;
    const void *from;
    int half;  // which nibbles this launch stores
};

inline QuantizeProblem problem_of(const QuantizeArgs &args) {
    const Weight &w = args.to;
    return {view_of(w),
            {w.format->id, w.format->kind, w.format->largest, w.scale.format->id, w.zero != nullptr,
             w.geometry.group_size},
            args.from.format->id,
            args.from.data,
            0};
}

#if defined(__CUDACC__)

struct Span {
    int64_t first, last;  // elements, row-major
};

__device__ inline Span elements_of(const Geometry &s, GroupIndex group) {
    const int64_t first =
        s.flat ? group.group * s.group_size : group.row * s.k + group.group * s.group_size;
    const int64_t limit = s.flat ? s.n * s.k : (group.row + 1) * s.k;
    return {first, min64(first + s.group_size, limit)};
}

#endif

}  // namespace

}  // namespace qk::cuda

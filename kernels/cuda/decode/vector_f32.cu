// The kernel for one row of x (decode/vector.cuh) where x is f32: x is two terms of 11 bits, in
// columns of their own, an entry of a table one or two (decode/vector_terms.cuh).
#include <string.h>

#include "base/half.hpp"
#include "cuda/decode/vector_run.cuh"

namespace qk::cuda {

namespace {

// Whether `entries` are halves once multiplied by `factor`; f32's own rounding of them aside.
bool are_halves(const float (&entries)[16], float factor, float (&halves)[16]) {
    for (int i = 0; i < 16; ++i) {
        const float product = entries[i] * factor;
        halves[i] = f32_from_f16(f16_from_f32(product));
        const float error = halves[i] - product, size = product < 0 ? -product : product;
        if ((error < 0 ? -error : error) > size * 0x1p-24f) return false;
    }
    return true;
}

}  // namespace

Status run_vector_f32(const LinearArgs &args, const void *problem, const Launch &launch) {
    VectorProblem p = *static_cast<const VectorProblem *>(problem);
    const qk_format scale = args.w.scale.format->id;
    if (args.w.layout->id == kLayoutTiles) {
        return run_scales<F32, RingNumbers<F16>>(scale, p, launch);
    }
    float halves[16];
    for (const float factor : {1.0f, 12.0f}) {  // FP4 has twelfths
        if (!are_halves(p.entries, factor, halves)) continue;
        memcpy(p.entries, halves, sizeof(halves));
        p.entry_unit = 1 / factor;
        return run_scales<F32, RingTable<F16>>(scale, p, launch);
    }
    p.entry_unit = 1;
    return run_scales<F32, SplitTable>(scale, p, launch);
}

}  // namespace qk::cuda

// The kernel for one row of x (decode/vector.cuh) where x is f32: x is three bfloat16 terms that
// add up to it exactly, an entry of a table too, so products and sums are those of f32.
#include "cuda/decode/vector_run.cuh"

namespace qk::cuda {

Status run_vector_f32(const LinearArgs &args, const void *problem, const Launch &launch) {
    const auto &p = *static_cast<const VectorProblem *>(problem);
    const qk_format scale = args.w.scale.format->id;
    return args.w.layout->id == kLayoutTiles ? run_scales<F32, NumberTerms>(scale, p, launch)
                                             : run_scales<F32, TableTerms>(scale, p, launch);
}

}  // namespace qk::cuda

// Small batches: f32 x, both kinds of codes.
#include "cuda/decode/slices_launch.cuh"
#include "cuda/decode/slices_run.hpp"

namespace qk::cuda {

Status run_slices_f32(const LinearArgs &args, const Launch &launch) {
    return args.w.layout->id == kLayoutTiles ? run_scales<F32, NumberTerms>(args, launch)
                                             : run_scales<F32, TableTerms>(args, launch);
}

}  // namespace qk::cuda

// Look-up codes, f16 x.
#include "cuda/gemm/run.cuh"

namespace qk::cuda {

Status run_gemm_pairs_f16(GemmCut cut, const LinearArgs &args, const Launch &launch,
                          GemmProblem *p) {
    return run_scales<F16, DecodePairs<F16>>(cut, args, launch, p);
}

}  // namespace qk::cuda

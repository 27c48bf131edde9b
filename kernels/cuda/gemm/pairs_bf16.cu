// Look-up codes, bf16 x.
#include "cuda/gemm/run.cuh"

namespace qk::cuda {

Status run_gemm_pairs_bf16(GemmCut cut, const LinearArgs &args, const Launch &launch,
                           GemmProblem *p) {
    return run_scales<BF16, DecodePairs<BF16>>(cut, args, launch, p);
}

}  // namespace qk::cuda

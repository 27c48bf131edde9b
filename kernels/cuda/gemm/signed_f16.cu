// Signed 8-bit codes, f16 x.
#include "cuda/gemm/bytes.cuh"
#include "cuda/gemm/run.cuh"

namespace qk::cuda {

Status run_gemm_signed_f16(GemmCut cut, const LinearArgs &args, const Launch &launch,
                           GemmProblem *p) {
    return run_cut<F16, DecodeSigned<F16>, ScaleKind::kF32>(cut, args, launch, p);
}

}  // namespace qk::cuda

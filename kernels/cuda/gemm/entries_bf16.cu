// 8-bit codes that a table is looked up by, bf16 x.
#include "cuda/gemm/bytes.cuh"
#include "cuda/gemm/run.cuh"

namespace qk::cuda {

Status run_gemm_entries_bf16(GemmCut cut, const LinearArgs &args, const Launch &launch,
                             GemmProblem *p) {
    return run_cut<BF16, DecodeEntries<BF16>, ScaleKind::kF32>(cut, args, launch, p);
}

}  // namespace qk::cuda

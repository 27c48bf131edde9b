// The matrix kernel on mma.sync: codes that are looked up, bf16 x.
#include "cuda/middle/run.cuh"

namespace qk::cuda {

Status run_middle_pairs_bf16(const Launch &launch, MiddleProblem *p) {
    return run_middle<BF16, Pairs<BF16>>(launch, p);
}

}  // namespace qk::cuda

// The matrix kernel on mma.sync: codes that are numbers, bf16 x.
#include "cuda/middle/run.cuh"

namespace qk::cuda {

Status run_middle_numbers_bf16(const Launch &launch, MiddleProblem *p) {
    return run_middle<BF16, Numbers<BF16>>(launch, p);
}

}  // namespace qk::cuda

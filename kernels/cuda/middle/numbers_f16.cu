// The matrix kernel on mma.sync: codes that are numbers, f16 x.
#include "cuda/middle/run.cuh"

namespace qk::cuda {

Status run_middle_numbers_f16(const Launch &launch, MiddleProblem *p) {
    return run_middle<F16, Numbers<F16>>(launch, p);
}

}  // namespace qk::cuda

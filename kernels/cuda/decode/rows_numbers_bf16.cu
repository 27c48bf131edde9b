// Small batches: U4 codes, bf16 x.
#include "cuda/decode/rows_kernel.cuh"
#include "cuda/decode/rows_run.hpp"

namespace qk::cuda {

Status run_rows_numbers_bf16(const LinearArgs &args, const Launch &launch) {
    return run_scales<BF16, RingNumbers<BF16>>(args, launch);
}

}  // namespace qk::cuda

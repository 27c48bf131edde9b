// Small batches: U4 codes, bf16 x.
#include "cuda/decode/slices_launch.cuh"
#include "cuda/decode/slices_run.hpp"

namespace qk::cuda {

Status run_slices_numbers_bf16(const LinearArgs &args, const Launch &launch) {
    return run_scales<BF16, RingNumbers<BF16>>(args, launch);
}

}  // namespace qk::cuda

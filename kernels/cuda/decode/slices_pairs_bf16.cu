// Small batches: codes that are looked up, bf16 x.
#include "cuda/decode/slices_launch.cuh"
#include "cuda/decode/slices_run.hpp"

namespace qk::cuda {

Status run_slices_pairs_bf16(const LinearArgs &args, const Launch &launch) {
    return run_scales<BF16, RingTable<BF16>>(args, launch);
}

}  // namespace qk::cuda

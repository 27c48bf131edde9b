// 17 to 24 rows of x: codes that are looked up, bf16 x.
#include "cuda/decode/slices_launch.cuh"
#include "cuda/decode/slices_run.hpp"

namespace qk::cuda {

Status run_many_pairs_bf16(const LinearArgs &args, const Launch &launch) {
    return run_many<BF16, RingTable<BF16>>(args, launch);
}

}  // namespace qk::cuda

// 17 to 24 rows of x: codes that are looked up, f16 x.
#include "cuda/decode/slices_launch.cuh"
#include "cuda/decode/slices_run.hpp"

namespace qk::cuda {

Status run_many_pairs_f16(const LinearArgs &args, const Launch &launch) {
    return run_many<F16, RingTable<F16>>(args, launch);
}

}  // namespace qk::cuda

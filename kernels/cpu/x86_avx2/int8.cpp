// int8 mode, AVX2.
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx2/int8_lanes.hpp"
#include "cpu/vector/nested_gathering.hpp"

#include "cpu/vector/int8_gemv.hpp"
#include "cpu/x86_avx2/int8_tile.hpp"

#include "cpu/vector/int8_batch.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Avx2 = {"avx2 int8", can_run_int8_gemv, int8_x_bytes,
                                            run_int8_gemv};
const Kernel<LinearArgs> kLinearInt8Avx2Batch = {"avx2 int8 batch", can_run_int8_batch,
                                                 int8_tiles_bytes, run_int8_batch};

}  // namespace qk::cpu

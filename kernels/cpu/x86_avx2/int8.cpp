// int8 mode, AVX2.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx2/int8_tile.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Avx2 = {"avx2 int8", can_run_int8_gemv<Avx2Int8>,
                                            int8_x_bytes<Avx2Int8>, run_int8_gemv<Avx2Int8>};
const Kernel<LinearArgs> kLinearInt8Avx2Batch = {"avx2 int8 batch", can_run_int8_batch<Avx2Int8>,
                                                 int8_tiles_bytes<Avx2Int8>,
                                                 run_int8_batch<Avx2Int8>};

}  // namespace qk::cpu

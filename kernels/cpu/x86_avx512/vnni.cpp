// int8 mode on machines with VNNI and VBMI.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/int8_rows.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Vnni = {"avx512 vnni int8", can_run_int8_gemv<Avx512Int8>,
                                            int8_x_bytes<Avx512Int8>, run_int8_gemv<Avx512Int8>};
const Kernel<LinearArgs> kLinearInt8VnniBatch = {
    "avx512 vnni int8 batch", can_run_int8_batch<Avx512Int8>, int8_tiles_bytes<Avx512Int8>,
    run_int8_batch<Avx512Int8>};
const Kernel<LinearArgs> kLinearInt8VnniRows = {"avx512 vnni int8 rows", can_run_int8_s8,
                                                int8_columns_bytes, run_int8_s8};

}  // namespace qk::cpu

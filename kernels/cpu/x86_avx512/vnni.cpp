// int8 mode on machines with VNNI and VBMI.
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/int8_lanes.hpp"
#include "cpu/x86_avx512/rows8.hpp"

#include "cpu/vector/int8_gemv.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

#include "cpu/vector/int8_batch.hpp"
#include "cpu/x86_avx512/int8_rows.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Vnni = {"avx512 vnni int8", can_run_int8_gemv, int8_x_bytes,
                                            run_int8_gemv};
const Kernel<LinearArgs> kLinearInt8VnniBatch = {"avx512 vnni int8 batch", can_run_int8_batch,
                                                 int8_tiles_bytes, run_int8_batch};
const Kernel<LinearArgs> kLinearInt8VnniRows = {"avx512 vnni int8 rows", can_run_int8_signed,
                                                int8_columns_bytes, run_int8_signed};

}  // namespace qk::cpu

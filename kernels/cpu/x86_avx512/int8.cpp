// int8 mode on machines with VNNI and VBMI.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/int8_stored.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Vnni = linear_kernel<row_of("avx512 vnni int8")>(
    run_int8_rows_or_blocks<Avx512Int8, Avx512StoredDots>, int8_x_bytes<Avx512Int8>);
const Kernel<LinearArgs> kLinearInt8VnniBatch = linear_kernel<row_of("avx512 vnni int8 batch")>(
    run_int8_batch<Avx512Int8Nibbles>, int8_tiles_bytes<Avx512Int8Nibbles>);
const Kernel<LinearArgs> kLinearInt8VnniBytesBatch =
    linear_kernel<row_of("avx512 vnni int8 bytes batch")>(run_int8_batch<Avx512Int8Bytes>,
                                                          int8_tiles_bytes<Avx512Int8Bytes>);

}  // namespace qk::cpu

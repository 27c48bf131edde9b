// int8 mode, AVX-VNNI.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx2/int8_rows.hpp"
#include "cpu/x86_avx2/int8_stored.hpp"
#include "cpu/x86_avx2/int8_tile.hpp"
#include "cpu/x86_avx_vnni/int8_dots.hpp"

namespace qk::cpu {

using AvxVnniInt8 = YmmInt8<AvxVnniProducts>;
using AvxVnniInt8Bytes = YmmInt8Bytes<AvxVnniProducts>;
using AvxVnniRowsOfBytes = YmmRowsOfBytes<AvxVnniProducts>;

const Kernel<LinearArgs> kLinearInt8AvxVnni = linear_kernel<row_of("avx vnni int8")>(
    run_int8_rows_or_blocks<AvxVnniDots, YmmStoredDots<AvxVnniDots>>, int8_x_bytes<AvxVnniDots>);
const Kernel<LinearArgs> kLinearInt8AvxVnniBatch = linear_kernel<row_of("avx vnni int8 batch")>(
    run_int8_batch<AvxVnniInt8>, int8_tiles_bytes<AvxVnniInt8>);
const Kernel<LinearArgs> kLinearInt8AvxVnniBytesBatch =
    linear_kernel<row_of("avx vnni int8 bytes batch")>(run_int8_batch<AvxVnniInt8Bytes>,
                                                       int8_tiles_bytes<AvxVnniInt8Bytes>);
const Kernel<LinearArgs> kLinearInt8AvxVnniRows = linear_kernel<row_of("avx vnni int8 rows")>(
    run_int8_rows_of_bytes<AvxVnniRowsOfBytes>, int8_x_bytes<AvxVnniRowsOfBytes>);

}  // namespace qk::cpu

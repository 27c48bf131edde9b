// int8 mode, AVX2.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx2/int8_rows.hpp"
#include "cpu/x86_avx2/int8_stored.hpp"
#include "cpu/x86_avx2/int8_tile.hpp"

namespace qk::cpu {

using Avx2Int8 = YmmInt8<Avx2Products>;
using Avx2Int8Bytes = YmmInt8Bytes<Avx2Products>;
using Avx2RowsOfBytes = YmmRowsOfBytes<Avx2Products>;

const Kernel<LinearArgs> kLinearInt8Avx2 = linear_kernel<row_of("avx2 int8")>(
    run_int8_rows_or_blocks<Avx2Dots, YmmStoredDots<Avx2Dots>>, int8_x_bytes<Avx2Dots>);
const Kernel<LinearArgs> kLinearInt8Avx2Batch =
    linear_kernel<row_of("avx2 int8 batch")>(run_int8_batch<Avx2Int8>, int8_tiles_bytes<Avx2Int8>);
const Kernel<LinearArgs> kLinearInt8Avx2BytesBatch = linear_kernel<row_of("avx2 int8 bytes batch")>(
    run_int8_batch<Avx2Int8Bytes>, int8_tiles_bytes<Avx2Int8Bytes>);
const Kernel<LinearArgs> kLinearInt8Avx2Rows = linear_kernel<row_of("avx2 int8 rows")>(
    run_int8_rows_of_bytes<Avx2RowsOfBytes>, int8_x_bytes<Avx2RowsOfBytes>);

}  // namespace qk::cpu

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

// Packed blocks, rows as they are stored where they start at whole bytes, or gathered ones.
static Status run_int8_rows_or_blocks(const LinearArgs &args, const Launch &launch) {
    const int64_t pad = run_pad(args.w);
    if (pad == 0 || round_up(args.w.geometry.k, pad) % 2 != 0) {
        return run_int8_gemv<Avx2Dots>(args, launch);
    }
    const bool high_first = args.w.layout->id == QK_LAYOUT_ROW_HIGH;
    return run_int8_gemv_on<Avx2StoredDots>(high_first
                                                ? quantize_x<Avx2StoredHighDots>(args, launch)
                                                : quantize_x<Avx2StoredDots>(args, launch),
                                            args, launch);
}

const Kernel<LinearArgs> kLinearInt8Avx2 =
    linear_kernel<row_of("avx2 int8")>(run_int8_rows_or_blocks, int8_x_bytes<Avx2Dots>);
const Kernel<LinearArgs> kLinearInt8Avx2Batch =
    linear_kernel<row_of("avx2 int8 batch")>(run_int8_batch<Avx2Int8>, int8_tiles_bytes<Avx2Int8>);
const Kernel<LinearArgs> kLinearInt8Avx2BytesBatch = linear_kernel<row_of("avx2 int8 bytes batch")>(
    run_int8_batch<Avx2Int8Bytes>, int8_tiles_bytes<Avx2Int8Bytes>);
const Kernel<LinearArgs> kLinearInt8Avx2Rows = linear_kernel<row_of("avx2 int8 rows")>(
    run_int8_rows_of_bytes<Avx2RowsOfBytes>, int8_x_bytes<Avx2RowsOfBytes>);

}  // namespace qk::cpu

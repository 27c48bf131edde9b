// One row of x over packed U4 codes with SDOT, and int8 mode.
#include "cpu/arm_dotprod/int8_tile.hpp"
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/arm_neon/int8_rows.hpp"
#include "cpu/arm_neon/integer_groups.hpp"
#include "cpu/arm_neon/integers.hpp"
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Neon>(args)) return kLinearGemvNeon.run(args, launch);
    static_assert(NeonIntegerRows::kTogether == kLaneRows);
    run_blocks<NeonIntegerRows>(args, launch, launch.device);
    return QK_OK;
}

Status run_small_groups(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Neon>(args)) return kLinearGemvNeon.run(args, launch);
    run_groups<Neon, NeonGroups>(args, launch);
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersDotprod = linear_kernel<row_of("dotprod integers")>(run);
const Kernel<LinearArgs> kLinearGroupsDotprod =
    linear_kernel<row_of("dotprod groups")>(run_small_groups);

const Kernel<LinearArgs> kLinearInt8Dotprod =
    linear_kernel<row_of("dotprod int8")>(run_int8_gemv<NeonInt8>, int8_x_bytes<NeonInt8>);
const Kernel<LinearArgs> kLinearInt8DotprodRows = linear_kernel<row_of("dotprod int8 rows")>(
    run_int8_rows_of_bytes<NeonRowsOfBytes>, int8_x_bytes<NeonRowsOfBytes>);
const Kernel<LinearArgs> kLinearInt8DotprodBatch = linear_kernel<row_of("dotprod int8 batch")>(
    run_int8_batch<DotprodInt8>, int8_tiles_bytes<DotprodInt8>);
const Kernel<LinearArgs> kLinearInt8DotprodBytesBatch =
    linear_kernel<row_of("dotprod int8 bytes batch")>(run_int8_batch<DotprodInt8Bytes>,
                                                      int8_tiles_bytes<DotprodInt8Bytes>);

}  // namespace qk::cpu

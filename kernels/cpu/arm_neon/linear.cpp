// Products in floats and int8 mode, NEON.
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/arm_neon/int8_rows.hpp"
#include "cpu/arm_neon/integer_groups.hpp"
#include "cpu/arm_neon/integers.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/linear/transposed.hpp"
#include "cpu/linear/transposed_few.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon =
    linear_kernel<row_of("neon gemv")>(run_gemv<Neon, NeonIntegerRows, NeonGroups>);
const Kernel<LinearArgs> kLinearBatchNeon = linear_kernel<row_of("neon batch")>(run_batch<Neon>);
const Kernel<LinearArgs> kLinearSingleNeon = linear_kernel<row_of("neon single")>(run_single<Neon>);
const Kernel<LinearArgs> kTransposedNeon =
    transposed_kernel<transposed_row_of("neon transposed")>(run_transposed<Neon>);
const Kernel<LinearArgs> kTransposedFewNeon =
    transposed_kernel<transposed_row_of("neon transposed few rows")>(run_transposed_few<Neon>);

const Kernel<LinearArgs> kLinearInt8Neon =
    linear_kernel<row_of("neon int8")>(run_int8_gemv<NeonInt8>, int8_x_bytes<NeonInt8>);
const Kernel<LinearArgs> kLinearInt8NeonRows = linear_kernel<row_of("neon int8 rows")>(
    run_int8_rows_of_bytes<NeonRowsOfBytes>, int8_x_bytes<NeonRowsOfBytes>);

}  // namespace qk::cpu

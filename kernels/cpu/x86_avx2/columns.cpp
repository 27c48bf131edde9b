// Products of 4-bit codes that are stored by columns, AVX2.
#include "cpu/x86_avx2/columns.hpp"

#include "cpu/int8/columns.hpp"
#include "cpu/linear/columns.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx2/int8_columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsAvx2 =
    linear_kernel<row_of("avx2 columns")>(run_columns<Avx2Columns>);
const Kernel<LinearArgs> kLinearLoweredColumnsAvx2 =
    linear_kernel<row_of("avx2 columns with minima")>(
        run_lowered_columns<Avx2Columns, kLinearSingleAvx2>);
const Kernel<LinearArgs> kLinearInt8ColumnsAvx2 = linear_kernel<row_of("avx2 int8 columns")>(
    run_int8_columns<Avx2Int8Columns>, int8_columns_bytes<Avx2Int8Columns>);

}  // namespace qk::cpu

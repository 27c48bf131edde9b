// Products in floats, RISC-V's vectors.
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/linear/transposed.hpp"
#include "cpu/linear/transposed_few.hpp"
#include "cpu/riscv_rvv/integer_groups.hpp"
#include "cpu/riscv_rvv/integers.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvRvv =
    linear_kernel<row_of("rvv gemv")>(run_gemv<Rvv, RvvIntegerRows, RvvGroups>);
const Kernel<LinearArgs> kLinearSingleRvv = linear_kernel<row_of("rvv single")>(run_single<Rvv>);
const Kernel<LinearArgs> kLinearBatchRvv = linear_kernel<row_of("rvv batch")>(run_batch<Rvv>);
const Kernel<LinearArgs> kTransposedRvv =
    transposed_kernel<transposed_row_of("rvv transposed")>(run_transposed<Rvv>);
const Kernel<LinearArgs> kTransposedFewRvv =
    transposed_kernel<transposed_row_of("rvv transposed few rows")>(run_transposed_few<Rvv>);

}  // namespace qk::cpu

// Products in floats, AVX2.
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv_groups.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/linear/transposed.hpp"
#include "cpu/linear/transposed_few.hpp"
#include "cpu/linear/ymm_groups.hpp"
#include "cpu/x86_avx2/few_rows.hpp"
#include "cpu/x86_avx2/integers.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx2 =
    linear_kernel<row_of("avx2 gemv")>(run_gemv<Avx2, Avx2IntegerRows, YmmGroups, YmmStoredGroups>);
const Kernel<LinearArgs> kLinearFewAvx2 =
    linear_kernel<row_of("avx2 few rows")>(run_few<Avx2, Avx2FewRows>);
const Kernel<LinearArgs> kLinearBatchAvx2 = linear_kernel<row_of("avx2 batch")>(run_batch<Avx2>);
const Kernel<LinearArgs> kLinearSingleAvx2 = linear_kernel<row_of("avx2 single")>(run_single<Avx2>);
const Kernel<LinearArgs> kTransposedAvx2 =
    transposed_kernel<transposed_row_of("avx2 transposed")>(run_transposed<Avx2>);
const Kernel<LinearArgs> kTransposedFewAvx2 =
    transposed_kernel<transposed_row_of("avx2 transposed few rows")>(run_transposed_few<Avx2>);

}  // namespace qk::cpu

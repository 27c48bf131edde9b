// Products in floats, AVX-512, those of the float GRU too.
#include "cpu/gru/float.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv_groups.hpp"
#include "cpu/linear/gemv_integers.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/linear/transposed.hpp"
#include "cpu/linear/transposed_few.hpp"
#include "cpu/linear/ymm_groups.hpp"
#include "cpu/x86_avx512/few_rows.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx512 = linear_kernel<row_of("avx512 gemv")>(
    run_gemv<Avx512, RowsOfIntegers<Avx512, FloatProducts<Avx512>>, YmmGroups>);
const Kernel<LinearArgs> kLinearFewAvx512 =
    linear_kernel<row_of("avx512 few rows")>(run_few<Avx512, Avx512FewRows>);
const Kernel<LinearArgs> kLinearBatchAvx512 =
    linear_kernel<row_of("avx512 batch")>(run_batch<Avx512>);
const Kernel<LinearArgs> kLinearSingleAvx512 =
    linear_kernel<row_of("avx512 single")>(run_single<Avx512>);
const Kernel<LinearArgs> kTransposedAvx512 =
    transposed_kernel<transposed_row_of("avx512 transposed")>(run_transposed<Avx512>);
const Kernel<LinearArgs> kTransposedFewAvx512 =
    transposed_kernel<transposed_row_of("avx512 transposed few rows")>(run_transposed_few<Avx512>);

const Kernel<FloatProductArgs> kFloatProductAvx512 = float_product_kernel<Avx512>("avx512");
const Kernel<FloatGatesArgs> kFloatGatesAvx512 = float_gates_kernel<Avx512>("avx512");

}  // namespace qk::cpu

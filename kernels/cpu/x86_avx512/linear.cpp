// Products in floats, AVX-512.
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/few_rows.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/gemv_integers.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx512 = linear_kernel<LinearKernel::kGemvAvx512>(
    run_gemv<Avx512, RowsOfIntegers<Avx512, FloatProducts<Avx512>>>);
const Kernel<LinearArgs> kLinearFewAvx512 =
    linear_kernel<LinearKernel::kFewAvx512>(run_few<Avx512>);
const Kernel<LinearArgs> kLinearBatchAvx512 =
    linear_kernel<LinearKernel::kBatchAvx512>(run_batch<Avx512>);
const Kernel<LinearArgs> kLinearSingleAvx512 =
    linear_kernel<LinearKernel::kSingleAvx512>(run_single<Avx512>);

}  // namespace qk::cpu

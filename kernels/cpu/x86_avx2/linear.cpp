// Products in floats, AVX2.
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/x86_avx2/integers.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx2 =
    linear_kernel<LinearKernel::kGemvAvx2>(run_gemv<Avx2, Avx2IntegerRows>);
const Kernel<LinearArgs> kLinearBatchAvx2 =
    linear_kernel<LinearKernel::kBatchAvx2>(run_batch<Avx2>);
const Kernel<LinearArgs> kLinearSingleAvx2 =
    linear_kernel<LinearKernel::kSingleAvx2>(run_single<Avx2>);

}  // namespace qk::cpu

// Products in floats, NEON.
#include "cpu/arm_neon/integers.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/linear/single.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon =
    linear_kernel<LinearKernel::kGemvNeon>(run_gemv<Neon, NeonIntegerRows>);
const Kernel<LinearArgs> kLinearBatchNeon =
    linear_kernel<LinearKernel::kBatchNeon>(run_batch<Neon>);
const Kernel<LinearArgs> kLinearSingleNeon =
    linear_kernel<LinearKernel::kSingleNeon>(run_single<Neon>);

}  // namespace qk::cpu

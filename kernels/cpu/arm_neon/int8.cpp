// int8 mode on Arm: neon.
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Neon =
    linear_kernel<LinearKernel::kInt8Neon>(run_int8_gemv<NeonInt8>, int8_x_bytes<NeonInt8>);

}  // namespace qk::cpu

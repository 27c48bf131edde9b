// One row of x over packed U4 codes with SDOT, and int8 mode.
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/arm_neon/integers.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Neon>(args)) return kLinearGemvNeon.run(args, launch);
    run_blocks<NeonIntegerRows>(args, launch, launch.device);
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersDotprod = linear_kernel<row_of("dotprod integers")>(run);

const Kernel<LinearArgs> kLinearInt8Dotprod =
    linear_kernel<row_of("dotprod int8")>(run_int8_gemv<NeonInt8>, int8_x_bytes<NeonInt8>);

}  // namespace qk::cpu

// One row of x over packed U4 codes with SDOT.
#include "cpu/arm_neon/integers.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Neon>(args)) return kLinearGemvNeon.run(args, launch);
    run_rows<NeonIntegerRows>(args, launch);
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersDotprod =
    linear_kernel<LinearKernel::kIntegersDotprod>(run);

}  // namespace qk::cpu

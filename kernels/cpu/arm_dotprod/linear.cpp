// One row of x over packed U4 codes with SDOT.
#include "cpu/arm_neon/integers.hpp"
#include "cpu/lists.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Neon>(args)) return kLinearGemvNeon.run(args, launch);
    run_rows<NeonIntegerRows>(args, launch);
    return QK_OK;
}

bool can_run(const LinearArgs &args, const Device &device) {
    return has(device, kNeonDot) && args.w.layout != nullptr && args.w.layout->id == kLayoutRows8 &&
           may_sum_integers(args);
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersDotprod = {"dotprod integers", can_run, nullptr, run};

}  // namespace qk::cpu

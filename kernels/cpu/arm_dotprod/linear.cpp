// One row of x over packed U4 codes with SDOT.
#include "cpu/arm_neon/lanes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/nested_gathering.hpp"

#include "cpu/arm_neon/integers.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers(args)) return kLinearGemvNeon.run(args, launch);
    run_rows<IntegerRows>(args, launch);
    return QK_OK;
}

bool can_run(const LinearArgs &args, const Device &device) {
    return has(device, kNeonDot) && args.w.layout != nullptr && args.w.layout->id == kLayoutRows8 &&
           may_sum_integers(args);
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersDotprod = {"dotprod integers", can_run, nullptr, run};

}  // namespace qk::cpu

#include "cpu/arm_neon/codes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/nested.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener() {
    return widen_gathering;
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/linear_batch.hpp"
#include "cpu/vector/linear_gemv.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon = {"neon gemv", can_run_gemv, nullptr, run_gemv};
const Kernel<LinearArgs> kLinearBatchNeon = {"neon batch", can_run_batch, nullptr, run_batch};

}  // namespace qk::cpu

#include "cpu/arm_neon/codes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/defaults.hpp"

#include "cpu/arm_neon/integers.hpp"
#include "cpu/vector/linear_batch.hpp"
#include "cpu/vector/linear_gemv.hpp"
#include "cpu/vector/linear_single.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon = {"neon gemv", can_run_gemv, nullptr, run_gemv};
const Kernel<LinearArgs> kLinearBatchNeon = {"neon batch", can_run_batch, nullptr, run_batch};
const Kernel<LinearArgs> kLinearSingleNeon = {"neon single", can_run_single, nullptr, run_single};

}  // namespace qk::cpu

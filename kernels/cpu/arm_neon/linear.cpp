#include "cpu/arm_neon/lanes.hpp"
#include "cpu/vector/linear_gemv.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon = {"neon gemv", can_run_gemv, nullptr, run_gemv};

}  // namespace qk::cpu

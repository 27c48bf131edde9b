#include "cpu/x86_avx2/lanes.hpp"
#include "cpu/vector/linear_gemv.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx2 = {"avx2 gemv", can_run_gemv, nullptr, run_gemv};

}  // namespace qk::cpu

#include "cpu/x86_avx512/lanes.hpp"
#include "cpu/vector/linear_gemv.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx512 = {"avx512 gemv", can_run_gemv, nullptr, run_gemv};

}  // namespace qk::cpu

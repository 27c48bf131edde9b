#include "cpu/x86_avx2/codes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/defaults.hpp"

#include "cpu/x86_avx2/integers.hpp"
#include "cpu/vector/linear_batch.hpp"
#include "cpu/vector/linear_gemv.hpp"
#include "cpu/vector/linear_single.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx2 = {"avx2 gemv", can_run_gemv, nullptr, run_gemv};
const Kernel<LinearArgs> kLinearBatchAvx2 = {"avx2 batch", can_run_batch, nullptr, run_batch};
const Kernel<LinearArgs> kLinearSingleAvx2 = {"avx2 single", can_run_single, nullptr, run_single};

}  // namespace qk::cpu

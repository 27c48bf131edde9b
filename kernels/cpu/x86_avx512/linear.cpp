#include "cpu/x86_avx512/codes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/nested_widener.hpp"
#include "cpu/x86_avx512/turn.hpp"

#include "cpu/vector/gemv_integers.hpp"

namespace qk::cpu {
namespace {

using IntegerRows = RowsOfIntegers<FloatProducts>;

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/linear_batch.hpp"
#include "cpu/vector/linear_gemv.hpp"
#include "cpu/vector/linear_single.hpp"
#include "cpu/x86_avx512/few_rows.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx512 = {"avx512 gemv", can_run_gemv, nullptr, run_gemv};
const Kernel<LinearArgs> kLinearFewAvx512 = {"avx512 few rows", can_run_few, nullptr, run_few};
const Kernel<LinearArgs> kLinearBatchAvx512 = {"avx512 batch", can_run_batch, nullptr, run_batch};
const Kernel<LinearArgs> kLinearSingleAvx512 = {"avx512 single", can_run_single, nullptr,
                                                run_single};

}  // namespace qk::cpu

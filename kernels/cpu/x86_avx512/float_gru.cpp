// Sixteen lanes.
#include "cpu/features.hpp"
#include "cpu/lists.hpp"

namespace qk::cpu {
namespace {

typedef float FloatLanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
constexpr uint32_t kFloatFeature = kAvx512;
constexpr int64_t kWidePanels = 8, kTallPanels = 4, kTallRows = 4;

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/float_gru.hpp"

namespace qk::cpu {

const Kernel<FloatProductArgs> kFloatProductAvx512 = {"avx512", can_run_product, nullptr,
                                                      run_product};
const Kernel<FloatGatesArgs> kFloatGatesAvx512 = {"avx512", can_run_gates, nullptr, run_gates};

}  // namespace qk::cpu

// Four lanes: what x86-64 and aarch64 have at least, and what a compiler makes of it elsewhere.
#include "cpu/lists.hpp"

namespace qk::cpu {
namespace {

typedef float FloatLanes __attribute__((vector_size(16)));
typedef int32_t IntLanes __attribute__((vector_size(16)));
constexpr uint32_t kFloatFeature = 0;
constexpr int64_t kWidePanels = 2, kTallPanels = 1, kTallRows = 2;

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/float_gru.hpp"

namespace qk::cpu {

const Kernel<FloatProductArgs> kFloatProductGeneric = {"generic", can_run_product, nullptr,
                                                       run_product};
const Kernel<FloatGatesArgs> kFloatGatesGeneric = {"generic", can_run_gates, nullptr, run_gates};

}  // namespace qk::cpu

// int8 mode on Arm: neon.
#include "cpu/arm_neon/lanes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/int8_neon.hpp"
#include "cpu/vector/nested_gathering.hpp"

namespace qk::cpu {
namespace {

constexpr uint32_t kInt8Feature = kNeon;

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/int8_gemv.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Neon = {"neon int8", can_run_int8_gemv, int8_x_bytes,
                                            run_int8_gemv};

}  // namespace qk::cpu

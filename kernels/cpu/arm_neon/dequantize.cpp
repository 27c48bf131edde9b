#include "cpu/arm_neon/codes.hpp"
#include "cpu/vector/dequantize.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeNeon = {"neon", can_run_dequantize, nullptr,
                                              run_dequantize};

}  // namespace qk::cpu

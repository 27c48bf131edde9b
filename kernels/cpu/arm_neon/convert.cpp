#include "cpu/arm_neon/codes.hpp"
#include "cpu/vector/defaults.hpp"

#include "cpu/vector/dequantize.hpp"
#include "cpu/vector/repack.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeNeon = {"neon", can_run_dequantize, nullptr,
                                                run_dequantize};
const Kernel<RepackArgs> kRepackNeon = {"neon", can_run_repack, nullptr, run_repack};

}  // namespace qk::cpu

#include "cpu/arm_neon/isa.hpp"
#include "cpu/convert/dequantize.hpp"
#include "cpu/convert/repack.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeNeon = {"neon", can_run_dequantize<Neon>, nullptr,
                                                run_dequantize<Neon>};
const Kernel<RepackArgs> kRepackNeon = {"neon", can_run_repack<Neon>, nullptr, run_repack<Neon>};

}  // namespace qk::cpu

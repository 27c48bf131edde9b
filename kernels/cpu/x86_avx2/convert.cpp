#include "cpu/x86_avx2/codes.hpp"
#include "cpu/vector/defaults.hpp"

#include "cpu/vector/dequantize.hpp"
#include "cpu/vector/repack.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx2 = {"avx2", can_run_dequantize, nullptr,
                                                run_dequantize};
const Kernel<RepackArgs> kRepackAvx2 = {"avx2", can_run_repack, nullptr, run_repack};

}  // namespace qk::cpu

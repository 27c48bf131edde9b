#include "cpu/x86_avx2/codes.hpp"
#include "cpu/vector/dequantize.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx2 = {"avx2", can_run_dequantize, nullptr,
                                              run_dequantize};

}  // namespace qk::cpu

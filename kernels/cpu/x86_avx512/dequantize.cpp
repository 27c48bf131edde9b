#include "cpu/x86_avx512/codes.hpp"
#include "cpu/vector/dequantize.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx512 = {"avx512", can_run_dequantize, nullptr,
                                              run_dequantize};

}  // namespace qk::cpu

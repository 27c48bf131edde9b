#include "cpu/convert/dequantize.hpp"
#include "cpu/convert/repack.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx512 = {"avx512", can_run_dequantize<Avx512>, nullptr,
                                                  run_dequantize<Avx512>};
const Kernel<RepackArgs> kRepackAvx512 = {"avx512", can_run_repack<Avx512>, nullptr,
                                          run_repack<Avx512>};

}  // namespace qk::cpu

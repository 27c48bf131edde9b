#include "cpu/convert/dequantize.hpp"
#include "cpu/convert/quantize.hpp"
#include "cpu/convert/repack.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx2/isa.hpp"
#include "cpu/x86_avx2/quantizer.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx2 = {"avx2", can_run_dequantize<Avx2>, nullptr,
                                                run_dequantize<Avx2>};
const Kernel<QuantizeArgs> kQuantizeAvx2 = {"avx2", can_run_quantize<Avx2Quantizer>, nullptr,
                                            run_quantize<Avx2Quantizer>};
const Kernel<RepackArgs> kRepackAvx2 = {"avx2", can_run_repack<Avx2>, nullptr, run_repack<Avx2>};

}  // namespace qk::cpu

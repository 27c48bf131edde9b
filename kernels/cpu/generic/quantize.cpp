// The portable quantizer.
#include "cpu/convert/quantize.hpp"
#include "cpu/convert/quantize_plain.hpp"
#include "cpu/generic/isa.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {

using Quantizer = PlainQuantizer<Generic>;
const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run_quantize<Quantizer>, nullptr,
                                               run_quantize<Quantizer>};

}  // namespace qk::cpu

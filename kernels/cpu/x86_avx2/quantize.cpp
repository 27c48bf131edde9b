// The quantizer, compiled to AVX2.
#include "cpu/x86_avx2/lanes.hpp"
#include "cpu/features.hpp"
#include "cpu/quantize_plain.hpp"
#include "cpu/vector/quantize_widen.hpp"

#include "cpu/quantize_all.hpp"

namespace qk::cpu {
namespace {

bool can_run_quantize(const QuantizeArgs &, const Device &device) { return has(device, kAvx2); }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeAvx2 = {"avx2", can_run_quantize, nullptr, run_quantize};

}  // namespace qk::cpu

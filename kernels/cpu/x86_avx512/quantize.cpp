// The quantizer, compiled to AVX-512.
#include "cpu/x86_avx512/lanes.hpp"
#include "cpu/features.hpp"
#include "cpu/vector/quantize_widen.hpp"
#include "cpu/x86_avx512/quantize_lanes.hpp"

#include "cpu/quantize_all.hpp"

namespace qk::cpu {
namespace {

bool can_run_quantize(const QuantizeArgs &, const Device &device) { return has(device, kAvx512); }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeAvx512 = {"avx512", can_run_quantize, nullptr, run_quantize};

}  // namespace qk::cpu

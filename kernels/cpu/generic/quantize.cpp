// The quantizer as every machine runs it.
#include "cpu/quantize_all.hpp"

namespace qk::cpu {
namespace {

bool can_run_quantize(const QuantizeArgs &, int32_t) { return true; }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run_quantize, nullptr, run_quantize};

}  // namespace qk::cpu

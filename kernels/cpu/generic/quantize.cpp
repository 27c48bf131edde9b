// The quantizer as every machine runs it.
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

constexpr int kVectorBytes = 16;

inline void widen_run(const Dense &from, int64_t first, int64_t count, float *x) {
    load_floats(from.format->id, from.data, first, count, x);
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/quantize_plain.hpp"

#include "cpu/quantize_all.hpp"

namespace qk::cpu {
namespace {

bool can_run_quantize(const QuantizeArgs &, const Device &) { return true; }

}  // namespace

const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run_quantize, nullptr, run_quantize};

}  // namespace qk::cpu

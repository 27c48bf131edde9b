// How the quantizer reads 16-bit numbers. Included after an instruction set's lanes.hpp.
#pragma once
#include "cpu/vector/widen.hpp"

namespace qk::cpu {
namespace {

inline void widen_run(const Dense &from, int64_t first, int64_t count, float *x) {
    widen_x(from, first, count, x);
}

}  // namespace
}  // namespace qk::cpu

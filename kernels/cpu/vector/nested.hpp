// Nested scales of 8 rows: how a run of groups is widened. Included after an instruction set's
// lanes.hpp.
#pragma once
#include "cpu/nested.hpp"

namespace qk::cpu {
namespace {

// One look-up in memory each.
void widen_gathering(const NestedCode &code, const char *from, int64_t count, const float *second,
                     float bias, float (*to)[8]) {
    for (int64_t i = 0; i < count; ++i) {
        widen_nested(from + i * 8, code.value, second, bias, to[i]);
    }
}

}  // namespace
}  // namespace qk::cpu

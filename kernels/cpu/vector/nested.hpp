// Nested scales of 8 rows: how a run of groups is widened. Included after an instruction set's
// lanes.hpp.
#pragma once
#include "base/checked.hpp"
#include "cpu/nested.hpp"

namespace qk::cpu {
namespace {

// One look-up in memory each.
int64_t widen_gathering(const NestedCode &code, const char *from, int64_t count,
                        const SecondRun &run, float bias, float (*to)[8]) {
    const SecondScales second = second_scales(run, count);
    int64_t unchanged = second.count;  // groups for which every row has its first second scale
    for (const int32_t change : second.change) unchanged = min64(change, unchanged);
    int64_t i = 0;
    for (; i < unchanged; ++i) {
        widen_nested(from + i * 8, code.value, second.first, bias, to[i]);
    }
    for (; i < second.count; ++i) {
        float of_group[8];
        for (int64_t row = 0; row < 8; ++row) {
            of_group[row] = i < second.change[row] ? second.first[row] : second.last[row];
        }
        widen_nested(from + i * 8, code.value, of_group, bias, to[i]);
    }
    return second.count;
}

}  // namespace
}  // namespace qk::cpu

// LUT8's codes, 16 look-ups at a time. Included after an instruction set's codes.hpp.
#pragma once
#include "cpu/nested.hpp"

namespace qk::cpu {
namespace {

inline void look_up_wide(const NestedCode &code, const uint8_t *from, int64_t count, float scale,
                         float *to) {
    const WideTable table(code.value);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        store_f32(to + i, mul(table.look_up(from + i), splat(scale)));
    }
    for (; i < count; ++i) to[i] = code.value[from[i]] * scale;
}

}  // namespace
}  // namespace qk::cpu

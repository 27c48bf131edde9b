// Look-ups of bytes in tables of 256 floats: nested scales of 8 rows and LUT8's codes.
#pragma once
#include "base/checked.hpp"
#include "cpu/isa.hpp"

namespace qk::cpu {

// One look-up in memory each.
template <class Isa>
int64_t widen_gathering(const NestedCode &code, const char *from, int64_t count,
                        const SecondRun &run, float bias, float (*to)[8]) {
    const SecondScales second = second_scales(run, count);
    int64_t unchanged = second.count;  // groups for which every row has its first second scale
    for (const int32_t change : second.change) unchanged = min64(change, unchanged);
    int64_t i = 0;
    for (; i < unchanged; ++i) {
        Isa::widen_nested(from + i * 8, code.value, second.first, bias, to[i]);
    }
    for (; i < second.count; ++i) {
        float of_group[8];
        for (int64_t row = 0; row < 8; ++row) {
            of_group[row] = i < second.change[row] ? second.first[row] : second.last[row];
        }
        Isa::widen_nested(from + i * 8, code.value, of_group, bias, to[i]);
    }
    return second.count;
}

// The fastest that this machine has.
template <class Isa>
WidenNested pick_nested_widener(const Device &device) {
    const WidenNested wider = Isa::nested_widener(device);
    return wider != nullptr ? wider : widen_gathering<Isa>;
}

// LUT8's codes, 16 look-ups at a time.
template <class Isa>
inline void look_up_wide(const NestedCode &code, const uint8_t *from, int64_t count, float scale,
                         float *to) {
    const typename Isa::WideTable table(code.value);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        Isa::store_f32(to + i, Isa::mul(table.look_up(from + i), Isa::splat(scale)));
    }
    for (; i < count; ++i) to[i] = code.value[from[i]] * scale;
}

template <class Isa>
LookUpBytes pick_byte_lookup(const Device &device) {
    const LookUpBytes wider = Isa::byte_lookup(device);
    return wider != nullptr ? wider : look_up_wide<Isa>;
}

}  // namespace qk::cpu

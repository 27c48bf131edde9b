// Runs of f32, f16 or bf16 as f32, 16 at a time.
#pragma once
#include "cpu/access.hpp"
#include "cpu/isa.hpp"

namespace qk::cpu {

// Columns first .. first + count of x, counted from its first element, as f32: 16 at a time,
// `stride` floats apart, the last ones followed by zeros.
template <class Isa>
QK_NOINLINE void widen_x(const Dense &x, int64_t first, int64_t count, float *to,
                         int64_t stride = 16) {
    const int64_t size = x.format->bits / 8;
    const char *const from = static_cast<const char *>(x.data) + first * size;
    const auto widen = [=](auto load) QK_INLINE {
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            Isa::store_f32(to + i / 16 * stride, load(from + i * size, Isa::first_lanes(16)));
        }
        if (i == count) return;
        Isa::store_f32(to + i / 16 * stride, load(from + i * size, Isa::first_lanes(count - i)));
    };
    switch (x.format->id) {
        case QK_FORMAT_F16:
            return widen([](const char *at, Mask<Isa> m) { return Isa::load_f16(at, m); });
        case QK_FORMAT_BF16:
            return widen([](const char *at, Mask<Isa> m) { return Isa::load_bf16(at, m); });
        default: return widen([](const char *at, Mask<Isa> m) { return Isa::load_f32(at, m); });
    }
}

}  // namespace qk::cpu

// Overflow-safe arithmetic on sizes that come from outside.
#pragma once
#include <stdint.h>

#include "base/hd.hpp"

namespace qk {

// A product or sum that stays invalid once it has left [0, 2^63).
struct Checked {
    int64_t value;
    bool ok;

    constexpr Checked(int64_t v) : value(v), ok(v >= 0) {}
    constexpr Checked operator*(Checked other) const {
        Checked result(0);
        result.ok = ok && other.ok && !__builtin_mul_overflow(value, other.value, &result.value);
        return result;
    }
    constexpr Checked operator+(Checked other) const {
        Checked result(0);
        result.ok = ok && other.ok && !__builtin_add_overflow(value, other.value, &result.value);
        return result;
    }
};

QK_HD static constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
QK_HD static constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
QK_HD static constexpr int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
QK_HD static constexpr int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

constexpr Checked checked_ceil_div(Checked a, int64_t b) {
    a.value = ceil_div(a.value, b);
    return a;
}

// Whether two ranges of bytes overlap. Adds no addresses, so the end of the address space is safe.
static inline bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
    if (a_bytes == 0 || b_bytes == 0) return false;
    const uintptr_t first = uintptr_t(a), second = uintptr_t(b);
    return first <= second ? second - first < uintptr_t(a_bytes)
                           : first - second < uintptr_t(b_bytes);
}

}  // namespace qk

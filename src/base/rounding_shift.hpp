// Division by a power of two with ties to even, in integers alone.
#pragma once
#include <stdint.h>

#include "base/hd.hpp"

namespace qk {

// x * 2^-n rounded half to even (what rint does). n <= 0 multiplies. Callers keep |x| and
// |x| * 2^-n below 2^62; from n = 63 on every such x rounds to 0.
QK_HD static constexpr int64_t rounding_shift(int64_t x, int32_t n) {
    if (n <= 0) return x * (int64_t{1} << -n);
    if (n >= 63) return 0;
    return (x + (int64_t{1} << (n - 1)) - 1 + ((x >> n) & 1)) >> n;
}

#if defined(__ARM_FEATURE_DSP) && defined(__thumb2__)
// Carries: the lowest bit of x >> n, to move a tie that would go up to an odd number below the
// half; then the half. Shifts up to 62 give 0 without another comparison.
static inline int32_t rounding_shift_right(int32_t x, int32_t n) {
    int32_t carry = 0;
    __asm__(
        "asrs %1, %0, %2\n\tlsrs %1, %1, #1\n\tsbc %0, %0, #0\n\t"
        "asrs %0, %0, %2\n\tadc %0, %0, #0"
        : "+r"(x), "=&r"(carry)
        : "r"(n)
        : "cc");
    return x;
}
#else
QK_HD static constexpr int32_t rounding_shift_right(int32_t x, int32_t n) {
    return n >= 31 ? 0 : (x + (int32_t{1} << (n - 1)) - 1 + ((x >> n) & 1)) >> n;
}
#endif

// The same in 32 bits, for cores without 64-bit registers: |x| and |x| * 2^-n below 2^30.
QK_HD static constexpr int32_t rounding_shift(int32_t x, int32_t n) {
    return n <= 0 ? x * (int32_t{1} << -n) : rounding_shift_right(x, n);
}

}  // namespace qk

// Sums of products for the three rows (u, r, n) of one unit, walked together so that each code of
// the vector is loaded once. Every instruction set forms the same exact integers.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "gru/cell.hpp"

namespace qk::gru {

template <class Weight, class Code, class Sum>
static inline void dot_rest(const Weight *row, ptrdiff_t gate_stride, const Code *vector,
                            int32_t count, Sum sums[3]) {
    const Weight *u = row, *r = row + gate_stride, *n = row + 2 * gate_stride;
    Sum sum_u = sums[kUpdate], sum_r = sums[kReset], sum_n = sums[kNew];
    for (int32_t k = 0; k < count; ++k) {
        const int32_t value = vector[k];  // products of 16-bit codes are at most 2^30
        sum_u += value * u[k];
        sum_r += value * r[k];
        sum_n += value * n[k];
    }
    sums[kUpdate] = sum_u;
    sums[kReset] = sum_r;
    sums[kNew] = sum_n;
}

template <class Weight, class Code, class Sum>
static inline void dot_three(const Weight *row, ptrdiff_t gate_stride, const Code *vector,
                             int32_t count, Sum sums[3]) {
    sums[kUpdate] = sums[kReset] = sums[kNew] = 0;
#if defined(__thumb__) && !defined(__thumb2__)
    if (sizeof(Sum) == 8) {  // eight registers hold what one row needs, not what three do
        for (int32_t gate = 0; gate < 3; ++gate, row += gate_stride) {
            Sum sum = 0;
            for (int32_t k = 0; k < count; ++k) sum += int32_t{vector[k]} * row[k];
            sums[gate] = sum;
        }
        return;
    }
#endif
    dot_rest(row, gate_stride, vector, count, sums);
}

#if defined(__ARM_FEATURE_DSP)

// The compiler would spend an instruction on each pointer.
static inline int32_t next_four(const int8_t *&codes) {
    int32_t word;
    __asm__ volatile("ldr %0, [%1], #4" : "=r"(word), "+r"(codes) : : "memory");
    return word;
}
// Bytes 0 and 2, or 1 and 3, as two 16-bit halves.
static inline int32_t even_codes(int32_t word) { return __builtin_arm_sxtb16(word); }
static inline int32_t odd_codes(int32_t word) {
    int32_t halves;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(word));
    return halves;
}

static inline int32_t add_four(int32_t sum, int32_t even, int32_t odd, int32_t four) {
    return __builtin_arm_smlad(odd, odd_codes(four),
                               __builtin_arm_smlad(even, even_codes(four), sum));
}

__attribute__((noinline, unused)) static void dot_three(const int8_t *u, ptrdiff_t gate_stride,
                                                        const int8_t *vector, int32_t count,
                                                        int32_t sums[3]) {
    const int8_t *r = u + gate_stride, *n = r + gate_stride;
    int32_t sum_u = 0, sum_r = 0, sum_n = 0;
    const auto add_fours = [&]() __attribute__((always_inline)) {
        const int32_t four = next_four(vector);
        const int32_t even = even_codes(four), odd = odd_codes(four);
        sum_u = add_four(sum_u, even, odd, next_four(u));
        sum_r = add_four(sum_r, even, odd, next_four(r));
        sum_n = add_four(sum_n, even, odd, next_four(n));
    };
    const int8_t *const end = vector + (count & ~7);
    while (vector != end) {
        add_fours();
        add_fours();
    }
    sums[kUpdate] = sum_u;
    sums[kReset] = sum_r;
    sums[kNew] = sum_n;
    if ((count & 7) != 0) dot_rest(u, gate_stride, vector, count & 7, sums);
}

#endif

template <class Sum>
static inline void dot_three(int32_t weight_bytes, int32_t code_bytes, const void *weights,
                             int32_t unit, ptrdiff_t gate_stride, const void *vector, int32_t count,
                             Sum sums[3]) {
    const ptrdiff_t first = ptrdiff_t(unit) * count;
    const int8_t *w8 = static_cast<const int8_t *>(weights) + first;
    const int8_t *v8 = static_cast<const int8_t *>(vector);
    const int16_t *w16 = static_cast<const int16_t *>(weights) + first;
    const int16_t *v16 = static_cast<const int16_t *>(vector);
    if (weight_bytes == 1 && code_bytes == 1) dot_three(w8, gate_stride, v8, count, sums);
    if (weight_bytes == 1 && code_bytes == 2) dot_three(w8, gate_stride, v16, count, sums);
    if (weight_bytes == 2 && code_bytes == 1) dot_three(w16, gate_stride, v8, count, sums);
    if (weight_bytes == 2 && code_bytes == 2) dot_three(w16, gate_stride, v16, count, sums);
}

}  // namespace qk::gru

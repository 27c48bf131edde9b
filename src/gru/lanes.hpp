// Helium (Armv8.1-M MVE, integers alone), an instruction a function: four 32-bit lanes. Written out
// so that every compiler takes these instructions and no header of its own is needed.
#pragma once
#if defined(__ARM_FEATURE_MVE)
#include <stdint.h>

namespace qk::gru {

typedef int32_t Lanes __attribute__((vector_size(16)));

#define QK_LANES(name, instruction)                                        \
    static inline Lanes name(Lanes a, Lanes b) {                           \
        Lanes to;                                                          \
        __asm__(instruction " %q0, %q1, %q2" : "=w"(to) : "w"(a), "w"(b)); \
        return to;                                                         \
    }                                                                      \
    static_assert(true)
QK_LANES(and_not, "vbic");
QK_LANES(shift_left, "vshl.s32");  // by b, to the right where b is negative
QK_LANES(shift_left_rounded, "vrshl.s32");
#undef QK_LANES

static inline Lanes same_lanes(int32_t value) {
    Lanes to;
    __asm__("vdup.32 %q0, %1" : "=w"(to) : "r"(value));
    return to;
}
// One block, so that the compiler loads both bounds with one instruction.
static inline Lanes clamp_lanes(Lanes a, int32_t low, int32_t high) {
    Lanes bound;
    __asm__(
        "vdup.32 %q1, %2\n\tvmax.s32 %q0, %q0, %q1\n\t"
        "vdup.32 %q1, %3\n\tvmin.s32 %q0, %q0, %q1"
        : "+w"(a), "=&w"(bound)
        : "r"(low), "r"(high));
    return a;
}
static inline Lanes four_lanes(int32_t a, int32_t b, int32_t c, int32_t d) {
    Lanes to;
    __asm__("vmov %q0[2], %q0[0], %1, %3\n\tvmov %q0[3], %q0[1], %2, %4"
            : "=&w"(to)
            : "r"(a), "r"(b), "r"(c), "r"(d));
    return to;
}
static inline Lanes lanes_add(Lanes a, int32_t b) {
    Lanes to;
    __asm__("vadd.i32 %q0, %q1, %2" : "=w"(to) : "w"(a), "r"(b));
    return to;
}
static inline Lanes lanes_subtract(Lanes a, int32_t b) {
    Lanes to;
    __asm__("vsub.i32 %q0, %q1, %2" : "=w"(to) : "w"(a), "r"(b));
    return to;
}
static inline Lanes lanes_times(Lanes a, int32_t b) {
    Lanes to;
    __asm__("vmul.i32 %q0, %q1, %2" : "=w"(to) : "w"(a), "r"(b));
    return to;
}
static inline Lanes lanes_add_times(Lanes sum, Lanes a, int32_t b) {
    __asm__("vmla.u32 %q0, %q1, %2" : "+w"(sum) : "w"(a), "r"(b));
    return sum;
}
static inline Lanes shift_left(Lanes a, int32_t n) {
    __asm__("vshl.s32 %q0, %1" : "+w"(a) : "r"(n));
    return a;
}
static inline Lanes shift_left_rounded(Lanes a, int32_t n) {
    __asm__("vrshl.s32 %q0, %1" : "+w"(a) : "r"(n));
    return a;
}
static inline Lanes sign_bits(Lanes a) {
    Lanes to;
    __asm__("vshr.u32 %q0, %q1, #31" : "=w"(to) : "w"(a));
    return to;
}
static inline Lanes gather(const int32_t *table, Lanes index) {
    Lanes to;
    __asm__ volatile("vldrw.u32 %q0, [%1, %q2, uxtw #2]"
                     : "=&w"(to)
                     : "r"(table), "w"(index)
                     : "memory");
    return to;
}

static inline Lanes load_lanes(const int8_t *codes) {
    Lanes to;
    __asm__ volatile("vldrb.s32 %q0, [%1]" : "=w"(to) : "l"(codes) : "memory");
    return to;
}

// The first `count` lanes; the others are 0, are not stored. (The predicate register has no name in
// a list of clobbers, and nothing else here makes the compiler use it.)
#define QK_LANES(type, load, store)                                          \
    static inline Lanes load_lanes(const type *codes, int32_t count) {       \
        Lanes to;                                                            \
        __asm__ volatile("vctp.32 %2\n\tvpst\n\t" load " %q0, [%1]"          \
                         : "=w"(to)                                          \
                         : "l"(codes), "r"(count)                            \
                         : "memory");                                        \
        return to;                                                           \
    }                                                                        \
    static inline void store_lanes(type *codes, int32_t count, Lanes from) { \
        __asm__ volatile("vctp.32 %2\n\tvpst\n\t" store " %q1, [%0]"         \
                         :                                                   \
                         : "l"(codes), "w"(from), "r"(count)                 \
                         : "memory");                                        \
    }                                                                        \
    static_assert(true)
QK_LANES(int8_t, "vldrbt.s32", "vstrbt.32");
QK_LANES(int16_t, "vldrht.s32", "vstrht.32");
#undef QK_LANES

// sum[i] += codes * row i of weights, rows `next` bytes apart; any count of at least 1: the loop
// masks what is beyond it.
static inline void add_dots(const int8_t *codes, const int8_t *weights, int32_t next, int32_t count,
                            int32_t sum[4]) {
    const int8_t *a = weights, *b = a + next, *c = b + next, *d = c + next;
    int32_t sum_a = sum[0], sum_b = sum[1], sum_c = sum[2], sum_d = sum[3];
    __asm__ volatile(
        "dlstp.8 lr, %[count]\n"
        "1:\n\t"
        "vldrb.8 q0, [%[codes]], #16\n\t"
        "vldrb.8 q1, [%[a]], #16\n\tvmladava.s8 %[sum_a], q0, q1\n\t"
        "vldrb.8 q2, [%[b]], #16\n\tvmladava.s8 %[sum_b], q0, q2\n\t"
        "vldrb.8 q1, [%[c]], #16\n\tvmladava.s8 %[sum_c], q0, q1\n\t"
        "vldrb.8 q2, [%[d]], #16\n\tvmladava.s8 %[sum_d], q0, q2\n\t"
        "letp lr, 1b"
        : [codes] "+r"(codes), [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d),
          [sum_a] "+Te"(sum_a), [sum_b] "+Te"(sum_b), [sum_c] "+Te"(sum_c), [sum_d] "+Te"(sum_d)
        : [count] "r"(count)
        : "q0", "q1", "q2", "lr", "memory");
    sum[0] = sum_a, sum[1] = sum_b, sum[2] = sum_c, sum[3] = sum_d;
}

}  // namespace qk::gru
#endif

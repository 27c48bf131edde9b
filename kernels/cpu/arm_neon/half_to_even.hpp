// x * 2^by, halves to even. NEON's shift rounds halves up, so where x * 2^by is even, one is taken
// from x before: `one` is 1, or 0 where `by` is not negative and nothing is rounded.
#pragma once
#include <arm_neon.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

QK_INLINE inline int32x4_t half_to_even(int32x4_t x, int32x4_t by, int32x4_t one) {
    return vrshlq_s32(vsubq_s32(x, vbicq_s32(one, vshlq_s32(x, by))), by);
}
QK_INLINE inline int64x2_t half_to_even(int64x2_t x, int64x2_t by, int64x2_t one) {
    return vrshlq_s64(vsubq_s64(x, vbicq_s64(one, vshlq_s64(x, by))), by);
}

}  // namespace
}  // namespace qk::cpu

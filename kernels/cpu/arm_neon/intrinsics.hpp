// NEON's intrinsics; for 32-bit processors also those of aarch64 that the kernels of integers use,
// each made of two. There is none of floats: vectors take subnormal numbers for zeros there.
#pragma once
#include <arm_neon.h>
#include <stdint.h>

#if !defined(__aarch64__)

namespace qk::cpu {
namespace {

// Of the high halves.
inline int16x8_t vmovl_high_s8(int8x16_t a) { return vmovl_s8(vget_high_s8(a)); }
inline int32x4_t vmovl_high_s16(int16x8_t a) { return vmovl_s16(vget_high_s16(a)); }
inline uint16x8_t vmovl_high_u8(uint8x16_t a) { return vmovl_u8(vget_high_u8(a)); }
inline int16x8_t vmull_high_s8(int8x16_t a, int8x16_t b) {
    return vmull_s8(vget_high_s8(a), vget_high_s8(b));
}
inline int16x8_t vmlal_high_s8(int16x8_t c, int8x16_t a, int8x16_t b) {
    return vmlal_s8(c, vget_high_s8(a), vget_high_s8(b));
}
inline int32x4_t vmlal_high_s16(int32x4_t c, int16x8_t a, int16x8_t b) {
    return vmlal_s16(c, vget_high_s16(a), vget_high_s16(b));
}

// Sums of neighbours.
inline int32x4_t vpaddq_s32(int32x4_t a, int32x4_t b) {
    return vcombine_s32(vpadd_s32(vget_low_s32(a), vget_high_s32(a)),
                        vpadd_s32(vget_low_s32(b), vget_high_s32(b)));
}
inline int16x8_t vpaddq_s16(int16x8_t a, int16x8_t b) {
    return vcombine_s16(vpadd_s16(vget_low_s16(a), vget_high_s16(a)),
                        vpadd_s16(vget_low_s16(b), vget_high_s16(b)));
}

// Every other lane of two registers, and pairs of lanes.
inline int32x4_t vuzp1q_s32(int32x4_t a, int32x4_t b) { return vuzpq_s32(a, b).val[0]; }
inline int32x4_t vuzp2q_s32(int32x4_t a, int32x4_t b) { return vuzpq_s32(a, b).val[1]; }
inline int32x4_t vtrn1q_s32(int32x4_t a, int32x4_t b) { return vtrnq_s32(a, b).val[0]; }
inline int32x4_t vtrn2q_s32(int32x4_t a, int32x4_t b) { return vtrnq_s32(a, b).val[1]; }
inline int64x2_t vtrn1q_s64(int64x2_t a, int64x2_t b) {
    return vcombine_s64(vget_low_s64(a), vget_low_s64(b));
}
inline int64x2_t vtrn2q_s64(int64x2_t a, int64x2_t b) {
    return vcombine_s64(vget_high_s64(a), vget_high_s64(b));
}

// Look-ups of 16 bytes in 16.
inline uint8x16_t vqtbl1q_u8(uint8x16_t table, uint8x16_t at) {
    const uint8x8x2_t halves = {{vget_low_u8(table), vget_high_u8(table)}};
    return vcombine_u8(vtbl2_u8(halves, vget_low_u8(at)), vtbl2_u8(halves, vget_high_u8(at)));
}
inline int8x16_t vqtbl1q_s8(int8x16_t table, uint8x16_t at) {
    return vreinterpretq_s8_u8(vqtbl1q_u8(vreinterpretq_u8_s8(table), at));
}

}  // namespace
}  // namespace qk::cpu

#endif

// Dot products of the GRU on NEON. Of bytes there are two kinds: with SDOT, and these.
#pragma once
#include <string.h>

#include "cpu/arm_neon/intrinsics.hpp"
#include "cpu/gru/run.hpp"

#define QK_QUARTERS _Pragma("GCC unroll 4") for (int q = 0; q < 4; ++q)

namespace qk::cpu {
namespace {

struct GruNeonDots {
    QK_INLINE static int8x16_t load_signed(const void *from) {
        return vreinterpretq_s8_u8(vld1q_u8(static_cast<const uint8_t *>(from)));
    }

    // Four bytes of codes in every lane: the columns of a group.
    QK_INLINE static int8x16_t load_group(const uint8_t *codes, int64_t group) {
        return vreinterpretq_s8_s32(
            vld1q_dup_s32(reinterpret_cast<const int32_t *>(codes) + group));
    }

    // A panel of 48 rows of weights times `rows` rows of codes. A group's four products of a row
    // meet in the end: `low` has those of rows 0 and 1, `high` of rows 2 and 3.
    static constexpr int64_t kGateBytes = kGruUnits * 4, kGroupBytes = 3 * kGateBytes;
    template <int rows>
    struct Halves {
        int32x4_t low[rows][4], high[rows][4];

        QK_INLINE Halves() {
            for (int row = 0; row < rows; ++row)
                QK_QUARTERS low[row][q] = high[row][q] = vdupq_n_s32(0);
        }
        QK_INLINE void store(GruSums sums, int gate) const {
            for (int row = 0; row < rows; ++row)
                QK_QUARTERS add_pairs(low[row][q], high[row][q], sums[row][gate] + 4 * q);
        }
    };

    template <int rows, class Add>
    QK_INLINE static void dot_halves(const int8_t *weights, int64_t groups,
                                     const uint8_t *const *codes, GruSums sums, const Add &add) {
        for (int gate = 0; gate < 3; ++gate) {
            Halves<rows> sum;
            const int8_t *at = weights + gate * kGateBytes;
            const int8_t *const end = at + groups * kGroupBytes;
            for (int32_t group = 0; at != end; at += kGroupBytes - kGateBytes, ++group) {
                int8x16_t x[rows];
                for (int row = 0; row < rows; ++row) x[row] = load_group(codes[row], group);
                QK_QUARTERS {
                    const int8x16_t w = load_signed(at);
                    for (int row = 0; row < rows; ++row)
                        add(sum.low[row][q], sum.high[row][q], w, x[row]);
                    step<16>(at);
                }
            }
            sum.store(sums, gate);
        }
    }

  protected:
    // On 32-bit processors a load steps its address itself, or else there is an addition for it.
    template <int64_t bytes>
    QK_INLINE static void step(const int8_t *&at) {
        at += bytes;
#if !defined(__aarch64__)
        asm("" : "+r"(at));
#endif
    }
    QK_INLINE static void add_pairs(int32x4_t low, int32x4_t high, int32_t *to) {
#if defined(__aarch64__)
        vst1q_s32(to, vpaddq_s32(low, high));
#else
        const int32x2_t sums[2] = {vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                                   vpadd_s32(vget_low_s32(high), vget_high_s32(high))};
        memcpy(to, &sums[0], 8);
        memcpy(to + 2, &sums[1], 8);
#endif
    }
};

}  // namespace
}  // namespace qk::cpu

// Sums of products of weights of 16 bits on NEON, with or without dot product instructions.
#pragma once
#include "cpu/arm_neon/gru_lanes.hpp"

namespace qk::cpu {
namespace {

// One block of 48 weight rows times `rows` rows of codes, two columns at a time, which meet in the
// end: low of rows 0 and 1, high of rows 2 and 3.
template <int rows>
__attribute__((noinline)) void dot_words(const int8_t *weights, int64_t groups,
                                         const uint8_t *const *codes,
                                         int32_t (*sums)[3][kGruUnits]) {
    for (int gate = 0; gate < 3; ++gate) {
        int32x4_t low[rows][4], high[rows][4];
        for (int row = 0; row < rows; ++row)
            QK_QUARTERS low[row][q] = high[row][q] = vdupq_n_s32(0);
        for (int64_t group = 0; group < groups; ++group) {
            const int8_t *const at = weights + (group * 3 + gate) * kGruUnits * 4;
            int16x8_t x[rows];
            for (int row = 0; row < rows; ++row) {
                int32_t pair;
                memcpy(&pair, codes[row] + 4 * group, 4);
                x[row] = vreinterpretq_s16_s32(vdupq_n_s32(pair));
            }
            QK_QUARTERS {
                const int16x8_t w = vreinterpretq_s16_s8(load_signed(at + 16 * q));
                for (int row = 0; row < rows; ++row) {
                    low[row][q] = vmlal_s16(low[row][q], vget_low_s16(w), vget_low_s16(x[row]));
                    high[row][q] = vmlal_high_s16(high[row][q], w, x[row]);
                }
            }
        }
        for (int row = 0; row < rows; ++row)
            QK_QUARTERS vst1q_s32(sums[row][gate] + 4 * q, vpaddq_s32(low[row][q], high[row][q]));
    }
}

}  // namespace
}  // namespace qk::cpu

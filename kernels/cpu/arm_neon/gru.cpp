// The GRU on plain NEON: 8-bit products as 16 bits, added in pairs to 32.
#include "cpu/arm_neon/gru.hpp"
#include "cpu/lists.hpp"

namespace qk::cpu {
namespace {

struct GruNeon : GruNeonBase {
    static constexpr uint32_t kFeature = kNeon;

    // One block of 48 weight rows times `rows` rows of codes. A pair of columns of a row ends in
    // one lane: low of rows 0 and 1, high of rows 2 and 3.
    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        for (int gate = 0; gate < 3; ++gate) {
            int32x4_t low[rows][4], high[rows][4];
            for (int row = 0; row < rows; ++row)
                QK_QUARTERS low[row][q] = high[row][q] = vdupq_n_s32(0);
            for (int64_t group = 0; group < groups; ++group) {
                const int8_t *const at = weights + (group * 3 + gate) * kGruUnits * 4;
                int8x16_t x[rows];
                for (int row = 0; row < rows; ++row) {
                    int32_t four;
                    memcpy(&four, codes[row] + 4 * group, 4);
                    x[row] = vreinterpretq_s8_s32(vdupq_n_s32(four));
                }
                QK_QUARTERS {
                    const int8x16_t w = load_signed(at + 16 * q);
                    for (int row = 0; row < rows; ++row) {
                        const int16x8_t first = vmull_s8(vget_low_s8(w), vget_low_s8(x[row]));
                        low[row][q] = vpadalq_s16(low[row][q], first);
                        high[row][q] = vpadalq_s16(high[row][q], vmull_high_s8(w, x[row]));
                    }
                }
            }
            for (int row = 0; row < rows; ++row)
                QK_QUARTERS vst1q_s32(sums[row][gate] + 4 * q,
                                      vpaddq_s32(low[row][q], high[row][q]));
        }
    }
};

}  // namespace

const Kernel<GruArgs> kGruNeon = {"neon", can_run_gru<GruNeon>, nullptr, run_gru<GruNeon>};

}  // namespace qk::cpu

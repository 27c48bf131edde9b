// The GRU on NEON with the dot product instructions (armv8.2).
#include "cpu/arm_neon/gru.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

struct GruDotprod : GruNeonBase {
    static constexpr uint32_t kFeature = kNeon | kNeonDot;

    // A panel of 48 rows of weights times `rows` rows of codes, four columns at a time.
    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        int32x4_t acc[rows][3][4];
        for (auto &row : acc)
            for (auto &gate : row)
                for (int32x4_t &sum : gate) sum = vdupq_n_s32(0);
        for (int64_t group = 0; group < groups; ++group) {
            int8x16_t x[rows];
            for (int row = 0; row < rows; ++row) x[row] = load_group(codes[row], group);
            for (int gate = 0; gate < 3; ++gate) {
                const int8_t *const at = weights + (group * 3 + gate) * kGruUnits * 4;
                QK_QUARTERS {
                    const int8x16_t w = load_signed(at + 16 * q);
                    for (int row = 0; row < rows; ++row)
                        acc[row][gate][q] = vdotq_s32(acc[row][gate][q], w, x[row]);
                }
            }
        }
        for (int row = 0; row < rows; ++row)
            for (int gate = 0; gate < 3; ++gate)
                QK_QUARTERS vst1q_s32(sums[row][gate] + 4 * q, acc[row][gate][q]);
    }
};

}  // namespace

const Kernel<GruArgs> kGruNeonDot = {"neon dotprod", can_run_gru<GruDotprod>, nullptr,
                                     run_gru<GruDotprod>};

}  // namespace qk::cpu

// The GRU on plain NEON: 8-bit products as 16 bits, added in pairs to 32.
#if defined(__aarch64__)
#include "cpu/arm_neon/gru.hpp"
#else
#include "cpu/arm_neon/gru32.hpp"
#endif
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

struct GruNeon : GruNeonBase {
    static constexpr uint32_t kFeature = kNeon;

    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        const auto add = [](int32x4_t &low, int32x4_t &high, int8x16_t w, int8x16_t x) QK_INLINE {
            low = vpadalq_s16(low, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
            high = vpadalq_s16(high, vmull_high_s8(w, x));
        };
        dot_halves<rows>(weights, groups, codes, sums, add);
    }
};

}  // namespace

const Kernel<GruArgs> kGruNeon = {"neon", can_run_gru<GruNeon>, nullptr, run_gru<GruNeon>};

}  // namespace qk::cpu

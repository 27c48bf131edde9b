#include "cpu/arm_neon/codes.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/vector/nested.hpp"
#include "cpu/vector/turn.hpp"

namespace qk::cpu {
namespace {

inline WidenNested nested_widener() {
    return widen_gathering;
}

inline void turn_words(const uint8_t *low, const uint8_t *high, Words (&words)[16]) {
    turn_words_in_memory(low, high, words);
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/linear_batch.hpp"
#include "cpu/vector/linear_gemv.hpp"
#include "cpu/vector/linear_single.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon = {"neon gemv", can_run_gemv, nullptr, run_gemv};
const Kernel<LinearArgs> kLinearBatchNeon = {"neon batch", can_run_batch, nullptr, run_batch};
const Kernel<LinearArgs> kLinearSingleNeon = {"neon single", can_run_single, nullptr,
                                            run_single};

}  // namespace qk::cpu

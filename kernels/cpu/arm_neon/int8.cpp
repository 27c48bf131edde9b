// int8 mode on Arm: neon.
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/lists.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Neon = {"neon int8", can_run_int8_gemv<NeonInt8>,
                                            int8_x_bytes<NeonInt8>, run_int8_gemv<NeonInt8>};

}  // namespace qk::cpu

// Products in floats, NEON.
#include "cpu/arm_neon/integers.hpp"
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/lists.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvNeon = {"neon gemv", can_run_gemv<Neon>, nullptr,
                                            run_gemv<Neon, NeonIntegerRows>};
const Kernel<LinearArgs> kLinearBatchNeon = {"neon batch", can_run_batch<Neon>, nullptr,
                                             run_batch<Neon>};
const Kernel<LinearArgs> kLinearSingleNeon = {"neon single", can_run_single<Neon>, nullptr,
                                              run_single<Neon>};

}  // namespace qk::cpu

// Products in floats, AVX2.
#include "cpu/linear/batch.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx2/integers.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx2 = {"avx2 gemv", can_run_gemv<Avx2>, nullptr,
                                            run_gemv<Avx2, Avx2IntegerRows>};
const Kernel<LinearArgs> kLinearBatchAvx2 = {"avx2 batch", can_run_batch<Avx2>, nullptr,
                                             run_batch<Avx2>};
const Kernel<LinearArgs> kLinearSingleAvx2 = {"avx2 single", can_run_single<Avx2>, nullptr,
                                              run_single<Avx2>};

}  // namespace qk::cpu

// Products in floats, AVX-512.
#include "cpu/linear/batch.hpp"
#include "cpu/linear/few_rows.hpp"
#include "cpu/linear/gemv.hpp"
#include "cpu/linear/gemv_integers.hpp"
#include "cpu/linear/single.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearGemvAvx512 = {
    "avx512 gemv", can_run_gemv<Avx512>, nullptr,
    run_gemv<Avx512, RowsOfIntegers<Avx512, FloatProducts<Avx512>>>};
const Kernel<LinearArgs> kLinearFewAvx512 = {"avx512 few rows", can_run_few<Avx512>, nullptr,
                                             run_few<Avx512>};
const Kernel<LinearArgs> kLinearBatchAvx512 = {"avx512 batch", can_run_batch<Avx512>, nullptr,
                                               run_batch<Avx512>};
const Kernel<LinearArgs> kLinearSingleAvx512 = {"avx512 single", can_run_single<Avx512>, nullptr,
                                                run_single<Avx512>};

}  // namespace qk::cpu

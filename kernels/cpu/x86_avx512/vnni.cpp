// int8 mode on machines with VNNI and VBMI.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/int8_rows.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearInt8Vnni =
    linear_kernel<LinearKernel::kInt8Vnni>(run_int8_gemv<Avx512Int8>, int8_x_bytes<Avx512Int8>);
const Kernel<LinearArgs> kLinearInt8VnniBatch = linear_kernel<LinearKernel::kInt8VnniBatch>(
    run_int8_batch<Avx512Int8>, int8_tiles_bytes<Avx512Int8>);
const Kernel<LinearArgs> kLinearInt8VnniRows =
    linear_kernel<LinearKernel::kInt8VnniRows>(run_int8_s8, int8_columns_bytes);

}  // namespace qk::cpu

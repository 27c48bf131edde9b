// The float GRU on AVX-512 and its extensions.
#include "cpu/gru/float.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {

const Kernel<FloatProductArgs> kFloatProductAvx512 = float_product_kernel<Avx512>("avx512");
const Kernel<FloatGatesArgs> kFloatGatesAvx512 = float_gates_kernel<Avx512>("avx512");

}  // namespace qk::cpu

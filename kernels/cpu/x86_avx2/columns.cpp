#include "cpu/linear/columns.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx2/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsAvx2 =
    linear_kernel<LinearKernel::kColumnsAvx2>(run_columns<Avx2Columns>);

}  // namespace qk::cpu

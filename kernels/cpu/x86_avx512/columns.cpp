#include "cpu/linear/columns.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsVnni =
    linear_kernel<LinearKernel::kColumnsVnni>(run_columns<Avx512Columns>);

}  // namespace qk::cpu

#include "cpu/linear/columns.hpp"
#include "cpu/x86_avx2/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsAvx2 = {"avx2 columns", can_run_columns<Avx2Columns>,
                                               nullptr, run_columns<Avx2Columns>};

}  // namespace qk::cpu

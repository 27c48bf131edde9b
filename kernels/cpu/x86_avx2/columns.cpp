#include "cpu/x86_avx2/column_lanes.hpp"
#include "cpu/vector/nested_gathering.hpp"

#include "cpu/vector/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsAvx2 = {"avx2 columns", can_run_columns, nullptr,
                                               run_columns};

}  // namespace qk::cpu

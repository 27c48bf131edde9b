#include "cpu/x86_avx512/column_lanes.hpp"
#include "cpu/x86_avx512/nested_widener.hpp"

#include "cpu/vector/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsVnni = {"avx512 vnni columns", can_run_columns, nullptr,
                                               run_columns};

}  // namespace qk::cpu

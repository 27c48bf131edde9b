#include "cpu/linear/columns.hpp"
#include "cpu/x86_avx512/columns.hpp"

namespace qk::cpu {

const Kernel<LinearArgs> kLinearColumnsVnni = {
    "avx512 vnni columns", can_run_columns<Avx512Columns>, nullptr, run_columns<Avx512Columns>};

}  // namespace qk::cpu

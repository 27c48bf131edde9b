// What the library may use of this processor, by name: older ones are measured on a newer one.
#pragma once
#include <string>
#include <vector>

#include "qk.h"

namespace bench {

inline std::vector<std::string> instruction_sets() {
    return {"all", "vnni", "avx512", "avx_vnni", "avx2", "generic"};
}

// For qk_context_options: one of the above, where "avx512" is its base alone (no VNNI, VBMI, BF16)
// and "vnni" all but AMX, or on Arm "all", "i8mm", "dotprod", "neon" or "generic".
inline uint32_t instruction_sets_of(const std::string &name) {
    const uint32_t neon = QK_ISA_GENERIC | QK_ISA_NEON, avx2 = QK_ISA_GENERIC | QK_ISA_AVX2;
    if (name == "generic") return QK_ISA_GENERIC;
    if (name == "avx2") return avx2;
    if (name == "avx_vnni") return avx2 | QK_ISA_AVX_VNNI;
    if (name == "avx512") return avx2 | QK_ISA_AVX512;
    if (name == "vnni") return ~(QK_ISA_AMX_INT8 | QK_ISA_AMX_BF16);
    if (name == "neon") return neon;
    if (name == "dotprod") return neon | QK_ISA_DOTPROD;
    return ~0u;
}

}  // namespace bench

// What this processor can do, asked once at run time. A bit stands for everything its kernels are
// compiled with, operating system support included.
#pragma once
#include <stdint.h>

#include "qk.h"

namespace qk::cpu {

constexpr uint32_t kAvx2 = QK_ISA_AVX2;
constexpr uint32_t kAvx512 = QK_ISA_AVX512;
constexpr uint32_t kAvx512Vbmi = QK_ISA_AVX512_VBMI;
constexpr uint32_t kAvx512Vnni = QK_ISA_AVX512_VNNI;
constexpr uint32_t kAvx512Bf16 = QK_ISA_AVX512_BF16;
constexpr uint32_t kNeon = QK_ISA_NEON;
constexpr uint32_t kNeonDot = QK_ISA_DOTPROD;  // SDOT, UDOT
constexpr uint32_t kNeonI8mm = QK_ISA_I8MM;    // USDOT, SMMLA

// QK_ISA_..., those alone that this build has kernels for.
uint32_t features();

// What is left of features() where these are allowed: a set counts with the one it extends.
uint32_t allowed_features(uint32_t allowed);

}  // namespace qk::cpu

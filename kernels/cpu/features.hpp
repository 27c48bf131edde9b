// What this processor can do, asked once at run time. A bit stands for everything its kernels are
// compiled with, operating system support included.
#pragma once
#include <stdint.h>

namespace qk::cpu {

constexpr uint32_t kAvx2 = 1u << 0;        // AVX2, FMA, F16C
constexpr uint32_t kAvx512 = 1u << 1;      // AVX-512 F, BW, DQ, VL, and kAvx2
constexpr uint32_t kAvx512Vbmi = 1u << 2;  // and VBMI
constexpr uint32_t kAvx512Vnni = 1u << 3;  // and VNNI
constexpr uint32_t kAvx512Bf16 = 1u << 4;  // and BF16
constexpr uint32_t kNeon = 1u << 16;       // aarch64's base
constexpr uint32_t kNeonDot = 1u << 17;    // SDOT, UDOT
constexpr uint32_t kNeonI8mm = 1u << 18;   // USDOT, SMMLA

uint32_t features();

}  // namespace qk::cpu

#include "cpu/kernels.hpp"

#include <atomic>

#if defined(QK_CPU_X86)
#include <cpuid.h>
#elif defined(QK_CPU_ARM)
#include "base/os.hpp"
#endif

namespace qk::cpu {
namespace {

#if defined(QK_CPU_X86)
constexpr bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// The register sets that the operating system saves: without it wide registers fault.
uint64_t saved_state() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

// Bit numbers: Intel SDM volume 2, CPUID leaves 1 and 7.
uint32_t detect() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const bool avx = has(c, 1u << 28 | 1u << 27 | 1u << 29 | 1u << 12);  // AVX OSXSAVE F16C FMA
    if (!avx || (saved_state() & 0x6) != 0x6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 1u << 5)) return 0;
    uint32_t found = kAvx2;
    const uint32_t base = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F DQ BW VL
    if (!has(b, base) || (saved_state() & 0xe6) != 0xe6) return found;
    found |= kAvx512;
    if (has(c, 1u << 1)) found |= kAvx512Vbmi;
    if (has(c, 1u << 11)) found |= kAvx512Vnni;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 1u << 5)) found |= kAvx512Bf16;
    return found;
}
#elif defined(QK_CPU_ARM)
uint32_t detect() {
    const os::ArmExtensions has = os::arm_extensions();
    return (has.neon ? kNeon : 0) | (has.dotprod ? kNeonDot : 0) | (has.i8mm ? kNeonI8mm : 0);
}
#else
uint32_t detect() { return 0; }
#endif

// Two threads that ask first at once find the same answer.
std::atomic<uint32_t> g_features;

struct Extension {
    uint32_t set, of;
};
constexpr Extension kExtensions[] = {  // a base before what extends it
    {QK_ISA_AVX512, QK_ISA_AVX2},        {QK_ISA_AVX512_VBMI, QK_ISA_AVX512},
    {QK_ISA_AVX512_VNNI, QK_ISA_AVX512}, {QK_ISA_AVX512_BF16, QK_ISA_AVX512},
    {QK_ISA_DOTPROD, QK_ISA_NEON},       {QK_ISA_I8MM, QK_ISA_DOTPROD}};

}  // namespace

uint32_t features() {
    uint32_t found = g_features.load(std::memory_order_relaxed);
    if (found == 0) {  // CPUID is slow, and traps in a virtual machine
        found = detect() | QK_ISA_GENERIC;
        g_features.store(found, std::memory_order_relaxed);
    }
    return found;
}

uint32_t allowed_features(uint32_t allowed) {
    uint32_t left = features() & (allowed | QK_ISA_GENERIC);
    for (const Extension &extension : kExtensions) {
        if ((left & extension.of) == 0) left &= ~extension.set;
    }
    return left;
}

}  // namespace qk::cpu

#include "cpu/kernels.hpp"

#include <atomic>

#if defined(QK_CPU_X86)
#include <cpuid.h>
#endif

#include "base/os.hpp"
#include "cpu/traits.hpp"

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

// EAX of leaf 7, subleaf 1; 0 where there is none.
uint32_t leaf_7_1() {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) ? a : 0;
}

// Bit numbers: Intel SDM volume 2, CPUID leaves 1 and 7.
uint32_t detect() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const bool avx = has(c, 1u << 28 | 1u << 27 | 1u << 29 | 1u << 12);  // AVX OSXSAVE F16C FMA
    if (!avx || (saved_state() & 0x6) != 0x6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 1u << 5)) return 0;
    uint32_t found = kAvx2;
#if defined(QK_CPU_AVX_VNNI)
    if (has(leaf_7_1(), 1u << 4)) found |= kAvxVnni;
#endif
    const uint32_t base = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F DQ BW VL
    if (!has(b, base) || (saved_state() & 0xe6) != 0xe6) return found;
    found |= kAvx512;
    if (has(c, 1u << 1)) found |= kAvx512Vbmi;
    if (has(c, 1u << 11)) found |= kAvx512Vnni;
    if (has(d, 1u << 24) && (saved_state() & 0x60000) == 0x60000) {  // AMX-TILE
        if (has(d, 1u << 25)) found |= kAmxInt8;
        if (has(d, 1u << 22)) found |= kAmxBf16;
    }
    if (has(leaf_7_1(), 1u << 5)) found |= kAvx512Bf16;
    return found;
}

uint32_t detect_traits() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return 0;
    if (b == signature_AMD_ebx) {
        if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
        const uint32_t family = (a >> 8 & 15) + (a >> 20 & 255);
        return family < 0x1a ? uint32_t(kFewFills) : 0;
    }
    if (b != signature_INTEL_ebx) return 0;
    uint32_t found = kPagedStreams | kOneShuffle;
    const bool leaf_7 = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
    if (leaf_7 && has(d, 1u << 23)) found |= kSlowBf16Vectors;  // AVX512-FP16
    return found;
}
#elif defined(QK_CPU_ARM)
uint32_t detect() {
    const os::ArmExtensions has = os::arm_extensions();
    return (has.neon ? kNeon : 0) | (has.dotprod ? kNeonDot : 0) | (has.i8mm ? kNeonI8mm : 0);
}
#elif defined(QK_CPU_RVV)
// Some old systems say V of vectors before 1.0, whose instructions mean other things: they do not
// know this type of vectors and say that it is illegal, in the register's sign.
bool knows_types_of_1_0() {
    int64_t type;
    asm volatile(
        ".option push\n.option arch, +v\n"
        "vsetvli zero, zero, e8, m1, ta, ma\ncsrr %0, vtype\n"
        ".option pop"
        : "=r"(type));
    return type >= 0;
}
uint32_t detect() { return os::riscv_vectors() && knows_types_of_1_0() ? kRvv : 0; }
#else
uint32_t detect() { return 0; }
#endif

// Two threads that ask first at once find the same answer.
std::atomic<uint32_t> g_features;
enum Answer { kNotAsked, kYes, kNo };
std::atomic<int> g_tiles;
std::atomic<uint32_t> g_traits;
constexpr uint32_t kTraitsAsked = 1u << 31;

struct Extension {
    uint32_t set, of;
};
constexpr Extension kExtensions[] = {  // a base before what extends it
    {QK_ISA_AVX_VNNI, QK_ISA_AVX2},      {QK_ISA_AVX512, QK_ISA_AVX2},
    {QK_ISA_AVX512_VBMI, QK_ISA_AVX512}, {QK_ISA_AVX512_VNNI, QK_ISA_AVX512},
    {QK_ISA_AVX512_BF16, QK_ISA_AVX512}, {QK_ISA_AMX_INT8, QK_ISA_AVX512},
    {QK_ISA_AMX_BF16, QK_ISA_AVX512},    {QK_ISA_DOTPROD, QK_ISA_NEON},
    {QK_ISA_I8MM, QK_ISA_DOTPROD}};

}  // namespace

uint32_t features() {
    uint32_t found = g_features.load(std::memory_order_relaxed);
    if (found == 0) {  // CPUID is slow, and traps in a virtual machine
        found = detect() | QK_ISA_GENERIC;
        g_features.store(found, std::memory_order_relaxed);
    }
    return found;
}

uint32_t traits() {
    uint32_t found = g_traits.load(std::memory_order_relaxed);
    if (found == 0) {
        found = kTraitsAsked;
#if defined(QK_CPU_X86)
        found |= detect_traits();
#endif
        g_traits.store(found, std::memory_order_relaxed);
    }
    return found;
}

void assume_traits(uint32_t assumed) {
    g_traits.store(assumed | kTraitsAsked, std::memory_order_relaxed);
}

bool tiles_allowed() {
    int known = g_tiles.load(std::memory_order_relaxed);
    if (known == kNotAsked) {
        known = os::allow_tiles() ? kYes : kNo;
        g_tiles.store(known, std::memory_order_relaxed);
    }
    return known == kYes;
}

uint32_t allowed_features(uint32_t allowed) {
    uint32_t left = features() & (allowed | QK_ISA_GENERIC);
    for (const Extension &extension : kExtensions) {
        if ((left & extension.of) == 0) left &= ~extension.set;
    }
    return left;
}

}  // namespace qk::cpu

// Which kernels must take a case: those that would on a processor with everything, if this one has
// their instruction sets. The sets are read from a kernel's name, not asked from the kernel.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "backend/backend.hpp"
#include "backend/registry.hpp"
#include "cpu/kernels.hpp"
#include "harness/only.hpp"

namespace sweep {

inline uint32_t sets_of(const std::string &kernel) {
    using namespace qk::cpu;
    const auto named = [&](const char *word) { return kernel.find(word) != std::string::npos; };
    uint32_t sets = 0;
    if (named("avx2")) sets |= kAvx2;
    if (named("avx512")) sets |= kAvx2 | kAvx512;
    if (named("avx vnni")) return kAvx2 | kAvxVnni;
    if (named("vnni")) sets |= kAvx512Vnni;
    if (named("avx512 bf16")) sets |= kAvx512Bf16;
    if (named("amx int8")) sets |= kAvx2 | kAvx512 | kAvx512Vnni | kAvx512Vbmi | kAmxInt8;
    if (named("amx bf16")) sets |= kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16;
    if (kernel == "avx512 rows" || named("vnni int8") || kernel == "avx512 vnni" ||
        kernel == "avx512 vnni groups" || named("vnni rows")) {
        sets |= kAvx512Vbmi;  // whole bytes looked up or moved in registers
    }
    if (named("neon")) sets |= kNeon;
    if (named("dotprod")) sets |= kNeonDot;
    if (named("i8mm")) sets |= kNeonI8mm;
    if (named("rvv")) sets |= kRvv;
    return sets;
}

// Asks the kernel, and holds its answer against that rule; then whether QK_KERNEL leaves it out.
template <class Args>
bool takes(const qk::Kernel<Args> &kernel, const Args &args, const qk::Device &device) {
    const bool answer = kernel.can_run(args, device);
    const uint32_t sets = sets_of(kernel.name);
    const bool expected = kernel.can_run(args, {device.index, ~0u}) && qk::has(device, sets);
    EXPECT_EQ(answer, expected) << kernel.name << " on instruction sets 0x" << std::hex
                                << device.instruction_sets;
    return answer && harness::wanted("cpu", kernel.name);
}

// Null, or why there is nothing to hold against the generic one of so many kernels.
inline const char *why_no_vectors(int32_t kernels) {
    if (kernels == 1) return "this build has the generic kernel alone";
    const uint32_t here = qk::cpu::features();
    const uint32_t vectors = qk::cpu::kAvx2 | qk::cpu::kNeon | qk::cpu::kRvv;
    return (here & vectors) == 0 ? "this processor has no vectors that qk has kernels for"
                                 : nullptr;
}

}  // namespace sweep

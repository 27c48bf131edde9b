// The lists of kernels are those that the build should have, and each of them that this processor
// can run does run, with the generic kernel's bits.
#include <string.h>

#include <string>
#include <vector>

#include "kernel/weights.hpp"

namespace {

using Names = std::vector<std::string>;

template <class Args>
Names names_of(const qk::KernelList<Args> &list) {
    Names names;
    for (int32_t i = 0; i < list.count; ++i) names.push_back(list.kernels[i]->name);
    return names;
}

TEST(CpuLists, AreWhatTheBuildSays) {
    const qk::Backend &cpu = qk::kCpuBackend;
#if defined(QK_TEST_X86)
    EXPECT_EQ(names_of(cpu.dequantize), (Names{"avx512", "avx2", "generic"}));
    EXPECT_EQ(names_of(cpu.quantize), (Names{"avx512", "avx2", "generic"}));
    EXPECT_EQ(names_of(cpu.repack), (Names{"avx512", "avx2", "generic"}));
    EXPECT_EQ(names_of(cpu.linear),
              (Names{"avx512 vnni rows", "avx512 vnni rows of groups", "avx512 vnni integers",
                     "avx512 vnni groups", "avx512 rows", "avx512 gemv", "avx512 vnni columns",
                     "avx512 vnni columns with minima", "avx2 columns", "avx2 columns with minima",
                     "avx512 single", "avx512 few rows", "avx512 batch", "avx2 gemv", "avx2 single",
                     "avx2 few rows", "avx2 batch", "generic"}));
    EXPECT_EQ(names_of(cpu.linear_int8), (Names {
                  "amx int8 batch", "avx512 vnni int8 batch", "avx2 int8 columns",
                      "avx512 vnni int8", "amx int8 bytes batch", "avx512 vnni int8 bytes batch",
                      "avx512 vnni int8 rows",
#if defined(QK_TEST_AVX_VNNI)
                      "avx vnni int8 batch", "avx vnni int8", "avx vnni int8 bytes batch",
                      "avx vnni int8 rows",
#endif
                      "avx2 int8 batch", "avx2 int8", "avx2 int8 bytes batch", "avx2 int8 rows",
                      "generic int8"
              }));
    EXPECT_EQ(names_of(cpu.linear_bf16),
              (Names{"amx bf16 batch", "avx512 bf16 batch", "avx512 bf16"}));
    EXPECT_EQ(names_of(cpu.gru), (Names{"avx512 vnni", "avx2", "generic"}));
#elif defined(QK_TEST_ARM)
    EXPECT_EQ(names_of(cpu.dequantize), (Names{"neon", "generic"}));
    EXPECT_EQ(names_of(cpu.quantize), (Names{"generic"}));
    EXPECT_EQ(names_of(cpu.repack), (Names{"neon", "generic"}));
    EXPECT_EQ(names_of(cpu.linear), (Names{"dotprod integers", "dotprod groups", "neon gemv",
                                           "neon single", "neon batch", "generic"}));
    EXPECT_EQ(names_of(cpu.linear_int8),
              (Names{"i8mm int8", "dotprod int8 batch", "dotprod int8", "dotprod int8 bytes batch",
                     "dotprod int8 rows", "neon int8", "neon int8 rows", "generic int8"}));
    EXPECT_EQ(names_of(cpu.linear_bf16), Names{});
    EXPECT_EQ(names_of(cpu.gru), (Names{"neon dotprod", "neon", "generic"}));
#elif defined(QK_TEST_ARM32)
    EXPECT_EQ(names_of(cpu.dequantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.quantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.repack), Names{"generic"});
    EXPECT_EQ(names_of(cpu.linear), (Names{"neon gemv", "neon single", "neon batch", "generic"}));
    EXPECT_EQ(names_of(cpu.linear_int8), (Names{"neon int8", "neon int8 rows", "generic int8"}));
    EXPECT_EQ(names_of(cpu.linear_bf16), Names{});
    EXPECT_EQ(names_of(cpu.gru), (Names{"neon", "generic"}));
#elif defined(QK_TEST_RVV)
    EXPECT_EQ(names_of(cpu.dequantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.quantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.repack), Names{"generic"});
    EXPECT_EQ(names_of(cpu.linear), (Names{"rvv gemv", "rvv single", "rvv batch", "generic"}));
    EXPECT_EQ(names_of(cpu.linear_int8), Names{"generic int8"});
    EXPECT_EQ(names_of(cpu.linear_bf16), Names{});
    EXPECT_EQ(names_of(cpu.gru), (Names{"rvv", "generic"}));
#else
    EXPECT_EQ(names_of(cpu.dequantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.quantize), Names{"generic"});
    EXPECT_EQ(names_of(cpu.repack), Names{"generic"});
    EXPECT_EQ(names_of(cpu.linear), Names{"generic"});
    EXPECT_EQ(names_of(cpu.linear_int8), Names{"generic int8"});
    EXPECT_EQ(names_of(cpu.linear_bf16), Names{});
    EXPECT_EQ(names_of(cpu.gru), Names{"generic"});
#endif
}

// Small, and between them for every kernel.
std::vector<WeightCase> cases() {
    std::vector<WeightCase> all;
    for (const qk_layout layout : {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW},
                                   qk_layout{QK_LAYOUT_ROW_HIGH}, qk_layout{QK_LAYOUT_AWQ_GEMM}}) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_S8}) {
            if (format == QK_FORMAT_S8 && layout != QK_LAYOUT_ROW) continue;
            for (const int32_t group : {16, 32, 64, 128}) {
                all.push_back(
                    {format, QK_FORMAT_F32, layout, 40, 512, group, false, QK_GROUPING_ALONG_K});
            }
        }
    }
    return all;
}

// Runs a kernel on `args` and returns what it left in `output`.
template <class Args>
std::vector<uint8_t> result(const qk::Kernel<Args> &kernel, const Args &args, const TestDense &out,
                            const qk::Device &device) {
    memset(out.data(), 0xa5, out.bytes());
    qk::Launch launch = test_launch(3, device);
    Guarded room(qk::workspace_of(kernel, args, device) + 64);
    launch.workspace =
        reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
    launch.workspace_bytes = qk::workspace_of(kernel, args, device);
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << kernel.name;
    return {out.data(), out.data() + out.bytes()};
}

// Every kernel of a list takes some case if it is for this processor, with the last kernel's bits
// unless each has an order of sums of its own.
// visit(case, ask): calls ask(args, output) for every operand that a case gives.
template <class Args, class Visit>
void expect_all_run(const qk::KernelList<Args> &list, const char *what, const Visit &visit,
                    bool same_bits = true) {
    const qk::Device here = qk::device_at(qk::kCpuBackend, 0);
    std::vector<int> ran(size_t(list.count));
    for (const WeightCase &c : cases()) {
        visit(c, [&](const Args &args, const TestDense &output) {
            const qk::Kernel<Args> &last = *list.kernels[list.count - 1];
            for (int32_t i = 0; i < list.count; ++i) {
                const qk::Kernel<Args> &kernel = *list.kernels[i];
                if (!sweep::takes(kernel, args, here) || ran[size_t(i)]++ > 7) continue;
                const auto got = result(kernel, args, output, here);
                if (!same_bits || !last.can_run(args, here)) continue;
                EXPECT_EQ(got, result(last, args, output, here)) << kernel.name << describe(c);
            }
        });
    }
    for (int32_t i = 0; i < list.count; ++i) {
        const char *const name = list.kernels[i]->name;
        const bool must = qk::has(here, sweep::sets_of(name)) && harness::only().has("cpu", name);
        EXPECT_EQ(ran[size_t(i)] > 0, must) << what << " " << name;
    }
}

template <class Ask>
void visit_products(const WeightCase &c, const Ask &ask) {
    const TestWeight w(c, 7);
    if (!w.valid()) return;
    for (const int64_t m : {1, 2, 3, 40, 130}) {
        const TestDense x(QK_FORMAT_F32, m, c.k, 5), y(QK_FORMAT_F32, m, c.n, 6);
        ask(qk::LinearArgs{x.view(), w.view(), nullptr, y.view()}, y);
    }
}

TEST(CpuLists, EveryKernelThatThisProcessorCanRunDoesRun) {
    const qk::Backend &cpu = qk::kCpuBackend;
    const auto products = [](const WeightCase &c, const auto &ask) { visit_products(c, ask); };
    expect_all_run(cpu.linear, "linear", products);
    expect_all_run(cpu.linear_int8, "int8 mode", products);
    if (cpu.linear_bf16.count > 0) expect_all_run(cpu.linear_bf16, "bf16 mode", products, false);
    expect_all_run(cpu.dequantize, "dequantize", [](const WeightCase &c, const auto &ask) {
        const TestWeight w(c, 7);
        const TestDense to(QK_FORMAT_F16, c.n, c.k, 5);
        if (w.valid()) ask(qk::DequantizeArgs{w.view(), to.view()}, to);
    });
}

}  // namespace

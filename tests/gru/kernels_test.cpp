// Every GRU kernel of the CPU against the generic one, bit for bit.
#include <gtest/gtest.h>

#include "kernel_case.hpp"

namespace {

using gru_test::KernelCounts;
using gru_test::KernelRun;
using gru_test::RandomOptions;

#if defined(QK_SANITIZED) || defined(QK_EMULATED)
constexpr std::int64_t kSteps = 30000;
#else
constexpr std::int64_t kSteps = 1000000;
#endif

void expect_reached(const KernelCounts &counts) {
    if (!gru_test::has_vector_kernels()) GTEST_SKIP() << "QK_CPU_SIMD is OFF";
    counts.print();
    EXPECT_GT(counts.packed, counts.wide);
    EXPECT_GT(counts.wide, 0);
    EXPECT_GE(counts.compared, counts.packed);  // who packs has a kernel that takes it
}

TEST(GruKernels, CodesAtTheEndsOfEveryType) {
    KernelCounts counts;
    gru_test::run_random_cases(1, true, kSteps / 10, 20, counts);
    expect_reached(counts);
}

TEST(GruKernels, StepsOverManyShapesAndWidths) {
    KernelCounts counts;
    gru_test::run_random_cases(2, false, kSteps * 9 / 10, 20, counts);
    expect_reached(counts);
}

TEST(GruKernels, LargerShapes) {
    KernelCounts counts;
    std::mt19937_64 random(3);
    for (const int c : {1, 33, 64, 129, 300}) {
        for (const int h : {1, 31, 64, 100, 257}) {
            for (const std::int64_t batch : {1, 2, 3, 5, 17}) {
                RandomOptions options;
                options.c = c;
                options.h = h;
                options.extreme = batch == 2;
                options.weight_bits = 8;
                options.inside_bits = c % 2 == 0 ? 15 : 4;
                gru_test::run_random_case(random, options, KernelRun{3, batch, 1, batch == 5},
                                          counts);
            }
        }
    }
    expect_reached(counts);
}

}  // namespace

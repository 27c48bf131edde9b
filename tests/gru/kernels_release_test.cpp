// Before a release: 10^8 steps in a hundred parts, each a test that can be run alone or again:
//   ctest -L release -R GruKernelsRelease        or --gtest_filter='*/17' and the like
#include <gtest/gtest.h>

#include "kernel_case.hpp"

namespace {

class GruKernelsRelease : public testing::TestWithParam<int> {};

TEST_P(GruKernelsRelease, AMillionSteps) {
    if (const char *why = gru_test::why_no_vector_kernels()) GTEST_SKIP() << why;
    gru_test::KernelCounts counts;
    const auto seed = static_cast<std::uint64_t>(100 + 3 * GetParam());
    gru_test::run_random_cases(seed, true, 200000, 12, counts);
    gru_test::run_random_cases(seed + 1, false, 780000, 12, counts);
    gru_test::run_random_cases(seed + 2, false, 20000, 64, counts);
    counts.print();
    EXPECT_GE(counts.steps, 1000000);
    EXPECT_GE(counts.compared, counts.packed);
}

INSTANTIATE_TEST_SUITE_P(AHundredTimes, GruKernelsRelease, testing::Range(0, 100));

}  // namespace

// Before a release: 10^8 steps, in parts that fit a test each.
#include <gtest/gtest.h>

#include "kernel_case.hpp"

namespace {

class GruKernelsRelease : public testing::TestWithParam<int> {};

TEST_P(GruKernelsRelease, FiveMillionSteps) {
    if (const char *why = gru_test::why_no_vector_kernels()) GTEST_SKIP() << why;
    gru_test::KernelCounts counts;
    const auto seed = static_cast<std::uint64_t>(100 + 3 * GetParam());
    gru_test::run_random_cases(seed, true, 1000000, 12, counts);
    gru_test::run_random_cases(seed + 1, false, 3900000, 12, counts);
    gru_test::run_random_cases(seed + 2, false, 100000, 64, counts);
    counts.print();
    EXPECT_GE(counts.steps, 5000000);
    EXPECT_GE(counts.compared, counts.packed);
}

INSTANTIATE_TEST_SUITE_P(TwentyTimes, GruKernelsRelease, testing::Range(0, 20));

}  // namespace

// qk_linear_workspace over invented kernels: the largest need of any m up to the largest,
// also where a kernel with a smaller need takes over.
#include <gtest/gtest.h>

#include "object/context.hpp"
#include "object/tensor.hpp"
#include "op/operations.hpp"

namespace {

qk::Status run(const qk::LinearArgs &, const qk::Launch &) { return QK_OK; }

constexpr qk::Kernel<qk::LinearArgs> kHungry = {"hungry", nullptr, nullptr, run};
constexpr qk::Kernel<qk::LinearArgs> kModest = {"modest", nullptr, nullptr, run};
constexpr qk::Kernel<qk::LinearArgs> kFrugal = {"frugal", nullptr, nullptr, run};

qk::LinearPlan plan(const qk::LinearArgs &args, const qk::Device &, const qk::Allowance &,
                    qk::Explanation *) {
    const int64_t m = args.x.rows;
    if (m <= 37) return {&kHungry, 0, &kHungry, size_t(m * 1000)};
    if (m <= 500) return {&kModest, 0, &kModest, size_t(m * 10)};
    return {&kFrugal, 0, &kFrugal, 0};
}

TEST(LinearWorkspace, IsTheLargestOfAnyNumberOfRows) {
    qk_context *context = nullptr;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk::Backend fake = *context->backend;
    fake.plan_linear = plan;
    context->backend = &fake;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2;
    desc.shape[0] = desc.shape[1] = 16;
    qk_tensor *w = nullptr;
    ASSERT_EQ(qk_tensor_create(context, &desc, &w), QK_OK);
    for (const auto &[m_max, expected] : {std::pair<int64_t, size_t>{1, 1000},
                                          {2, 2000},
                                          {36, 36000},
                                          {37, 37000},
                                          {38, 37000},
                                          {500, 37000},
                                          {501, 37000},
                                          {INT64_MAX, 37000}}) {
        size_t bytes = 0;
        ASSERT_EQ(qk_linear_workspace(context, w, m_max, &bytes), QK_OK);
        EXPECT_EQ(bytes, expected) << m_max;
    }
    qk_tensor_destroy(w);
    qk_context_destroy(context);
}

}  // namespace

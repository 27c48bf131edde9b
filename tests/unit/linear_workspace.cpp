// qk_linear_workspace over invented kernels: the largest need of any m up to the largest,
// also where a kernel with a smaller need takes over.
#include <gtest/gtest.h>

#include "object/context.hpp"
#include "object/tensor.hpp"
#include "op/operations.hpp"

namespace {

template <int64_t low, int64_t high>
bool takes(const qk::LinearArgs &args, const qk::Device &) {
    return args.x.rows >= low && args.x.rows <= high;
}
template <int64_t each>
size_t needs(const qk::LinearArgs &args, const qk::Device &) {
    return size_t(args.x.rows * each);
}
qk::Status run(const qk::LinearArgs &, const qk::Launch &) { return QK_OK; }

constexpr qk::Kernel<qk::LinearArgs> kHungry = {"hungry", takes<1, 37>, needs<1000>, run};
constexpr qk::Kernel<qk::LinearArgs> kModest = {"modest", takes<1, 500>, needs<10>, run};
constexpr qk::Kernel<qk::LinearArgs> kFrugal = {"frugal", takes<1, INT64_MAX>, nullptr, run};
constexpr qk::Kernel<qk::LinearArgs> const *kList[] = {&kHungry, &kModest, &kFrugal};

TEST(LinearWorkspace, IsTheLargestOfAnyNumberOfRows) {
    qk_context *context = nullptr;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk::Backend fake = *context->backend;
    fake.linear = kList;
    fake.plan_linear = nullptr;  // by the list
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

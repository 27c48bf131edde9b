// The shortest path through the library: quantize, multiply, compare with plain arithmetic.
#include <gtest/gtest.h>

#include <vector>

#include "qk.h"

TEST(Smoke, QuantizeAndMultiply) {
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK);
    const int64_t n = 3, k = 70;
    std::vector<float> weights(n * k), x(k, 1.0f), y(n, -1.0f), back(n * k, -1.0f);
    for (int64_t i = 0; i < n * k; ++i) weights[i] = float(i % 7) - 3.0f;

    qk_tensor_desc dense = QK_TENSOR_DESC_INIT;
    dense.rank = 2;
    dense.shape[0] = n;
    dense.shape[1] = k;
    qk_tensor_desc nf4 = dense;
    nf4.format = QK_FORMAT_NF4;
    nf4.scale_format = QK_FORMAT_F32;
    nf4.layout = QK_LAYOUT_ROW_HIGH;
    nf4.group_size = 64;
    void *planes[1] = {weights.data()};
    qk_tensor *w = nullptr, *q = nullptr, *d = nullptr, *tx = nullptr, *ty = nullptr;
    ASSERT_EQ(qk_tensor_wrap(context, &dense, planes, 1, &w), QK_OK) << qk_context_error(context);
    ASSERT_EQ(qk_tensor_create(context, &nf4, &q), QK_OK) << qk_context_error(context);
    ASSERT_EQ(qk_quantize(context, w, q), QK_OK) << qk_context_error(context);
    planes[0] = back.data();
    ASSERT_EQ(qk_tensor_wrap(context, &dense, planes, 1, &d), QK_OK);
    ASSERT_EQ(qk_dequantize(context, q, d), QK_OK) << qk_context_error(context);
    for (int64_t i = 0; i < n * k; ++i) EXPECT_NEAR(back[i], weights[i], 3 * 0.153) << i;

    qk_tensor_desc row = dense;
    row.shape[0] = 1;
    planes[0] = x.data();
    ASSERT_EQ(qk_tensor_wrap(context, &row, planes, 1, &tx), QK_OK);
    row.shape[1] = n;
    planes[0] = y.data();
    ASSERT_EQ(qk_tensor_wrap(context, &row, planes, 1, &ty), QK_OK);
    ASSERT_EQ(qk_linear(context, tx, q, nullptr, ty), QK_OK) << qk_context_error(context);
    for (int64_t r = 0; r < n; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c) sum += back[r * k + c];
        EXPECT_NEAR(y[r], sum, 1e-4);
    }
    for (qk_tensor *tensor : {w, q, d, tx, ty}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

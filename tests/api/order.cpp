// Weights whose columns are stored in an order of their own (act-order): values are those of the
// reference, as [n,k] and as [k,n], products those of the same weight without an order and x
// gathered by hand.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "harness/tensor.hpp"

namespace {

using harness::Tensor;
using reference::Format;
using reference::Spec;
using reference::Weight;

class Order : public ::testing::Test {
  protected:
    ~Order() override {
        for (qk_context *context : contexts_) qk_context_destroy(context);
    }

    qk_context *make(int32_t threads, size_t workspace = 0, uint32_t flags = 0) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = threads;
        options.workspace_bytes = workspace;
        options.flags = flags;
        options.trace = [](void *user, const qk_trace *call) {
            const std::string name = call->operation;
            static_cast<Order *>(user)->ran_ += (name == "gather" ? "g" : name.substr(0, 1));
        };
        options.trace_user = this;
        qk_context *context = nullptr;
        EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
        contexts_.push_back(context);
        return context;
    }

    Weight random_weight(Spec spec, int64_t n, int64_t k, int64_t group) {
        spec.n = n, spec.k = k, spec.group_size = group, spec.ordered = true;
        return harness::random_weight(spec, harness::Data::real, &random_);
    }

    std::vector<float> random_x(const Weight &w, int64_t m) {
        std::vector<float> x(size_t(m * w.spec.k));
        for (float &value : x) value = random_.weight_like();
        return x;
    }

    static std::vector<float> gathered(const std::vector<float> &x,
                                       const std::vector<int32_t> &by) {
        std::vector<float> out(x.size());
        const size_t k = by.size();
        for (size_t i = 0; i < x.size(); ++i) out[i] = x[i - i % k + size_t(by[i % k])];
        return out;
    }

    // The bits of x . transpose(w).
    std::vector<uint32_t> product(qk_context *context, const qk_tensor *w, const Spec &spec,
                                  const std::vector<float> &values, Format type) {
        const int64_t m = int64_t(values.size()) / spec.k;
        Tensor x(context, type, m, spec.k, values, ++turn_);
        Tensor y(context, type, m, spec.n, ++turn_);
        EXPECT_EQ(qk_linear(context, x.handle(), w, nullptr, y.handle()), QK_OK)
            << qk_context_error(context);
        EXPECT_TRUE(x.intact() && y.intact());
        return bits_of(y, m * spec.n);
    }

    // The bits of x . w, of the same numbers as often as there are rows of w.
    std::vector<uint32_t> transposed(qk_context *context, const qk_tensor *w, const Spec &spec,
                                     const std::vector<float> &values, Format type) {
        std::vector<float> some(size_t(2 * spec.n));
        for (size_t i = 0; i < some.size(); ++i) some[i] = values[i % values.size()];
        Tensor x(context, type, 2, spec.n, some, ++turn_);
        Tensor y(context, type, 2, spec.k, ++turn_);
        const qk_product product = {
            sizeof(qk_product), QK_PRODUCT_TRANSPOSED, x.handle(), w, nullptr, y.handle(), nullptr};
        EXPECT_EQ(qk_multiply(context, &product, 1), QK_OK) << qk_context_error(context);
        EXPECT_TRUE(x.intact() && y.intact());
        return bits_of(y, 2 * spec.k);
    }

    static std::vector<uint32_t> bits_of(const Tensor &tensor, int64_t count) {
        std::vector<uint32_t> bits;
        for (int64_t i = 0; i < count; ++i) bits.push_back(tensor.bits(i));
        return bits;
    }

    void check_values(qk_context *context, const qk_tensor *w, const Weight &weight, Format type) {
        const Spec &spec = weight.spec;
        Tensor dense(context, type, spec.n, spec.k, ++turn_);
        ASSERT_EQ(qk_dequantize(context, w, dense.handle()), QK_OK) << qk_context_error(context);
        EXPECT_EQ(bits_of(dense, spec.n * spec.k), reference::dequantize(weight, type));
        EXPECT_TRUE(dense.intact());
        check_columns(context, w, weight, type);
    }

    // The same values as [k,n]; what lies between columns stays as it is.
    void check_columns(qk_context *context, const qk_tensor *w, const Weight &weight, Format type) {
        const int64_t n = weight.spec.n, k = weight.spec.k, width = n + 3;
        Tensor wide(context, type, k, width, std::vector<float>(size_t(k * width), 7), ++turn_);
        const uint32_t between = wide.bits(0);
        qk_tensor_desc desc = wide.desc();
        desc.shape[0] = n, desc.shape[1] = k;
        desc.flags = QK_TENSOR_COLUMN_MAJOR, desc.row_stride = width;
        void *const data = wide.plane(QK_PLANE_DATA).data();
        qk_tensor *columns = nullptr;
        ASSERT_EQ(qk_tensor_wrap(context, &desc, &data, 1, &columns), QK_OK)
            << qk_context_error(context);
        ASSERT_EQ(qk_dequantize(context, w, columns), QK_OK) << qk_context_error(context);
        qk_tensor_destroy(columns);
        const std::vector<uint32_t> rows = reference::dequantize(weight, type);
        for (int64_t c = 0; c < k; ++c) {
            for (int64_t r = 0; r < width; ++r) {
                ASSERT_EQ(wide.bits(c * width + r), r < n ? rows[size_t(r * k + c)] : between);
            }
        }
        EXPECT_TRUE(wide.intact());
    }

    // As stored and packed, in each context.
    void check(const std::vector<qk_context *> &contexts, const Weight &weight, int64_t m,
               Format type) {
        SCOPED_TRACE(harness::title(weight.spec) + " m " + std::to_string(m));
        Weight plain = weight;
        plain.spec.ordered = false, plain.order.clear();
        const std::vector<float> x = random_x(weight, m), moved = gathered(x, weight.order);
        for (qk_context *const context : contexts) {
            Tensor w(context, weight, ++turn_), same(context, plain, ++turn_);
            ASSERT_EQ(w.status(), QK_OK) << qk_context_error(context);
            check_values(context, w.handle(), weight, type);
            const auto expected = product(context, same.handle(), plain.spec, moved, type);
            EXPECT_EQ(product(context, w.handle(), weight.spec, x, type), expected);
            const auto y = transposed(context, w.handle(), weight.spec, x, type);
            const auto stored = transposed(context, same.handle(), plain.spec, x, type);
            for (size_t i = 0, k = weight.order.size(); i < stored.size(); ++i) {
                ASSERT_EQ(y[i - i % k + size_t(weight.order[i % k])], stored[i]);
            }
            qk_tensor_desc desc = w.desc();
            desc.layout = QK_LAYOUT_PACKED;
            if (w.desc().grouping == QK_GROUPING_FLAT) continue;
            qk_tensor *packed = nullptr;
            ASSERT_EQ(qk_tensor_create(context, &desc, &packed), QK_OK);
            ASSERT_EQ(qk_repack(context, w.handle(), packed), QK_OK) << qk_context_error(context);
            check_values(context, packed, weight, type);
            EXPECT_EQ(product(context, packed, weight.spec, x, type), expected);
            qk_tensor_destroy(packed);
            EXPECT_TRUE(w.intact());
        }
    }

    harness::Random random_{16};
    uint64_t turn_ = 0;
    std::string ran_;
    std::vector<qk_context *> contexts_;
};

TEST_F(Order, EveryFormatAndLayout) {
    const std::vector<qk_context *> contexts = {
        make(1), make(3), make(2, size_t{1} << 20, QK_CONTEXT_INT8_ACTIVATIONS)};
    const int64_t rows[] = {1, 2, 7, 33}, columns[] = {96, 131, 70, 256, 17};
    size_t turn = 0;
    for (const Format format :
         {Format::u4, Format::nf4, Format::fp4_bnb, Format::fp4_e2m1, Format::lut4, Format::lut8,
          Format::s8, Format::e4m3, Format::iq4_nl}) {
        for (const Spec &spec : harness::sweep_of(format)) {
            const int64_t group = turn % 3 == 0 ? 16 : turn % 3 == 1 ? 32 : -1;
            if (spec.flat && group < 0) continue;
            if (reference::record_of(spec.layout) != nullptr) continue;  // have no order
            const Weight weight = random_weight(spec, turn % 2 == 0 ? 9 : 24, columns[turn % 5],
                                                turn % 7 == 6 && !spec.flat ? 128 : group);
            check(contexts, weight, rows[turn % 4], harness::kFloats[turn % 3]);
            ++turn;
        }
    }
}

// x that a block of working memory does not hold is gathered in the workspace.
TEST_F(Order, WorkspaceIsAskedForAndUsed) {
    Spec spec;
    spec.zeros = true;
    const int64_t m = 17, k = 4096, bytes = m * k * 4;
    const Weight weight = random_weight(spec, 8, k, 128);
    const std::vector<float> x = random_x(weight, m);
    qk_context *const small = make(1);
    Tensor w(small, weight, 0), a(small, Format::f32, m, k, x, 1), y(small, Format::f32, m, 8, 2);
    qk_product product = QK_PRODUCT_INIT;
    product.x = a.handle(), product.w = w.handle(), product.y = y.handle();
    EXPECT_EQ(qk_multiply(small, &product, 1), QK_ERROR_WORKSPACE);
    EXPECT_EQ(qk_context_error(small), "products[0]: workspace: the product needs " +
                                           std::to_string(bytes) + " bytes, the context has 0");
    size_t needed = 0;
    ASSERT_EQ(qk_multiply_workspace(small, &product, 1, &needed), QK_OK);
    EXPECT_EQ(needed, size_t(bytes));
    ASSERT_EQ(qk_linear_workspace(small, w.handle(), m, &needed), QK_OK);
    EXPECT_EQ(needed, size_t(bytes));
    ASSERT_EQ(qk_linear_workspace(small, w.handle(), 12, &needed), QK_OK);
    EXPECT_EQ(needed, 0u) << "what fits a block is gathered there";
    EXPECT_EQ(ran_, "") << "nothing runs before it is known to fit";

    qk_context *const large = make(2, size_t(bytes));
    qk_plan plan = QK_PLAN_INIT;
    ASSERT_EQ(qk_explain(large, &product, &plan), QK_OK) << qk_context_error(large);
    EXPECT_EQ(plan.workspace_bytes, size_t(bytes));
    EXPECT_EQ(plan.batch_first, 3);
    ASSERT_EQ(qk_multiply(large, &product, 1), QK_OK) << qk_context_error(large);
    EXPECT_EQ(ran_, "gm");
    Weight plain = weight;
    plain.spec.ordered = false, plain.order.clear();
    Tensor same(small, plain, 3);
    EXPECT_EQ(bits_of(y, m * 8), this->product(small, same.handle(), plain.spec,
                                               gathered(x, weight.order), Format::f32));
}

// A mode's own workspace comes behind gathered x.
TEST_F(Order, AModeHasItsWorkspaceBehindX) {
    Spec spec;
    const int64_t m = 17, k = 4096;
    const Weight weight = random_weight(spec, 8, k, 128);
    const std::vector<float> x = random_x(weight, m);
    const uint32_t mode = QK_CONTEXT_INT8_ACTIVATIONS;
    qk_context *const none = make(1, 0, mode);
    Tensor w(none, weight, 0), a(none, Format::f32, m, k, x, 1), y(none, Format::f32, m, 8, 2);
    size_t needed = 0;
    ASSERT_EQ(qk_linear_workspace(none, w.handle(), m, &needed), QK_OK);
    EXPECT_GE(needed, size_t(m * k * 4));
    qk_context *const less = make(1, needed - 1, mode), *const enough = make(1, needed, mode);
    EXPECT_EQ(qk_linear(less, a.handle(), w.handle(), nullptr, y.handle()), QK_ERROR_WORKSPACE);
    Weight plain = weight;
    plain.spec.ordered = false, plain.order.clear();
    Tensor same(none, plain, 3);
    EXPECT_EQ(product(enough, w.handle(), weight.spec, x, Format::f32),
              product(enough, same.handle(), plain.spec, gathered(x, weight.order), Format::f32));
}

// An index that is none is taken for the last column's: nothing outside of x or y is touched.
TEST_F(Order, IndexesOutsideAreTheLastColumn) {
    Spec spec;
    Weight weight = random_weight(spec, 5, 64, 32);
    weight.order[3] = -1, weight.order[9] = 64, weight.order[60] = INT32_MAX;
    weight.order[61] = INT32_MIN;
    qk_context *const context = make(1);
    Tensor w(context, weight, 0), dense(context, Format::f32, 5, 64, 1);
    ASSERT_EQ(qk_dequantize(context, w.handle(), dense.handle()), QK_OK);
    EXPECT_TRUE(dense.intact());
    const std::vector<float> x = random_x(weight, 2);
    const auto got = product(context, w.handle(), weight.spec, x, Format::f32);
    for (int32_t &column : weight.order) column = column < 0 || column > 63 ? 63 : column;
    Tensor mended(context, weight, 2);
    EXPECT_EQ(got, product(context, mended.handle(), weight.spec, x, Format::f32));
}

TEST_F(Order, WhatHasNoOrderIsRefused) {
    Spec spec;
    const Weight weight = random_weight(spec, 8, 64, 32);
    qk_context *const context = make(1);
    Tensor w(context, weight, 0), dense(context, Format::f32, 8, 64, 1);
    EXPECT_EQ(qk_quantize(context, dense.handle(), w.handle()), QK_ERROR_UNSUPPORTED);
    EXPECT_NE(strstr(qk_context_error(context), "has an order of columns"), nullptr);
    Weight plain = weight;
    plain.spec.ordered = false, plain.order.clear();
    Tensor other(context, plain, 2);
    EXPECT_EQ(qk_repack(context, w.handle(), other.handle()), QK_ERROR_FORMAT);
    EXPECT_EQ(qk_repack(context, other.handle(), w.handle()), QK_ERROR_FORMAT);
    qk_tensor_desc desc = dense.desc();
    desc.flags = QK_TENSOR_ORDERED;
    size_t bytes = 0;
    EXPECT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_ERROR_FORMAT);
    desc = w.desc();
    ASSERT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_ORDER, &bytes), QK_OK);
    EXPECT_EQ(bytes, 64u * 4);
    void *planes[] = {w.plane(QK_PLANE_DATA).data(), w.plane(QK_PLANE_SCALE).data()};
    qk_tensor *wrapped = nullptr;
    EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, 2, &wrapped), QK_ERROR_NULL);
    EXPECT_NE(strstr(qk_context_error(context), "planes[9]"), nullptr);
}

}  // namespace

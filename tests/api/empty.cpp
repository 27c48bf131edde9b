// Batches without a row: described, wrapped, multiplied and exchanged, and nothing is done.
#include <gtest/gtest.h>

#include "api/dlpack_spec.hpp"
#include "api/support.hpp"

namespace api {
namespace {

constexpr int64_t kRows = 16, kColumns = 32;

qk_tensor *wrap_null(qk_context *context, const qk_tensor_desc &desc) {
    void *planes[QK_PLANE_COUNT] = {};
    return wrap(context, desc, planes);
}

struct Calls {
    std::vector<std::string> kernels;
    std::vector<int64_t> rows;
    static void note(void *user, const qk_trace *call) {
        static_cast<Calls *>(user)->kernels.push_back(call->kernel);
        static_cast<Calls *>(user)->rows.push_back(call->shape[0]);
    }
};

class Empty : public ::testing::Test {
  protected:
    Empty() {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 2;
        options.allocator = allocator.table();
        options.trace = Calls::note;
        options.trace_user = &calls;
        EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    }
    ~Empty() override {
        for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
        EXPECT_EQ(allocator.live(), 0);
    }
    qk_tensor *keep(qk_tensor *tensor) { return tensors.emplace_back(tensor); }
    qk_tensor *nothing(qk_format format, std::initializer_list<int64_t> shape) {
        return keep(wrap_null(context, dense_desc(format, shape)));
    }

    Allocator allocator;
    Calls calls;
    qk_context *context = nullptr;
    std::vector<qk_tensor *> tensors;
};

TEST_F(Empty, DenseTensorsAloneMayHaveNoRows) {
    for (const std::initializer_list<int64_t> shape :
         {std::initializer_list<int64_t>{0, 32}, {0, 3, 32}, {3, 0, 32}, {0, 0, 0, 1}}) {
        const qk_tensor_desc desc = dense_desc(QK_FORMAT_F16, shape);
        size_t bytes = 77;
        EXPECT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_OK);
        EXPECT_EQ(bytes, 0u);
        qk_tensor *const made = keep(create(context, desc));
        EXPECT_EQ(qk_tensor_upload(context, made, QK_PLANE_DATA, nullptr, 0), QK_OK);
        EXPECT_EQ(qk_tensor_download(context, made, QK_PLANE_DATA, nullptr, 0), QK_OK);
        EXPECT_EQ(qk_tensor_upload(context, made, QK_PLANE_DATA, &bytes, 1), QK_ERROR_BUFFER_SIZE);
        qk_tensor_desc back = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(qk_tensor_describe(made, &back), QK_OK);
        EXPECT_EQ(0, memcmp(back.shape, desc.shape, sizeof back.shape));
        char anywhere;
        void *planes[] = {&anywhere};  // as numpy's empty arrays have one
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, 1, &tensor), QK_OK);
        keep(tensor);
        const qk_span span = {nullptr, 0};
        EXPECT_EQ(qk_tensor_wrap_sized(context, &desc, &span, 1, &tensor), QK_OK);
        keep(tensor);
    }
    for (const int64_t columns : {int64_t{0}, int64_t{-1}}) {
        const qk_tensor_desc desc = dense_desc(QK_FORMAT_F16, {0, columns});
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_ERROR_SHAPE);
        EXPECT_STREQ(qk_context_error(context), columns == 0
                                                    ? "desc: shape[1] is 0, must be at least 1"
                                                    : "desc: shape[1] is -1, must be at least 1");
    }
    qk_tensor *tensor = nullptr;
    const qk_tensor_desc negative = dense_desc(QK_FORMAT_F16, {-1, kColumns});
    EXPECT_EQ(qk_tensor_create(context, &negative, &tensor), QK_ERROR_SHAPE);
    EXPECT_STREQ(qk_context_error(context), "desc: shape[0] is -1, must be at least 0");
    for (qk_tensor_desc desc : weight_descs(kRows, kColumns, 16)) {
        desc.shape[0] = 0;
        EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_ERROR_SHAPE);
        EXPECT_STREQ(qk_context_error(context), "desc: shape[0] is 0, must be at least 1");
    }
}

class EmptyProducts : public Empty {
  protected:
    qk_product product(qk_format format, qk_tensor *w, uint32_t flags = 0) {
        const bool transposed = (flags & QK_PRODUCT_TRANSPOSED) != 0;
        const int64_t in = transposed ? kRows : kColumns, out = transposed ? kColumns : kRows;
        return {sizeof(qk_product),        flags,  nothing(format, {0, in}), w, nullptr,
                nothing(format, {0, out}), nullptr};
    }
    void expect_nothing(const qk_product &product) {
        qk_plan plan = QK_PLAN_INIT;
        ASSERT_EQ(qk_explain(context, &product, &plan), QK_OK) << qk_context_error(context);
        EXPECT_STREQ(plan.kernel, "nothing");
        EXPECT_STREQ(plan.reason, "");
        EXPECT_EQ(plan.batch_first, 0);
        EXPECT_EQ(plan.batch_last, 0);
        EXPECT_EQ(plan.workspace_bytes, 0u);
        size_t bytes = 77;
        EXPECT_EQ(qk_multiply_workspace(context, &product, 1, &bytes), QK_OK);
        EXPECT_EQ(bytes, 0u);
        calls = {};
        EXPECT_EQ(qk_multiply(context, &product, 1), QK_OK) << qk_context_error(context);
        EXPECT_EQ(calls.kernels, std::vector<std::string>{"nothing"});
        EXPECT_EQ(calls.rows, std::vector<int64_t>{0});
    }
};

TEST_F(EmptyProducts, Succeed) {
    for (qk_tensor_desc desc : weight_descs(kRows, kColumns, 16)) {
        for (const uint32_t ordered : {0u, QK_TENSOR_ORDERED}) {
            desc.flags |= ordered;
            qk_tensor *const w = keep(create(context, desc));
            for (const qk_format format : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
                expect_nothing(product(format, w));
                expect_nothing(product(format, w, QK_PRODUCT_TRANSPOSED));
                expect_nothing(product(format, w, QK_PRODUCT_ACCUMULATE));
            }
        }
    }
    const qk_tensor_desc desc = dense_desc(QK_FORMAT_F16, {kRows, kColumns});
    qk_product dense = product(QK_FORMAT_F16, keep(create(context, desc)));
    dense.bias = keep(create(context, dense_desc(QK_FORMAT_F32, {kRows})));
    expect_nothing(dense);
    EXPECT_EQ(qk_linear(context, dense.x, dense.w, dense.bias, dense.y), QK_OK);
}

TEST_F(EmptyProducts, SucceedInEveryMode) {
    for (const uint32_t mode : {QK_CONTEXT_BF16_PRODUCTS, QK_CONTEXT_INT8_ACTIVATIONS}) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.flags = mode;
        qk_context *own = nullptr;
        ASSERT_EQ(qk_context_create(&options, &own), QK_OK);
        qk_tensor *const w =
            keep(create(own, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, kRows, kColumns)));
        const qk_product p = product(QK_FORMAT_F32, w);
        EXPECT_EQ(qk_linear(own, p.x, p.w, nullptr, p.y), QK_OK) << "with no workspace at all";
        qk_context_destroy(own);
    }
}

TEST_F(EmptyProducts, AreLeftOutOfLists) {
    Planes dense(dense_desc(QK_FORMAT_F32, {kRows, kColumns}));
    dense.fill_dense(QK_FORMAT_F32);
    qk_tensor *const from =
        keep(wrap(context, dense_desc(QK_FORMAT_F32, {kRows, kColumns}), dense));
    qk_tensor *const w = keep(create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32)));
    ASSERT_EQ(qk_quantize(context, from, w), QK_OK);
    Planes y_plane(dense_desc(QK_FORMAT_F32, {2, kRows, kRows}));
    qk_tensor *y[2];
    for (int64_t i = 0; i < 2; ++i) {
        void *planes[QK_PLANE_COUNT] = {y_plane.as<float>() + i * kRows * kRows};
        y[i] = keep(wrap(context, dense_desc(QK_FORMAT_F32, {kRows, kRows}), planes));
    }
    ASSERT_EQ(qk_linear(context, from, w, nullptr, y[0]), QK_OK);
    const qk_product full = {sizeof(qk_product), 0, from, w, nullptr, y[1], nullptr};
    const qk_product none = product(QK_FORMAT_F32, w);
    std::vector<qk_product> list = {none, full, none, none, full};
    ASSERT_EQ(qk_multiply(context, list.data(), 5), QK_OK) << qk_context_error(context);
    const float *const sums = y_plane.as<float>();
    EXPECT_EQ(0, memcmp(sums, sums + kRows * kRows, size_t(kRows * kRows) * 4));
    list.assign(70, none);  // longer than what is kept from the check to the run
    EXPECT_EQ(qk_multiply(context, list.data(), 70), QK_OK) << qk_context_error(context);
}

TEST_F(EmptyProducts, AreCheckedLikeAnyOther) {
    qk_tensor *const w = keep(create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32)));
    const auto expect = [&](const qk_product &p, qk_status status, const char *sentence) {
        EXPECT_EQ(qk_multiply(context, &p, 1), status);
        EXPECT_STREQ(qk_context_error(context), (std::string("products[0]: ") + sentence).c_str());
    };
    qk_product p = product(QK_FORMAT_F32, w);
    p.x = nothing(QK_FORMAT_F32, {0, 33});
    expect(p, QK_ERROR_SHAPE, "w: k is 32, x has k 33");
    p = product(QK_FORMAT_F32, w);
    p.y = nothing(QK_FORMAT_F32, {0, 17});
    expect(p, QK_ERROR_SHAPE, "y: n is 17, w has n 16");
    p.y = keep(create(context, dense_desc(QK_FORMAT_F32, {1, kRows})));
    expect(p, QK_ERROR_SHAPE, "y: m is 1, x has m 0");
    p.x = keep(create(context, dense_desc(QK_FORMAT_F32, {1, kColumns})));
    p.y = nothing(QK_FORMAT_F32, {0, kRows});
    expect(p, QK_ERROR_SHAPE, "y: m is 0, x has m 1");
    p = product(QK_FORMAT_F16, w);
    p.y = nothing(QK_FORMAT_BF16, {0, kRows});
    expect(p, QK_ERROR_FORMAT, "y: is bf16, x is f16: they must be equal, or y f32");
    p = product(QK_FORMAT_F32, nothing(QK_FORMAT_F32, {0, kColumns}));
    expect(p, QK_ERROR_SHAPE, "w: has no rows, must have at least 1");
    p = product(QK_FORMAT_F32, w);
    qk_tensor_desc read_only = dense_desc(QK_FORMAT_F32, {0, kRows});
    read_only.flags = QK_TENSOR_READ_ONLY;
    p.y = keep(wrap_null(context, read_only));
    expect(p, QK_ERROR_STATE, "y: is read-only");
    size_t bytes = 0;
    EXPECT_EQ(qk_linear_workspace(context, nothing(QK_FORMAT_F16, {0, 8}), 1, &bytes),
              QK_ERROR_SHAPE);
    qk_tensor *const to = nothing(QK_FORMAT_F32, {0, kColumns});
    EXPECT_EQ(qk_dequantize(context, w, to), QK_ERROR_SHAPE) << "w has rows";
}

// No tokens, with and without a sum of slots; and no rank of experts has none.
TEST_F(EmptyProducts, OfExpertsSucceed) {
    qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, 0, 0);
    desc.rank = 3;
    desc.shape[0] = 4, desc.shape[1] = kRows, desc.shape[2] = kColumns;
    qk_tensor *const w = keep(create(context, desc));
    qk_experts experts = QK_EXPERTS_INIT;
    experts.expert = nothing(QK_FORMAT_I32, {0, 2});
    for (const bool joined : {false, true}) {
        experts.activation = joined ? QK_ACTIVATION_SILU : QK_ACTIVATION_NONE;
        const int64_t n = joined ? kRows / 2 : kRows;
        qk_product p = {sizeof(qk_product),
                        0,
                        nothing(QK_FORMAT_F16, {0, kColumns}),
                        w,
                        keep(create(context, dense_desc(QK_FORMAT_F32, {4, kRows}))),
                        nothing(QK_FORMAT_F16, {0, n}),
                        &experts};
        experts.weight = nothing(QK_FORMAT_F32, {0, 2});
        expect_nothing(p);
        experts.weight = nullptr;
        p.x = nothing(QK_FORMAT_F16, {0, 2, kColumns});
        p.y = nothing(QK_FORMAT_F16, {0, 2, n});
        expect_nothing(p);
        const std::vector<qk_product> layer(2, p);
        EXPECT_EQ(qk_multiply(context, layer.data(), 2), QK_OK);
        p.y = nothing(QK_FORMAT_F16, {0, 3, n});
        EXPECT_EQ(qk_multiply(context, &p, 1), QK_ERROR_SHAPE);
    }
    qk_tensor *none = nullptr;
    desc.shape[0] = 0;
    EXPECT_EQ(qk_tensor_create(context, &desc, &none), QK_ERROR_SHAPE);
}

TEST_F(Empty, TravelByDlpack) {
    DlSource source(0, kColumns);
    source.managed.dl_tensor.data = nullptr;  // as torch's have none
    source.managed.dl_tensor.byte_offset = 64;
    source.strides[0] = 0, source.strides[1] = -7;  // nobody takes a step
    qk_tensor *tensor = nullptr;
    ASSERT_EQ(qk_tensor_from_dlpack(context, &source.managed, &tensor), QK_OK)
        << qk_context_error(context);
    DLManagedTensorVersioned *out = nullptr;
    ASSERT_EQ(qk_tensor_to_dlpack(tensor, QK_PLANE_DATA, &out), QK_OK);
    EXPECT_EQ(out->dl_tensor.ndim, 2);
    EXPECT_EQ(out->dl_tensor.shape[0], 0);
    EXPECT_EQ(out->dl_tensor.shape[1], kColumns);
    EXPECT_EQ(out->dl_tensor.data, nullptr);
    EXPECT_EQ(qk_tensor_to_dlpack(tensor, QK_PLANE_SCALE, &out), QK_ERROR_FORMAT);
    out->deleter(out);
    qk_tensor_destroy(tensor);
    EXPECT_EQ(source.deleted, 1);
}

// A stream without a new sample: the state stays, and so do ranges. A batch has sequences.
TEST_F(Empty, StepsOfAGruAreNone) {
    const std::vector<float> w(3 * 2 * 2, 0.25f);
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = config.hidden_size = 2;
    qk_gru *gru = nullptr;
    ASSERT_EQ(qk_gru_create(context, &config, w.data(), w.data(), nullptr, nullptr, &gru), QK_OK);
    Planes plane(dense_desc(QK_FORMAT_F32, {3, 2}));
    plane.fill_dense(QK_FORMAT_F32);
    qk_tensor *const x = keep(wrap(context, dense_desc(QK_FORMAT_F32, {3, 2}), plane));
    qk_tensor *const y = keep(create(context, dense_desc(QK_FORMAT_F32, {3, 2})));
    qk_tensor *const none = nothing(QK_FORMAT_F32, {0, 2});
    qk_tensor *const no_batch = nothing(QK_FORMAT_F32, {3, 0, 2});
    EXPECT_EQ(qk_gru_calibrate(context, gru, none, nullptr), QK_OK);
    EXPECT_EQ(qk_gru_freeze(context, gru), QK_ERROR_STATE) << "has seen nothing yet";
    EXPECT_EQ(qk_gru_run_float(context, gru, none, nullptr, none), QK_OK);
    EXPECT_EQ(qk_gru_calibrate(context, gru, no_batch, nullptr), QK_ERROR_SHAPE);
    EXPECT_EQ(qk_gru_run_float(context, gru, no_batch, nullptr, no_batch), QK_ERROR_SHAPE);
    EXPECT_STREQ(qk_context_error(context), "x: has no sequences, at least 1 is needed");
    ASSERT_EQ(qk_gru_calibrate(context, gru, x, nullptr), QK_OK);
    ASSERT_EQ(qk_gru_freeze(context, gru), QK_OK);
    qk_gru_state *state = nullptr;
    ASSERT_EQ(qk_gru_state_create(context, gru, 1, &state), QK_OK);
    ASSERT_EQ(qk_gru_run(context, gru, state, x, y), QK_OK);
    float before[2], after[2];
    EXPECT_EQ(qk_gru_state_read(context, state, before), QK_OK);
    EXPECT_EQ(qk_gru_run(context, gru, state, none, none), QK_OK) << qk_context_error(context);
    EXPECT_EQ(qk_gru_run_gates(context, gru, state, none, none, nothing(QK_FORMAT_F32, {0, 8})),
              QK_OK);
    EXPECT_EQ(qk_gru_state_read(context, state, after), QK_OK);
    EXPECT_EQ(0, memcmp(before, after, sizeof before));
    EXPECT_EQ(qk_gru_run(context, gru, state, no_batch, no_batch), QK_ERROR_SHAPE);
    qk_gru_state_destroy(state);
    qk_gru_destroy(gru);
}

}  // namespace
}  // namespace api

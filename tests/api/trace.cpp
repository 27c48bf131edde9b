// A context tells its trace of each kernel that runs: which, in what operation, on which shape.
#include <gtest/gtest.h>

#include <cfenv>
#include <csetjmp>
#include <stdexcept>
#include <thread>

#include "api/support.hpp"

namespace api {
namespace {

struct Log {
    std::vector<qk_trace> calls;
    std::vector<std::string> kernels;
    std::thread::id thread;
    int rounding = -1;
    bool throws = false;

    static void note(void *user, const qk_trace *call) {
        Log &log = *static_cast<Log *>(user);
        log.calls.push_back(*call);
        log.kernels.push_back(call->kernel);
        log.thread = std::this_thread::get_id();
        log.rounding = std::fegetround();
        if (log.throws) throw std::runtime_error("enough");
    }
};

class Trace : public ::testing::Test {
  protected:
    Trace() {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 2;
        options.trace = Log::note;
        options.trace_user = &log;
        EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
        x_plane.fill_dense(QK_FORMAT_F32);
        d_plane.fill_dense(QK_FORMAT_F32);
        x = wrap(context, x_desc, x_plane);
        y = wrap(context, y_desc, y_plane);
        d = wrap(context, d_desc, d_plane);
        w = create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 40, 96, 32));
        packed = create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, 40, 96, 32));
    }
    ~Trace() override {
        for (qk_tensor *const tensor : {x, y, d, w, packed}) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
    }
    void expect_last(size_t count, const char *operation, std::array<int64_t, 4> shape) const {
        ASSERT_EQ(log.calls.size(), count);
        const qk_trace &call = log.calls.back();
        EXPECT_EQ(call.struct_size, sizeof(qk_trace));
        EXPECT_EQ(call.status, QK_OK);
        EXPECT_STREQ(call.operation, operation);
        EXPECT_FALSE(log.kernels.back().empty());
        for (size_t i = 0; i < 4; ++i) EXPECT_EQ(call.shape[i], shape[i]) << operation << i;
        EXPECT_GE(call.seconds, 0);
        EXPECT_LT(call.seconds, 1000);
    }

    Log log;
    qk_context *context = nullptr;
    qk_tensor_desc x_desc = dense_desc(QK_FORMAT_F32, {3, 96});
    qk_tensor_desc y_desc = dense_desc(QK_FORMAT_F32, {3, 40});
    qk_tensor_desc d_desc = dense_desc(QK_FORMAT_F32, {40, 96});
    Planes x_plane{x_desc}, y_plane{y_desc}, d_plane{d_desc};
    qk_tensor *x, *y, *d, *w, *packed;
};

TEST_F(Trace, TellsEachOperation) {
    ASSERT_EQ(qk_quantize(context, d, w), QK_OK);
    expect_last(1, "quantize", {40, 96, 0, 0});
    ASSERT_EQ(qk_repack(context, w, packed), QK_OK);
    expect_last(2, "repack", {40, 96, 0, 0});
    ASSERT_EQ(qk_dequantize(context, packed, d), QK_OK);
    expect_last(3, "dequantize", {40, 96, 0, 0});
    ASSERT_EQ(qk_linear(context, x, w, nullptr, y), QK_OK);
    expect_last(4, "multiply", {3, 40, 96, 0});
    const qk_product product = {sizeof(qk_product), 0, x, packed, nullptr, y, nullptr};
    const qk_product list[] = {product, product};
    ASSERT_EQ(qk_multiply(context, list, 2), QK_OK);
    expect_last(6, "multiply", {3, 40, 96, 0});
    EXPECT_EQ(log.thread, std::this_thread::get_id());
    EXPECT_EQ(qk_multiply(context, list, -1), QK_ERROR_ARGUMENT);
    EXPECT_EQ(log.calls.size(), 6u) << "refused calls run nothing";
}

TEST_F(Trace, TellsGrus) {
    constexpr int32_t c = 8, h = 16, steps = 5;
    std::vector<float> wi(3 * h * c, 0.1f), wh(3 * h * h, 0.05f);
    const auto gx_desc = dense_desc(QK_FORMAT_F32, {steps, c});
    const auto gy_desc = dense_desc(QK_FORMAT_F32, {steps, h});
    Planes gx(gx_desc), gy(gy_desc);
    gx.fill_dense(QK_FORMAT_F32);
    qk_tensor *const in = wrap(context, gx_desc, gx), *const out = wrap(context, gy_desc, gy);
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = c;
    config.hidden_size = h;
    qk_gru *gru = nullptr;
    qk_gru_state *state = nullptr;
    ASSERT_EQ(qk_gru_create(context, &config, wi.data(), wh.data(), nullptr, nullptr, &gru), QK_OK);
    ASSERT_EQ(qk_gru_calibrate(context, gru, in, nullptr), QK_OK);
    ASSERT_EQ(qk_gru_freeze(context, gru), QK_OK) << qk_context_error(context);
    ASSERT_EQ(qk_gru_state_create(context, gru, 1, &state), QK_OK);
    const size_t before = log.calls.size();
    ASSERT_EQ(qk_gru_run(context, gru, state, in, out), QK_OK) << qk_context_error(context);
    expect_last(before + 1, "gru_run", {steps, 1, c, h});
    qk_gru_state_destroy(state);
    qk_gru_destroy(gru);
    qk_tensor_destroy(in);
    qk_tensor_destroy(out);
}

// As every callback: it finds the caller's floating-point mode.
TEST_F(Trace, RunsInTheCallersFloatingPointMode) {
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    EXPECT_EQ(qk_linear(context, x, d, nullptr, y), QK_OK);
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(log.rounding, FE_UPWARD);
}

// One that throws abandons its call; the context goes on.
TEST_F(Trace, MayThrow) {
    log.throws = true;
    EXPECT_THROW(qk_linear(context, x, d, nullptr, y), std::runtime_error);
    log.throws = false;
    const auto left = y_plane.bytes[0];
    EXPECT_EQ(qk_linear(context, x, d, nullptr, y), QK_OK);
    EXPECT_EQ(y_plane.bytes[0], left) << "told after the kernel has run";
    EXPECT_EQ(log.calls.size(), 2u);
}

}  // namespace
}  // namespace api

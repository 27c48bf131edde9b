// Contexts on many threads at once, and many contexts one after the other.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "api/support.hpp"
#include "harness/system.hpp"

namespace api {
namespace {

using harness::Resources;
using harness::resources;

#if defined(QK_SANITIZED)
constexpr bool kSanitized = true;
constexpr int kScale = 10;  // everything takes ten times as long
#elif defined(QK_EMULATED)
constexpr bool kSanitized = false;
constexpr int kScale = 10;  // so does it in an emulator
#else
constexpr bool kSanitized = false;
constexpr int kScale = 1;
#endif

// The kernel lists a joined thread until it has finished with it: a moment, not for good.
int settled_threads() {
    int least = resources().threads;
    for (int i = 0; i < 200; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const int now = resources().threads;
        if (now < least) least = now;
    }
    return least;
}

constexpr int64_t kN = 1027, kK = 288;  // enough for two tasks

// One context's product with shared weights; the bytes of y.
std::vector<float> multiply(qk_context *context, qk_tensor *w, qk_tensor *x) {
    std::vector<float> y(kN, -1.0f);
    void *planes[] = {y.data()};
    qk_tensor *out = nullptr;
    const auto desc = dense_desc(QK_FORMAT_F32, {1, kN});
    EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, 1, &out), QK_OK);
    const qk_product product = {sizeof(qk_product), 0, x, w, nullptr, out, nullptr};
    EXPECT_EQ(qk_multiply(context, &product, 1), QK_OK) << qk_context_error(context);
    qk_tensor_destroy(out);
    return y;
}

class Shared : public ::testing::Test {
  protected:
    Shared()
        : matrix(dense_desc(QK_FORMAT_F32, {kN, kK})), vector(dense_desc(QK_FORMAT_F32, {kK})) {
        matrix.fill_dense(QK_FORMAT_F32, 1);
        vector.fill_dense(QK_FORMAT_F32, 2);
        home = make_context(allocator);
        auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, kN, kK, 32);
        w = create(home, desc);
        desc.layout = QK_LAYOUT_PACKED;
        packed = create(home, desc);
        qk_tensor *const dense = wrap(home, dense_desc(QK_FORMAT_F32, {kN, kK}), matrix);
        x = wrap(home, dense_desc(QK_FORMAT_F32, {kK}), vector);
        EXPECT_EQ(qk_quantize(home, dense, w), QK_OK);
        EXPECT_EQ(qk_repack(home, w, packed), QK_OK);
        qk_tensor_destroy(dense);
    }
    ~Shared() override {
        for (qk_tensor *const tensor : {w, packed, x}) qk_tensor_destroy(tensor);
        qk_context_destroy(home);
        EXPECT_EQ(allocator.live(), 0);
    }
    Allocator allocator;
    Planes matrix, vector;
    qk_context *home = nullptr;
    qk_tensor *w = nullptr, *packed = nullptr, *x = nullptr;
};

// 16 threads, a context each (some with workers of their own), the same weights: no race, and
// every thread gets the same bits. Errors stay in the context that made them.
TEST_F(Shared, SixteenThreadsReadTheSameWeights) {
    const auto expected = multiply(home, w, x), expected_packed = multiply(home, packed, x);
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int t = 0; t < 16; ++t) {
        threads.emplace_back([&, t] {
            qk_context *const context = make_context(allocator, 1 + t % 3);
            qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
            for (int i = 0; i < 200 / kScale; ++i) {
                failures += multiply(context, w, x) != expected;
                failures += multiply(context, packed, x) != expected_packed;
                failures += qk_tensor_describe(w, &desc) != QK_OK;
                qk_plan plan = QK_PLAN_INIT;
                const qk_product product = {sizeof(qk_product), 0, x, w, nullptr, x, nullptr};
                failures += qk_explain(context, &product, &plan) != QK_ERROR_SHAPE;
                size_t bytes = 0;
                failures += qk_linear_workspace(context, w, -1 - t, &bytes) != QK_ERROR_SHAPE;
                const std::string mine = "m_max: is " + std::to_string(-1 - t) + ",";
                failures += std::strstr(qk_context_error(context), mine.c_str()) == nullptr;
            }
            qk_context_destroy(context);
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_STREQ(qk_context_error(home), "");
}

// A context may move between threads, one at a time, and children may be let go of anywhere.
TEST_F(Shared, AContextMovesBetweenThreads) {
    qk_context *const context = make_context(allocator, 2);
    const auto expected = multiply(home, w, x);
    for (int i = 0; i < 50; ++i) {
        std::thread([&] { EXPECT_EQ(multiply(context, w, x), expected); }).join();
    }
    std::vector<std::thread> threads;
    std::vector<qk_tensor *> children;
    const auto small = dense_desc(QK_FORMAT_F32, {9});
    for (int i = 0; i < 64; ++i) children.push_back(create(context, small));
    qk_context_destroy(context);
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
            for (size_t i = size_t(t); i < children.size(); i += 8) qk_tensor_destroy(children[i]);
        });
    }
    for (std::thread &thread : threads) thread.join();
}

// Workers start and stop 10^4 times, with work in flight and without.
TEST_F(Shared, PoolsStartAndStop) {
    const auto expected = multiply(home, w, x);
    // ThreadSanitizer starts a thread of its own with the first one that a process makes.
    qk_context_destroy(make_context(allocator, 2));
    const int threads = settled_threads(), descriptors = resources().descriptors;
    for (int i = 0; i < 10000 / kScale; ++i) {
        qk_context *const context = make_context(allocator, 2 + i % 3);
        if (i % 2 == 0) {
            ASSERT_EQ(multiply(context, w, x), expected);
        }
        qk_context_destroy(context);
    }
    EXPECT_EQ(settled_threads(), threads) << "a worker outlives its context";
    EXPECT_EQ(resources().descriptors, descriptors);
}

TEST_F(Shared, CreateAndDestroyKeepsNothing) {
    const auto cycle = [&](int count) {
        for (int i = 0; i < count; ++i) {
            qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
            options.thread_count = 1;
            options.workspace_bytes = 4096;
            qk_context *context = nullptr;
            ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
            qk_tensor *const tensor = create(context, dense_desc(QK_FORMAT_F32, {64, 64}));
            qk_context_destroy(context);
            qk_tensor_destroy(tensor);
        }
    };
    cycle(1000);  // the C library's own caches fill, also those that measuring needs
    resources();
    const Resources before = resources();
    cycle(100000 / kScale);
    const Resources after = resources();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_LE(after.threads, before.threads);
    if (kSanitized) {
        std::printf("resident memory not compared: the sanitizer keeps freed blocks\n");
    } else {  // the smallest block kept a cycle would be 32 bytes x 10^5
        EXPECT_LT(after.resident_bytes - before.resident_bytes, 32 * 100000 / 2);
    }
}

}  // namespace
}  // namespace api

// The caller's threads are used as told, and no result depends on how work is cut or ordered.
#include <gtest/gtest.h>

#include <thread>

#include "api/support.hpp"

namespace api {
namespace {

using Task = void (*)(void *, int32_t);

struct Executor {
    enum Order { kForward, kReverse, kShuffled, kThreads } order;
    int32_t concurrency;
    std::atomic<int64_t> calls{0}, tasks{0};

    Executor(Order o, int32_t c) : order(o), concurrency(c) {}
    qk_executor table() { return {run, this, concurrency}; }

    static void run(void *user, int32_t count, Task task, void *argument) {
        Executor &self = *static_cast<Executor *>(user);
        EXPECT_GE(count, 1);
        ++self.calls;
        self.tasks += count;
        switch (self.order) {
            case kForward:
                for (int32_t i = 0; i < count; ++i) task(argument, i);
                break;
            case kReverse:
                for (int32_t i = count - 1; i >= 0; --i) task(argument, i);
                break;
            case kShuffled: {  // a prime step modulo a count it does not divide meets all
                const int64_t step = count % 7919 == 0 ? 1 : 7919;
                for (int64_t i = 0; i < count; ++i) task(argument, int32_t(i * step % count));
                break;
            }
            case kThreads: {
                std::atomic<int32_t> next{0};
                std::vector<std::thread> threads;
                for (int t = 0; t < 4; ++t) {
                    threads.emplace_back([&] {
                        for (int32_t i = next++; i < count; i = next++) task(argument, i);
                    });
                }
                for (std::thread &thread : threads) thread.join();
            }
        }
    }
};

void append(std::vector<unsigned char> *all, const Planes &planes) {
    for (const auto &bytes : planes.bytes) all->insert(all->end(), bytes.begin(), bytes.end());
}

// Every operation on one description; all output bytes, one after the other.
std::vector<unsigned char> outputs_of(qk_context *context, const qk_tensor_desc &desc) {
    const int64_t n = desc.shape[0], k = desc.shape[1], m = 5;
    const auto matrix = dense_desc(QK_FORMAT_F32, {n, k});
    const auto x_desc = dense_desc(QK_FORMAT_F16, {m, k});
    const auto y_desc = dense_desc(QK_FORMAT_F16, {m, n});
    qk_tensor_desc to_desc = desc;
    to_desc.layout = desc.layout == QK_LAYOUT_ROW ? QK_LAYOUT_ROW_HIGH : QK_LAYOUT_ROW;
    const bool wide = desc.format == QK_FORMAT_LUT8 || desc.format == QK_FORMAT_S8;
    if (wide) to_desc.layout = QK_LAYOUT_ROW;
    Planes w(matrix), q(desc), to(to_desc), back(matrix), x(x_desc), y(y_desc), bias(
        dense_desc(QK_FORMAT_F32, {n}));
    w.fill_dense(QK_FORMAT_F32, 3);
    x.fill_dense(QK_FORMAT_F16, 5);
    bias.fill_dense(QK_FORMAT_F32, 7);
    q.fill_tables();
    qk_tensor *const tensors[] = {wrap(context, matrix, w),   wrap(context, desc, q),
                                  wrap(context, to_desc, to), wrap(context, matrix, back),
                                  wrap(context, x_desc, x),   wrap(context, y_desc, y),
                                  wrap(context, dense_desc(QK_FORMAT_F32, {n}), bias)};
    EXPECT_EQ(qk_quantize(context, tensors[0], tensors[1]), QK_OK) << qk_context_error(context);
    EXPECT_EQ(qk_repack(context, tensors[1], tensors[2]), QK_OK) << qk_context_error(context);
    EXPECT_EQ(qk_dequantize(context, tensors[1], tensors[3]), QK_OK) << qk_context_error(context);
    EXPECT_EQ(qk_linear(context, tensors[4], tensors[1], tensors[6], tensors[5]), QK_OK);
    std::vector<unsigned char> all;
    append(&all, q);
    append(&all, to);
    append(&all, back);
    append(&all, y);
    to_desc.layout = QK_LAYOUT_PACKED;
    qk_tensor *const packed = create(context, to_desc);
    EXPECT_EQ(qk_repack(context, tensors[1], packed), QK_OK) << qk_context_error(context);
    EXPECT_EQ(qk_linear(context, tensors[4], packed, nullptr, tensors[5]), QK_OK);
    append(&all, y);
    qk_tensor_destroy(packed);
    for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
    return all;
}

// 77 x 105 is odd in every way; 600 rows give every executor more tasks than threads.
std::vector<qk_tensor_desc> shapes() {
    auto all = weight_descs(77, 105, 32);
#if defined(QK_SANITIZED)
    // Sanitizers look at how tasks touch memory, not at every format: every seventh will do.
    for (size_t i = 0; i * 7 < all.size(); ++i) all[i] = all[i * 7];
    all.resize((all.size() + 6) / 7);
#endif
    auto large = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 601, 100, 64, QK_FORMAT_LUT8);
    large.grouping = QK_GROUPING_FLAT;
    all.push_back(large);
    large = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, 601, 256, 128, QK_FORMAT_F16);
    all.push_back(large);
    return all;
}

TEST(Executor, ResultsEqualForAnyNumberOfThreads) {
    Allocator allocator;
    qk_context *const one = make_context(allocator, 1);
    std::vector<qk_context *> contexts;
    for (const int32_t threads : {2, 3, 4, 7, 16}) {
        contexts.push_back(make_context(allocator, threads));
    }
    for (const qk_tensor_desc &desc : shapes()) {
        const auto expected = outputs_of(one, desc);
        ASSERT_FALSE(expected.empty());
        for (qk_context *const context : contexts) {
            ASSERT_EQ(outputs_of(context, desc), expected)
                << "format " << desc.format << " layout " << desc.layout << " scales "
                << desc.scale_format << " grouping " << desc.grouping;
        }
    }
    for (qk_context *const context : contexts) qk_context_destroy(context);
    qk_context_destroy(one);
    EXPECT_EQ(allocator.live(), 0);
}

TEST(Executor, ResultsEqualForAnyExecutor) {
    Allocator allocator;
    qk_context *const one = make_context(allocator, 1);
    Executor executors[] = {{Executor::kForward, 1},  {Executor::kForward, 64},
                            {Executor::kReverse, 64}, {Executor::kShuffled, 5},
                            {Executor::kThreads, 64}, {Executor::kReverse, INT32_MAX}};
    const auto descs = shapes();
    std::vector<std::vector<unsigned char>> expected;
    for (const qk_tensor_desc &desc : descs) expected.push_back(outputs_of(one, desc));
    for (Executor &executor : executors) {
        const qk_executor table = executor.table();
        qk_context *const context = make_context(allocator, 0, &table);
        for (size_t i = 0; i < descs.size(); ++i) {
            const qk_tensor_desc &desc = descs[i];
            ASSERT_EQ(outputs_of(context, desc), expected[i])
                << "order " << executor.order << ", concurrency " << executor.concurrency
                << ", format " << desc.format << " layout " << desc.layout;
        }
        qk_context_destroy(context);
        if (executor.concurrency > 1) {
            EXPECT_GT(executor.calls, int64_t(descs.size())) << "the executor was not used";
            EXPECT_GT(executor.tasks, 4 * executor.calls);
        }
    }
    qk_context_destroy(one);
    EXPECT_EQ(allocator.live(), 0);
}

// The table is copied: the caller's struct may go away.
TEST(Executor, TablesAreCopied) {
    Executor executor(Executor::kReverse, 8);
    qk_context *context = nullptr;
    {
        const qk_executor table = executor.table();
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.executor = &table;
        options.thread_count = 5;  // nothing beside an executor
        ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
        std::memset(static_cast<void *>(&options), 0xff, sizeof(options));
        const_cast<qk_executor &>(table).parallel_for = nullptr;
    }
    const auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 64, 64, 64);
    EXPECT_FALSE(outputs_of(context, desc).empty());
    EXPECT_GT(executor.calls, 0);
    qk_context_destroy(context);
}

}  // namespace
}  // namespace api

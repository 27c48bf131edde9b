// The caller's threads are used as told, and no result depends on how work is cut or ordered.
#include <gtest/gtest.h>

#include <thread>

#include "api/outputs.hpp"

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

TEST(Executor, ResultsEqualForAnyNumberOfThreads) {
    Allocator allocator;
    qk_context *const one = make_context(allocator, 1);
    std::vector<qk_context *> contexts;
    for (const int32_t threads : {2, 3, 4, 7, 16}) {
        contexts.push_back(make_context(allocator, threads));
    }
    for (const qk_tensor_desc &desc : odd_descs()) {
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
    const auto descs = odd_descs();
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

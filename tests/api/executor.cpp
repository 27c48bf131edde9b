// The caller's threads are used as told, and no result depends on how work is cut or ordered.
#include <gtest/gtest.h>
#include <setjmp.h>

#include <stdexcept>
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
    for (const qk_tensor_desc &desc : odd_descs(619)) {
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

// ------------------------------------------------------------------- what an executor may not do

// 601 rows: many tasks. Returns the status of a product and whether y has the right bits.
struct Product {
    Allocator allocator;
    qk_tensor_desc w_desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 601, 128, 32);
    qk_tensor_desc x_desc = dense_desc(QK_FORMAT_F32, {3, 128});
    qk_tensor_desc y_desc = dense_desc(QK_FORMAT_F32, {3, 601});
    Planes w{w_desc, 0x33}, x{x_desc}, y{y_desc};
    qk_context *context;
    qk_tensor *tensors[3];
    std::vector<unsigned char> expected;

    explicit Product(const qk_executor &executor) {
        x.fill_dense(QK_FORMAT_F32);
        qk_context *const one = make_context(allocator, 1);
        make_tensors(one);
        EXPECT_EQ(run(one), QK_OK);
        expected = y.bytes[0];
        destroy(one);
        context = make_context(allocator, 0, &executor);
        make_tensors(context);
    }
    ~Product() {
        destroy(context);
        EXPECT_EQ(allocator.live(), 0);
    }
    void make_tensors(qk_context *home) {
        tensors[0] = wrap(home, x_desc, x);
        tensors[1] = wrap(home, w_desc, w);
        tensors[2] = wrap(home, y_desc, y);
    }
    void destroy(qk_context *home) {
        for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
        qk_context_destroy(home);
    }
    qk_status run(qk_context *home) {
        std::memset(y.bytes[0].data(), 0xa5, y.bytes[0].size());
        return qk_linear(home, tensors[0], tensors[1], nullptr, tensors[2]);
    }
    qk_status run() { return run(context); }
    bool is_right() const { return y.bytes[0] == expected; }
};

struct Liar {
    enum What { kHonest, kSkips, kSkipsAll, kRepeats, kRepeatsAndSkips, kInvents, kThrows, kJumps };
    What what;
    std::atomic<int32_t> count{0};
    jmp_buf back = {};

    static void run(void *user, int32_t count, Task task, void *argument) {
        Liar &self = *static_cast<Liar *>(user);
        self.count = count;
        for (int32_t i = 0; i < count && self.what != kSkipsAll; ++i) {
            if (self.what == kSkips && i % 3 == 1) continue;
            if (self.what == kRepeatsAndSkips && i == 1) {
                task(argument, 0);  // the number is right, the tasks are not
                continue;
            }
            task(argument, i);
            if (self.what == kThrows && i == count / 2) throw std::runtime_error("cancelled");
            if (self.what == kJumps && i == count / 2) longjmp(self.back, 1);
        }
        if (self.what == kInvents) {
            for (const int32_t index : {-1, count, count + 1, INT32_MIN, INT32_MAX}) {
                task(argument, index);
            }
        }
        if (self.what != kRepeats) return;
        std::vector<std::thread> threads;  // all at once
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([=] {
                for (int32_t i = 0; i < count; ++i) task(argument, i);
            });
        }
        for (std::thread &thread : threads) thread.join();
    }
};

TEST(Executor, TasksLeftOutAreAnError) {
    for (const auto what : {Liar::kSkips, Liar::kSkipsAll, Liar::kRepeatsAndSkips}) {
        Liar liar{what};
        Product product({Liar::run, &liar, 8});
        EXPECT_EQ(product.run(), QK_ERROR_DEVICE_FAULT);
        const int32_t count = liar.count;
        const int32_t ran = what == Liar::kSkipsAll ? 0
                            : what == Liar::kSkips  ? count - (count + 1) / 3
                                                    : count - 1;
        EXPECT_EQ(
            std::string(qk_context_error(product.context)),
            "executor: ran " + std::to_string(ran) + " of " + std::to_string(count) + " tasks");
        liar.what = Liar::kHonest;
        EXPECT_EQ(product.run(), QK_OK) << "the next call has forgotten it";
        EXPECT_TRUE(product.is_right());
    }
}

TEST(Executor, RepeatedAndInventedTasksChangeNothing) {
    for (const auto what : {Liar::kRepeats, Liar::kInvents}) {
        for (const int32_t concurrency : {2, 8, 5000, INT32_MAX}) {
            Liar liar{what};
            Product product({Liar::run, &liar, concurrency});
            EXPECT_EQ(product.run(), QK_OK) << qk_context_error(product.context);
            EXPECT_TRUE(product.is_right());
        }
    }
}

// More often than a context has blocks to work in, of which each such call loses some.
TEST(Executor, ACallThatIsLeftCanBeMadeAgain) {
    Liar liar{Liar::kHonest};
    Product product({Liar::run, &liar, 4});
    for (int i = 0; i < 40; ++i) {
        liar.what = Liar::kThrows;
        EXPECT_THROW(product.run(), std::runtime_error);
        liar.what = Liar::kJumps;
        if (setjmp(liar.back) == 0) {
            product.run();
            ADD_FAILURE() << "did not jump";
        }
        liar.what = Liar::kHonest;
        ASSERT_EQ(product.run(), QK_OK);
        ASSERT_TRUE(product.is_right());
    }
}

TEST(Executor, AnAllocatorThatThrowsLeavesTheContextUsable) {
    static bool throws;
    const qk_allocator allocator = {[](void *, size_t bytes, size_t align) -> void * {
                                        if (throws) throw std::runtime_error("no");
                                        return harness::take_aligned(bytes, align);
                                    },
                                    [](void *, void *pointer) { harness::give_aligned(pointer); },
                                    nullptr};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.allocator = &allocator;
    throws = true;
    qk_context *context = nullptr;
    EXPECT_THROW(qk_context_create(&options, &context), std::runtime_error);
    throws = false;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    const auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 64, 64, 64);
    const auto expected = outputs_of(context, desc);
    throws = true;
    qk_tensor *tensor = nullptr;
    EXPECT_THROW(qk_tensor_create(context, &desc, &tensor), std::runtime_error);
    throws = false;
    EXPECT_EQ(outputs_of(context, desc), expected);
    qk_context_destroy(context);
}

}  // namespace
}  // namespace api

// Memory of tasks: which thread gets which block, when a thread waits, and what an abandoned call
// leaves behind.
#include <gtest/gtest.h>

#include <atomic>
#include <csetjmp>
#include <set>
#include <thread>
#include <vector>

#include "backend/scratch.hpp"
#include "harness/allocator.hpp"

namespace {

class Scratch : public ::testing::Test {
  protected:
    qk::Scratch *make(int32_t concurrency) {
        return scratch_ = qk::scratch_create(*allocator_.functions(), concurrency);
    }
    ~Scratch() override { qk::scratch_destroy(*allocator_.functions(), scratch_); }

  private:
    harness::Allocator allocator_;
    qk::Scratch *scratch_ = nullptr;
};

TEST_F(Scratch, BlocksAreApart) {
    qk::Scratch *const scratch = make(3);
    std::set<char *> blocks;
    for (int i = 0; i < 5; ++i) blocks.insert(static_cast<char *>(qk::scratch_take(scratch)));
    ASSERT_EQ(blocks.size(), 5u);  // one is for what a call shares, one for gathered x
    for (auto at = std::next(blocks.begin()); at != blocks.end(); ++at) {
        EXPECT_GE(size_t(*at - *std::prev(at)), qk::kScratchBytes);
    }
}

TEST_F(Scratch, AThreadKeepsItsBlock) {
    qk::Scratch *const scratch = make(8);
    void *const mine = qk::scratch_take(scratch);
    qk::scratch_give(scratch, mine);
    void *theirs = nullptr;
    std::thread([&] {
        theirs = qk::scratch_take(scratch);
        qk::scratch_give(scratch, theirs);
    }).join();
    EXPECT_NE(theirs, mine);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(qk::scratch_take(scratch), mine);
        qk::scratch_give(scratch, mine);
    }
}

// More threads than blocks: each block has one owner at a time, and all get their turn.
TEST_F(Scratch, WhoFindsNoneWaits) {
    qk::Scratch *const scratch = make(2);
    std::atomic<int> at_work{0}, most{0}, turns{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
            for (int turn = 0; turn < 200; ++turn) {
                volatile int *const block = static_cast<int *>(qk::scratch_take(scratch));
                const int now = ++at_work;
                for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
                }
                *block = t;
                std::this_thread::yield();
                EXPECT_EQ(*block, t);
                --at_work;
                ++turns;
                qk::scratch_give(scratch, const_cast<int *>(block));
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_LE(most, 4);
    EXPECT_EQ(turns, 8 * 200);
}

TEST_F(Scratch, ResetFreesAll) {
    qk::Scratch *const scratch = make(1);
    for (int i = 0; i < 3; ++i) {  // without the reset the third would wait for ever
        EXPECT_NE(qk::scratch_take(scratch), nullptr);
        qk::scratch_reset(scratch);
    }
}

TEST(ScratchOfContext, IsSmallForOneThreadAndBounded) {
    for (const auto &[concurrency, blocks] : {std::pair{1, 2}, {4, 6}, {INT32_MAX, 258}}) {
        static size_t asked;
        const qk_allocator allocator = {
            [](void *, size_t bytes, size_t) -> void * { return asked = bytes, nullptr; },
            [](void *, void *) {}, nullptr};
        EXPECT_EQ(qk::scratch_create(allocator, concurrency), nullptr);
        EXPECT_GE(asked, size_t(blocks) * qk::kScratchBytes);
        EXPECT_LT(asked, size_t(blocks) * (qk::kScratchBytes + 256));
    }
}

// An executor that runs its tasks and then jumps out of the call, again and again.
jmp_buf g_out;
bool g_jumps;
void run_and_jump(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = 0; i < count; ++i) task(argument, i);
    if (g_jumps) longjmp(g_out, 1);
}

TEST(ScratchOfContext, AbandonedCallsLeaveNoneTaken) {
    const qk_executor executor = {run_and_jump, nullptr, 2};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.executor = &executor;
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    const auto create = [&](qk_format format, qk_layout layout, int64_t rows) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        desc.layout = layout;
        desc.scale_format = format == QK_FORMAT_U4_AFFINE ? QK_FORMAT_F32 : 0;
        desc.group_size = format == QK_FORMAT_U4_AFFINE ? 128 : 0;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = 256;
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK) << qk_context_error(context);
        return tensor;
    };
    qk_tensor *const w = create(QK_FORMAT_U4_AFFINE, QK_LAYOUT_GPTQ, 256);
    qk_tensor *const from = create(QK_FORMAT_F32, QK_LAYOUT_ROW, 256);
    qk_tensor *const x = create(QK_FORMAT_F32, QK_LAYOUT_ROW, 1);
    qk_tensor *const y = create(QK_FORMAT_F32, QK_LAYOUT_ROW, 1);
    ASSERT_EQ(qk_quantize(context, from, w), QK_OK) << qk_context_error(context);
    g_jumps = true;
    volatile int abandoned = 0;
    while (abandoned < 10) {  // its row of x is in a block that all tasks read
        if (setjmp(g_out) == 0) qk_linear(context, x, w, nullptr, y);
        abandoned = abandoned + 1;
    }
    g_jumps = false;
    EXPECT_EQ(qk_linear(context, x, w, nullptr, y), QK_OK);
    for (qk_tensor *const tensor : {w, from, x, y}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

}  // namespace

// Where a system places a page by the thread that touches it first, an executor places weights: a
// thread that always takes the same fraction of the tasks first touches, in qk_repack and
// qk_quantize, the pages that it will read. Seen page by page, by faults.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "api/support.hpp"

namespace api {
namespace {

thread_local int t_worker = -1;

// Threads of which number w runs tasks w * count / threads up to those of the next.
struct Shares {
    int32_t threads;

    qk_executor table() { return {run, this, threads}; }
    static void run(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
        const int64_t threads = static_cast<Shares *>(user)->threads;
        std::vector<std::thread> workers;
        for (int64_t w = 0; w < threads; ++w) {
            workers.emplace_back([=] {
                t_worker = int(w);
                for (int64_t i = w * count / threads; i < (w + 1) * count / threads; ++i)
                    task(argument, int32_t(i));
            });
        }
        for (std::thread &worker : workers) worker.join();
    }
};

// Memory that says which thread touches each page first.
class Watched {
  public:
    static constexpr size_t kMost = size_t{16} << 20;

    Watched() : page_(size_t(sysconf(_SC_PAGESIZE))), first_(kMost / page_) {
        base_ = static_cast<char *>(
            mmap(nullptr, kMost, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_NE(static_cast<void *>(base_), MAP_FAILED);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO;
        self_ = this;
        sigaction(SIGSEGV, &action, &before_);
        forget();
    }
    ~Watched() {
        sigaction(SIGSEGV, &before_, nullptr);
        self_ = nullptr;
        munmap(base_, kMost);
    }
    Watched(const Watched &) = delete;

    // Watches from here on.
    void forget() {
        for (std::atomic<int> &first : first_) first.store(kUntouched);
        EXPECT_EQ(mprotect(base_, kMost, PROT_NONE), 0);
    }
    std::vector<int> touched() const {
        return std::vector<int>(first_.begin(), first_.begin() + ptrdiff_t(used_ / page_));
    }
    static constexpr int kUntouched = -2;  // -1: by no thread of the executor

    // Large blocks are watched: planes of weights.
    qk_allocator table() { return {allocate, release, this}; }

  private:
    static void *allocate(void *user, size_t bytes, size_t align) {
        Watched &self = *static_cast<Watched *>(user);
        if (bytes < kLarge) return harness::take_aligned(bytes, align);
        void *const at = self.base_ + self.used_;
        self.used_ += (bytes + self.page_ - 1) / self.page_ * self.page_;
        EXPECT_LE(self.used_, kMost);
        return at;
    }
    static void release(void *user, void *pointer) {
        const Watched &self = *static_cast<Watched *>(user);
        const size_t at = size_t(static_cast<char *>(pointer) - self.base_);
        if (at >= kMost) harness::give_aligned(pointer);
    }
    static void on_fault(int, siginfo_t *info, void *) {
        Watched &self = *self_;
        const size_t at = size_t(static_cast<char *>(info->si_addr) - self.base_);
        if (at >= kMost) _exit(99);
        int untouched = kUntouched;
        self.first_[at / self.page_].compare_exchange_strong(untouched, t_worker);
        mprotect(self.base_ + at / self.page_ * self.page_, self.page_, PROT_READ | PROT_WRITE);
    }

    static constexpr size_t kLarge = size_t{1} << 20;
    static Watched *self_;
    const size_t page_;
    char *base_;
    size_t used_ = 0;
    std::vector<std::atomic<int>> first_;
    struct sigaction before_;
};
Watched *Watched::self_ = nullptr;

struct Shape {
    const char *name;
    qk_format format;
    qk_layout layout;
    int64_t n, k;
    int32_t threads;
    uint32_t mode;
    int64_t m;
};
void PrintTo(const Shape &shape, std::ostream *out) { *out << shape.name; }

class FirstTouch : public testing::TestWithParam<Shape> {
  protected:
    // Pages that a thread touches in `second` and another in `first`, a thread's share of them.
    static void expect_placed(const std::vector<int> &first, const std::vector<int> &second) {
        const Shape &shape = GetParam();
        std::vector<int> share(size_t(shape.threads), 0);
        int strange = 0;
        for (size_t page = 0; page < first.size(); ++page) {
            const bool behind = page + 1 == first.size();  // the planes, where they begin early
            if (behind && first[page] == Watched::kUntouched) continue;
            ASSERT_GE(first[page], 0) << "page " << page << " of " << first.size();
            ++share[size_t(first[page])];
            strange += second[page] >= 0 && second[page] != first[page];
        }
        for (const int pages : share) {
            EXPECT_GE(pages, int(first.size()) / shape.threads / 2);
        }
        // Where shares meet, a block of rows and the page that they have in common.
        const int64_t block = 128 * shape.k / 2 / sysconf(_SC_PAGESIZE) + 1;
        EXPECT_LE(strange, (shape.threads - 1) * (block + 2)) << "of " << first.size() << " pages";
    }

    Watched watched_;
    qk_allocator memory_ = watched_.table();
};

TEST_P(FirstTouch, WeightsAreReadByTheThreadsThatMadeThem) {
    const Shape &shape = GetParam();
    Allocator allocator;
    Shares shares{shape.threads};
    const qk_executor executor = shares.table();
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    options.allocator = &memory_;
    qk_context *home = nullptr, *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &home), QK_OK);
    options.allocator = allocator.table();
    options.executor = &executor;
    options.flags = shape.mode;
    options.workspace_bytes = size_t{4} << 20;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);

    auto desc = weight_desc(shape.format, shape.layout, shape.n, shape.k, 128, QK_FORMAT_F16);
    if (shape.format == QK_FORMAT_U4_AFFINE) desc.flags = QK_TENSOR_SYMMETRIC;
    Planes planes(desc, 0x11);
    auto packed_desc = desc;
    packed_desc.layout = QK_LAYOUT_PACKED;
    const auto x_desc = dense_desc(QK_FORMAT_F32, {shape.m, shape.k}),
               y_desc = dense_desc(QK_FORMAT_F32, {shape.m, shape.n});
    Planes x_planes(x_desc), y_planes(y_desc);
    x_planes.fill_dense(QK_FORMAT_F32);
    qk_tensor *const stored = wrap(context, desc, planes), *const packed =
                                                               create(home, packed_desc);
    qk_tensor *const x = wrap(context, x_desc, x_planes), *const y =
                                                              wrap(context, y_desc, y_planes);
    for (const int page : watched_.touched()) ASSERT_EQ(page, Watched::kUntouched);

    ASSERT_EQ(qk_repack(context, stored, packed), QK_OK) << qk_context_error(context);
    const std::vector<int> made = watched_.touched();
    watched_.forget();
    ASSERT_EQ(qk_linear(context, x, packed, nullptr, y), QK_OK) << qk_context_error(context);
    expect_placed(made, watched_.touched());

    const auto wide_desc = dense_desc(QK_FORMAT_F32, {shape.n, shape.k});
    Planes wide_planes(wide_desc);
    wide_planes.fill_dense(QK_FORMAT_F32);
    qk_tensor *const wide = wrap(context, wide_desc, wide_planes);
    watched_.forget();
    ASSERT_EQ(qk_quantize(context, wide, packed), QK_OK) << qk_context_error(context);
    const std::vector<int> quantized = watched_.touched();
    watched_.forget();
    ASSERT_EQ(qk_linear(context, x, packed, nullptr, y), QK_OK) << qk_context_error(context);
    expect_placed(quantized, watched_.touched());
    for (qk_tensor *const tensor : {stored, packed, x, y, wide}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
    qk_context_destroy(home);
}

constexpr uint32_t kInt8 = QK_CONTEXT_INT8_ACTIVATIONS, kBf16 = QK_CONTEXT_BF16_PRODUCTS;
constexpr Shape kShapes[] = {
    {"OneRow", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 2048, 4096, 4, 0, 1},
    {"OddRows", QK_FORMAT_U4_AFFINE, QK_LAYOUT_GPTQ, 2040, 2048, 3, 0, 1},
    {"Int8", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1999, 2176, 5, kInt8, 1},
    {"Int8Batch", QK_FORMAT_U4_AFFINE, QK_LAYOUT_WORD, 2048, 2048, 2, kInt8, 9},
    {"FewRows", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1999, 2048, 3, 0, 3},
    {"Batch", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1999, 2048, 3, 0, 16},
    {"Bf16", QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 1999, 2048, 3, kBf16, 1},
    {"Floats", QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 1999, 2048, 7, 0, 1}};
INSTANTIATE_TEST_SUITE_P(Numa, FirstTouch, testing::ValuesIn(kShapes),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace api

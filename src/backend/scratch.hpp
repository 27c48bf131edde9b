// Working memory of CPU tasks: decoded weights, sums, a row of x. It is larger than a small stack,
// so the context owns it: one block for each task that can run at once, one for x of a product
// where it is gathered and, if tasks are several, one for what the tasks of a call share.
#pragma once
#include <new>
#include <type_traits>

#include "qk.h"

namespace qk {

constexpr size_t kScratchBytes = size_t{192} << 10;  // of a block
constexpr int32_t kMaxTasksAtOnce = 256;             // with more, tasks wait for one another

struct Scratch;

Scratch *scratch_create(const qk_allocator &allocator, int32_t concurrency);  // null: no memory
// Takes back the blocks of a call that was abandoned; none may be running.
void scratch_reset(Scratch *scratch);
void scratch_destroy(const qk_allocator &allocator, Scratch *scratch);

// A block of kScratchBytes for the calling thread: the one it had before if that is free, because
// what it left there is in its caches. Waits while all are taken. A thread that holds a block never
// waits for another thread, so some thread always proceeds.
void *scratch_take(Scratch *scratch);
void scratch_give(Scratch *scratch, void *block);

// A T in a block, for as long as this is in scope.
template <class T>
class InScratch {
  public:
    // Of no arguments, nothing is set that T does not set: not `T()`, which would clear all of it.
    explicit InScratch(Scratch *scratch) : scratch_(scratch), value_(new (take(scratch)) T) {}
    template <class... Args>
    explicit InScratch(Scratch *scratch, Args &&...args)
        : scratch_(scratch), value_(new (take(scratch)) T(static_cast<Args &&>(args)...)) {}
    ~InScratch() { scratch_give(scratch_, value_); }
    InScratch(const InScratch &) = delete;
    InScratch &operator=(const InScratch &) = delete;

    T &operator*() const { return *value_; }
    T *operator->() const { return value_; }

  private:
    static void *take(Scratch *scratch) {
        static_assert(sizeof(T) <= kScratchBytes && alignof(T) <= 64, "a block is too small");
        static_assert(std::is_trivially_destructible_v<T>, "a T is only given back");
        return scratch_take(scratch);
    }

    Scratch *const scratch_;
    T *const value_;
};

}  // namespace qk

// An allocator that counts, and fails when told to: the n-th call from now, or all calls after it.
#pragma once
#include <atomic>
#include <cstdint>

#include "harness/aligned.hpp"
#include "qk.h"

namespace harness {

class Allocator {
  public:
    Allocator() : functions_{allocate, release, this} {}
    Allocator(const Allocator &) = delete;
    Allocator &operator=(const Allocator &) = delete;

    const qk_allocator *functions() const { return &functions_; }
    // Fails call number `nth` from now (1 is the next), and with `onward` every later one.
    void fail(int64_t nth, bool onward) {
        calls_ = 0;
        fail_at_ = nth;
        onward_ = onward;
    }
    void never_fail() { fail(0, false); }
    int64_t calls() const { return calls_; }  // since fail() or never_fail()
    int64_t live() const { return live_; }    // blocks not released
    bool failed() const { return fail_at_ > 0 && calls_ >= fail_at_; }

  private:
    static void *allocate(void *user, size_t bytes, size_t align) {
        Allocator &self = *static_cast<Allocator *>(user);
        const int64_t call = ++self.calls_;
        const int64_t at = self.fail_at_;
        if (at > 0 && (call == at || (self.onward_ && call > at))) return nullptr;
        void *const memory = take_aligned(bytes == 0 ? align : bytes, align);
        if (memory != nullptr) ++self.live_;
        return memory;
    }
    static void release(void *user, void *pointer) {
        if (pointer == nullptr) return;
        --static_cast<Allocator *>(user)->live_;
        give_aligned(pointer);
    }

    qk_allocator functions_;
    std::atomic<int64_t> calls_{0}, live_{0}, fail_at_{0};
    std::atomic<bool> onward_{false};
};

}  // namespace harness

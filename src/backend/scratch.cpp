#include "backend/scratch.hpp"

#include <atomic>

#include "base/os.hpp"

namespace qk {

struct alignas(64) Holder {
    std::atomic<uintptr_t> thread;  // that had the block last; 0: none yet
    std::atomic<uint32_t> taken;    // 0 or 1; gcc 12 has no exchange of bytes for RISC-V
};

namespace {

bool try_take(Holder *holder) {
    return !holder->taken.load(std::memory_order_relaxed) &&
           !holder->taken.exchange(1, std::memory_order_acquire);
}

}  // namespace

// The holders and the blocks are behind this struct, in the same allocation.
struct alignas(64) Scratch {
    int32_t count;
    Holder *holders;
    char *blocks;
};

Scratch *scratch_create(const qk_allocator &allocator, int32_t concurrency) {
    const int32_t tasks = concurrency < kMaxTasksAtOnce ? concurrency : kMaxTasksAtOnce;
    const size_t count = size_t(tasks) + (tasks > 1 ? 2 : 1), holders = count * sizeof(Holder);
    const size_t bytes = sizeof(Scratch) + holders + count * kScratchBytes;
    void *const memory = allocator.allocate(allocator.user, bytes, alignof(Scratch));
    if (memory == nullptr) return nullptr;
    __builtin_memset(memory, 0, sizeof(Scratch) + holders);  // blocks stay untouched until used
    Scratch *const scratch = static_cast<Scratch *>(memory);
    scratch->count = int32_t(count);
    scratch->holders = reinterpret_cast<Holder *>(scratch + 1);
    scratch->blocks = reinterpret_cast<char *>(scratch->holders + count);
    return scratch;
}

void scratch_reset(Scratch *scratch) {
    for (int32_t i = 0; i < scratch->count; ++i) scratch->holders[i].taken.store(0);
}

void scratch_destroy(const qk_allocator &allocator, Scratch *scratch) {
    if (scratch != nullptr) allocator.release(allocator.user, scratch);
}

// Holders form a hash table of threads. From its own slot on, a thread looks for a block that it
// had before; the first block that no thread has had becomes its own. If it finds neither, it takes
// any block that is free.
void *scratch_take(Scratch *scratch) {
    const uintptr_t self = os::this_thread();
    const int32_t count = scratch->count, place = int32_t((self >> 12) * 31 % uint32_t(count));
    for (bool any = false;; any = true) {
        for (int32_t i = 0; i < count; ++i) {
            const int32_t index = (place + i) % count;
            Holder &holder = scratch->holders[index];
            const uintptr_t last = holder.thread.load(std::memory_order_relaxed);
            if (!any && last != self && last != 0) continue;
            if (!try_take(&holder)) continue;
            holder.thread.store(self, std::memory_order_relaxed);
            return scratch->blocks + size_t(index) * kScratchBytes;
        }
        if (any) os::yield();
    }
}

void scratch_give(Scratch *scratch, void *block) {
    const size_t index = size_t(static_cast<char *>(block) - scratch->blocks) / kScratchBytes;
    scratch->holders[index].taken.store(0, std::memory_order_release);
}

}  // namespace qk

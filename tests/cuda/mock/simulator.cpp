#include "cuda/mock/simulator.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define QK_FIBERS_KNOWN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QK_FIBERS_KNOWN 1
#endif
#endif
#if defined(QK_FIBERS_KNOWN)
#include <sanitizer/common_interface_defs.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simulator {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

struct Barrier {
    uint32_t arrived = 0, generation = 0;
};

struct Warp {
    Barrier barrier;
    uint32_t live = 0, calls[32] = {}, words[2][32] = {};
    uint32_t shares[32] = {};
    Shared shared[2] = {};
};

// A stack that runs, or where it stopped.
struct Place {
    ucontext_t start;
    jmp_buf rest;
    bool begun = false;
};

// swapcontext asks the system for a mask of signals each time, which takes longer than most turns
// of a thread. AddressSanitizer, though, would take a longjmp for the end of the frames that it
// leaves.
void go(Place &from, Place &to) {
#if defined(QK_FIBERS_KNOWN)
    swapcontext(&from.start, &to.start);
#else
    from.begun = true;
    if (_setjmp(from.rest) != 0) return;
    if (to.begun) _longjmp(to.rest, 1);
    setcontext(&to.start);
#endif
}

// Runs one thread after another and is never ended: AddressSanitizer maps a stack of its own for
// each fiber, which takes longer than most blocks.
struct Fiber {
    Place place;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};  // not zeroed: most of it is not touched
    void *fake_stack = nullptr;                            // AddressSanitizer's
    bool done = true;
};

// One block on its way; the process simulates one at a time.
struct Block {
    Place scheduler;
    const void *stack_of_scheduler = nullptr;
    size_t stack_bytes_of_scheduler = 0;
    const std::function<void()> *thread = nullptr;
    std::vector<std::unique_ptr<Fiber>> fibers;  // a context may not move
    std::vector<Warp> warps;
    Barrier barrier;
    std::vector<std::function<void()>> events;
    uint32_t live = 0, current = 0;
    uint64_t progress = 0;
    std::mt19937 order{1};
};

Block *running;

void leave_stack([[maybe_unused]] void **fake, [[maybe_unused]] const void *to,
                 [[maybe_unused]] size_t bytes) {
#if defined(QK_FIBERS_KNOWN)
    __sanitizer_start_switch_fiber(fake, to, bytes);
#endif
}

void enter_stack([[maybe_unused]] void *fake, [[maybe_unused]] const void **from,
                 [[maybe_unused]] size_t *bytes) {
#if defined(QK_FIBERS_KNOWN)
    __sanitizer_finish_switch_fiber(fake, from, bytes);
#endif
}

void yield() {
    Block &b = *running;
    Fiber &fiber = *b.fibers[b.current];
    leave_stack(&fiber.fake_stack, b.stack_of_scheduler, b.stack_bytes_of_scheduler);
    go(fiber.place, b.scheduler);
    enter_stack(fiber.fake_stack, &b.stack_of_scheduler, &b.stack_bytes_of_scheduler);
}

void fiber_main() {
    Block &b = *running;
    enter_stack(nullptr, &b.stack_of_scheduler, &b.stack_bytes_of_scheduler);
    for (;;) {
        (*b.thread)();
        b.fibers[b.current]->done = true;
        --b.live;
        --b.warps[b.current / 32].live;
        ++b.progress;
        yield();
    }
}

std::unique_ptr<Fiber> make_fiber() {
    std::unique_ptr<Fiber> fiber = std::make_unique<Fiber>();
    ucontext_t &start = fiber->place.start;
    getcontext(&start);
    start.uc_stack.ss_sp = fiber->stack.get();
    start.uc_stack.ss_size = kStackBytes;
    start.uc_link = nullptr;
    makecontext(&start, fiber_main, 0);
    return fiber;
}

void resume(uint32_t index) {
    Block &b = *running;
    Fiber &fiber = *b.fibers[index];
    b.current = index;
    threadIdx = {index, 0, 0};
    void *fake = nullptr;
    leave_stack(&fake, fiber.stack.get(), kStackBytes);
    go(b.scheduler, fiber.place);
    enter_stack(fake, nullptr, nullptr);
}

// Threads that have ended do not take part, as on a GPU.
void wait(Barrier &barrier, const uint32_t &live) {
    Block &b = *running;
    const uint32_t generation = barrier.generation;
    ++barrier.arrived;
    ++b.progress;
    while (barrier.generation == generation) {
        if (barrier.arrived >= live) {
            barrier.arrived = 0;
            ++barrier.generation;
            ++b.progress;
        } else {
            yield();
        }
    }
}

// In any sequence, and not all in one round.
void run_events(Block &b) {
    std::vector<std::function<void()>> events;
    events.swap(b.events);
    std::shuffle(events.begin(), events.end(), b.order);
    for (std::function<void()> &event : events) {
        if (b.order() % 2 == 0) {
            event();
        } else {
            b.events.push_back(std::move(event));
        }
    }
}

void run_block(Block &b, uint32_t threads) {
    poison_shared_memory();
    b.barrier = {};
    b.live = threads;
    b.warps.assign((threads + 31) / 32, Warp());
    for (uint32_t i = 0; i < threads; ++i) {
        b.fibers[i]->done = false;
        ++b.warps[i / 32].live;
    }
    std::vector<uint32_t> turn(threads);
    for (uint32_t i = 0; i < threads; ++i) turn[i] = i;
    while (b.live > 0) {
        const uint64_t before = b.progress;
        const bool waits_for_events = !b.events.empty();
        run_events(b);
        std::shuffle(turn.begin(), turn.end(), b.order);
        for (const uint32_t i : turn) {
            if (!b.fibers[i]->done) resume(i);
        }
        if (b.progress != before || waits_for_events) continue;
        std::fprintf(stderr,
                     "simulator: %u threads wait at barriers that no other thread reaches\n",
                     b.live);
        std::abort();
    }
    if (b.events.empty()) return;
    std::fprintf(stderr, "simulator: a block ended before its copies were there\n");
    std::abort();
}

}  // namespace

void run(dim3 grid, dim3 block, const std::function<void()> &thread) {
    static Block b;  // keeps its stacks from launch to launch
    b.thread = &thread;
    while (b.fibers.size() < block.x) b.fibers.push_back(make_fiber());
    running = &b;
    gridDim = grid;
    blockDim = block;
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block(b, block.x);
        }
    }
    running = nullptr;
}

void block_barrier() { wait(running->barrier, running->live); }

void let_others_run() { yield(); }
void make_progress() { ++running->progress; }
void happen_later(std::function<void()> event) { running->events.push_back(std::move(event)); }

// Two sets of words: who is a call ahead writes the other one, and cannot be two ahead.
uint32_t exchange(uint32_t word, uint32_t source) {
    const uint32_t lane = running->current % 32;
    Warp &warp = running->warps[running->current / 32];
    uint32_t *const words = warp.words[warp.calls[lane]++ % 2];
    words[lane] = word;
    wait(warp.barrier, warp.live);
    return words[source];
}

const Shared &share(const uint32_t (&words)[kShared]) {
    const uint32_t lane = running->current % 32;
    Warp &warp = running->warps[running->current / 32];
    Shared &all = warp.shared[warp.shares[lane]++ % 2];
    std::copy(words, words + kShared, all[lane]);
    wait(warp.barrier, warp.live);
    return all;
}

}  // namespace simulator

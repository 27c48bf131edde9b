// Runs a kernel on the CPU: the threads of a block are fibers that run alternately, in random
// sequence, from barrier to barrier; blocks run one after the other.
#pragma once
#include <stdint.h>

#include <functional>

struct dim3 {
    uint32_t x = 1, y = 1, z = 1;
    constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the fiber that runs

namespace simulator {

// Fills all shared memory with NaNs, or with large numbers.
void poison_shared_memory();
// Poisons shared memory before each block. Aborts, saying so, where threads wait for each other
// forever.
void run(dim3 grid, dim3 block, const std::function<void()> &thread);
void block_barrier();
// Every live thread of the warp calls it; returns the word that lane `source` gave.
uint32_t exchange(uint32_t word, uint32_t source);
// The same for several words of all lanes at once: [lane][word], until the lane's next call.
constexpr uint32_t kShared = 8;
using Shared = uint32_t[32][kShared];
const Shared &share(const uint32_t (&words)[kShared]);

// For what threads wait for in other ways (copy_engine.hpp). A wait is a loop of turns that others
// take, until one of them has made progress.
void let_others_run();
void make_progress();
// Happens by itself, in a round of turns to come. No block ends before all that it asked for.
void happen_later(std::function<void()> event);

}  // namespace simulator

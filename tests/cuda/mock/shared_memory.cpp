// Shared memory of simulated blocks: all that shared.ld has put side by side. It is a private
// mapping of a file full of poison, so that mapping it again is all that filling it takes, and a
// block pays for the pages that it touches.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cuda/mock/cuda_runtime.h"
#include "harness/guarded.hpp"

extern "C" uint8_t qk_shared_begin[], qk_shared_end[];

namespace simulator {

alignas(1024) __attribute__((section(".bss.qk_shared"))) uint4 launch_shared[(227 << 10) / 16];

namespace {

size_t shared_bytes() { return size_t(qk_shared_end - qk_shared_begin); }

[[noreturn]] void give_up(const char *what) {
    std::perror(what);
    std::abort();
}

// As much of each poison as there is shared memory.
int make_file() {
    const int file = memfd_create("shared memory", 0);
    if (file < 0) give_up("simulator: memfd_create");
    for (const uint8_t poison : {harness::kPoisonNan, harness::kPoisonLarge}) {
        const std::vector<uint8_t> bytes(shared_bytes(), poison);
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t some = write(file, bytes.data() + done, bytes.size() - done);
            if (some <= 0) give_up("simulator: write");
            done += size_t(some);
        }
    }
    return file;
}

}  // namespace

void poison_shared_memory() {
    static const int file = make_file();
    static std::mt19937 random{1};
    const off_t from = off_t(random() % 2 * shared_bytes());
    if (mmap(qk_shared_begin, shared_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file,
             from) == MAP_FAILED) {
        give_up("simulator: mmap");
    }
}

}  // namespace simulator

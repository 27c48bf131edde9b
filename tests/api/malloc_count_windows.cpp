// What the linker's --wrap puts in front of the C runtime's functions, in every object of the
// program, the library's among them.
#include <atomic>
#include <cstddef>

#include "api/malloc_count.hpp"

static std::atomic<int64_t> g_allocations{0};

namespace api {
int64_t MallocCount::now() { return g_allocations.load(); }
}  // namespace api

static void count() { g_allocations.fetch_add(1, std::memory_order_relaxed); }

extern "C" {
using Aligned = void *(*)(size_t bytes, size_t align);

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t number, size_t bytes);
void *__real_realloc(void *pointer, size_t bytes);
extern Aligned __real___imp__aligned_malloc;  // its header has it called by way of a pointer
void *__wrap_malloc(size_t bytes) { return count(), __real_malloc(bytes); }
void *__wrap_calloc(size_t number, size_t bytes) { return count(), __real_calloc(number, bytes); }
void *__wrap_realloc(void *pointer, size_t bytes) {
    return count(), __real_realloc(pointer, bytes);
}
Aligned __wrap___imp__aligned_malloc = [](size_t bytes, size_t align) {
    return count(), __real___imp__aligned_malloc(bytes, align);
};
}

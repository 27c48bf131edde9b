#include "api/malloc_count.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

static std::atomic<int64_t> g_allocations{0};

namespace api {
int64_t MallocCount::now() { return g_allocations.load(); }
}  // namespace api

#if defined(QK_SANITIZED)
// The sanitizers own malloc and offer a hook.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *,
                                                                             size_t),
                                                         void (*free_hook)(const volatile void *));
static const int kInstalled = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void *, size_t) { g_allocations.fetch_add(1, std::memory_order_relaxed); },
    [](const volatile void *) {});
#else
// The program's own definitions take the C library's place; these names of glibc do the work.
extern "C" {
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *pointer, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *pointer);

static void count() { g_allocations.fetch_add(1, std::memory_order_relaxed); }

void *malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void *calloc(size_t number, size_t bytes) { return count(), __libc_calloc(number, bytes); }
void *realloc(void *pointer, size_t bytes) { return count(), __libc_realloc(pointer, bytes); }
void *memalign(size_t align, size_t bytes) { return count(), __libc_memalign(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return count(), __libc_memalign(align, bytes); }
int posix_memalign(void **out, size_t align, size_t bytes) {
    count();
    void *const pointer = __libc_memalign(align, bytes);
    if (pointer == nullptr) return ENOMEM;
    *out = pointer;
    return 0;
}
void free(void *pointer) { __libc_free(pointer); }
}
#endif

// Aligned memory by what the system has: Windows' C runtime has no posix_memalign, and memory of
// its own function goes back through its own.
#pragma once
#include <cstddef>
#include <cstdlib>
#if defined(_WIN32)
#include <malloc.h>
#endif

namespace harness {

// `align` is a power of two.
inline void *take_aligned(std::size_t bytes, std::size_t align) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, align);
#else
    void *memory = nullptr;
    const std::size_t least = align < sizeof(void *) ? sizeof(void *) : align;
    return posix_memalign(&memory, least, bytes) == 0 ? memory : nullptr;
#endif
}

inline void give_aligned(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

}  // namespace harness

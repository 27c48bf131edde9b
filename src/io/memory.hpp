// The caller's allocator, and two ways to spend it: an array that grows and an arena that is
// freed at once. Both hold plain data only; nothing here has a constructor.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "qk_io.h"

namespace qk_io {

struct Memory {
    qk_allocator allocator;

    void *allocate(size_t bytes, size_t align) {
        return allocator.allocate(allocator.user, bytes == 0 ? 1 : bytes, align);
    }
    void release(void *pointer) {
        if (pointer != nullptr) allocator.release(allocator.user, pointer);
    }
};

// allocator may be NULL. False when it is half filled in.
bool memory_from(const qk_allocator *allocator, Memory *out);

template <typename T>
struct Array {
    static_assert(std::is_trivially_copyable<T>::value, "moved with memcpy");
    T *items;
    int64_t count, capacity;

    bool push(Memory *memory, const T &item) {
        if (count == capacity && !grow(memory)) return false;
        items[count++] = item;
        return true;
    }
    void release(Memory *memory) { memory->release(items); }

  private:
    bool grow(Memory *memory) {
        const int64_t wanted = capacity == 0 ? 16 : capacity * 2;
        size_t bytes = 0;
        if (__builtin_mul_overflow(static_cast<size_t>(wanted), sizeof(T), &bytes)) return false;
        T *fresh = static_cast<T *>(memory->allocate(bytes, alignof(T)));
        if (fresh == nullptr) return false;
        if (count > 0) memcpy(fresh, items, static_cast<size_t>(count) * sizeof(T));
        memory->release(items);
        items = fresh;
        capacity = wanted;
        return true;
    }
};

struct Arena {
    struct Chunk {
        Chunk *next;
        size_t used, size;
    };
    Chunk *head;

    void *take(Memory *memory, size_t bytes);  // aligned to 8; NULL when out of memory
    const char *copy(Memory *memory, const char *text, size_t bytes);  // and a terminating 0
    void release(Memory *memory);
};

}  // namespace qk_io

#include "memory.hpp"

#include <cstdlib>

namespace qk_io {
namespace {

void *default_allocate(void *, size_t bytes, size_t align) {
    // Everything asked for here needs at most malloc's own alignment.
    return align <= alignof(max_align_t) ? malloc(bytes) : nullptr;
}

void default_release(void *, void *pointer) { free(pointer); }

constexpr size_t kFirstChunk = 4096, kLargestChunk = size_t{1} << 20;

}  // namespace

bool memory_from(const qk_allocator *allocator, Memory *out) {
    if (allocator == nullptr) {
        out->allocator = qk_allocator{default_allocate, default_release, nullptr};
        return true;
    }
    if (allocator->allocate == nullptr || allocator->release == nullptr) return false;
    out->allocator = *allocator;
    return true;
}

void *Arena::take(Memory *memory, size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(Chunk) - 8) return nullptr;
    bytes = (bytes + 7) & ~size_t{7};
    if (head == nullptr || head->size - head->used < bytes) {
        size_t size = head == nullptr ? kFirstChunk : head->size * 2;
        if (size > kLargestChunk) size = kLargestChunk;
        if (size < bytes) size = bytes;
        Chunk *chunk = static_cast<Chunk *>(memory->allocate(sizeof(Chunk) + size, alignof(Chunk)));
        if (chunk == nullptr) return nullptr;
        *chunk = Chunk{head, 0, size};
        head = chunk;
    }
    void *result = reinterpret_cast<char *>(head + 1) + head->used;
    head->used += bytes;
    return result;
}

const char *Arena::copy(Memory *memory, const char *text, size_t bytes) {
    char *result = static_cast<char *>(take(memory, bytes + 1));
    if (result == nullptr) return nullptr;
    memcpy(result, text, bytes);
    result[bytes] = 0;
    return result;
}

void Arena::release(Memory *memory) {
    while (head != nullptr) {
        Chunk *next = head->next;
        memory->release(head);
        head = next;
    }
}

}  // namespace qk_io

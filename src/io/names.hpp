// A set of names with an index each. The names come from untrusted files, so the hash
// is keyed (SipHash-1-3): a file cannot choose names that collide.
#pragma once
#include "memory.hpp"

namespace qk_io {

uint64_t siphash13(const uint64_t key[2], const void *data, size_t bytes);

// Open addressing; the capacity is a power of two and at least twice the count.
struct Names {
    struct Slot {
        const char *name;  // borrowed; NULL: free
        int64_t index;
    };
    Slot *slots;
    int64_t capacity, count;
    uint64_t key[2];

    bool reserve(Memory *memory);               // room for one more; false: no memory
    void add(const char *name, int64_t index);  // after reserve, for a name that is not there
    int64_t find(const char *name) const;       // -1: none
    void remove(const char *name);              // one that is there
    void release(Memory *memory) { memory->release(slots); }

  private:
    uint64_t home_of(const char *name) const;
    Slot *slot_of(const char *name) const;
};

}  // namespace qk_io

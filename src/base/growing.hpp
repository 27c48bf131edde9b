// Structs that say their own size, because later headers append fields: a caller of an older header
// has fewer of them, one of a newer header more.
#pragma once
#include <stdint.h>
#include <string.h>

#include "base/status.hpp"

namespace qk {

constexpr uint32_t kLargestStruct = 4096;

// Reads a caller's struct: fields that it does not have are 0, and those that this library does not
// know must be. `first_release`: its smallest size. `name` starts the sentence of a failure.
template <class Struct>
Status read_growing(const void *given, uint32_t first_release, const char *name, Struct *out,
                    ErrorText *error) {
    constexpr uint32_t known = sizeof(Struct), step = alignof(Struct);
    uint32_t size;
    memcpy(&size, given, sizeof size);
    QK_CHECK(size >= first_release && size <= kLargestStruct && size % step == 0, error, ABI,
             "%sstruct_size: is %u, accepted are %u to %u in steps of %u", name, size,
             first_release, kLargestStruct, step);
    memset(static_cast<void *>(out), 0, known);
    memcpy(static_cast<void *>(out), given, size < known ? size : known);
    const char *const bytes = static_cast<const char *>(given);
    for (uint32_t i = known; i < size; ++i) {
        QK_CHECK(bytes[i] == 0, error, ABI, "%sbyte %u: is set, this library knows %u bytes", name,
                 i, known);
    }
    return QK_OK;
}

// Whether a struct that is to be filled has a size at all.
static constexpr bool is_growing_size(uint32_t struct_size) {
    return struct_size >= sizeof(uint32_t) && struct_size <= kLargestStruct;
}

// The fields that both know; further ones become 0, and struct_size says how far it went.
template <class Struct>
static void fill_growing(const Struct &known, Struct *given) {
    const uint32_t room = given->struct_size;
    const uint32_t filled = room < sizeof(Struct) ? room : uint32_t(sizeof(Struct));
    memcpy(static_cast<void *>(given), &known, filled);
    memset(reinterpret_cast<char *>(given) + filled, 0, room - filled);
    given->struct_size = filled;
}

}  // namespace qk

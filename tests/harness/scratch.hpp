// What kernels that are called past the API get as scratch memory: blocks for a few threads, the
// first of them full of NaNs each time, since no result may depend on what was there.
#pragma once
#include <cstring>

#include "backend/scratch.hpp"
#include "harness/aligned.hpp"

namespace harness {

inline qk::Scratch *dirty_scratch() {
    static const qk_allocator allocator = {
        [](void *, size_t bytes, size_t align) { return take_aligned(bytes, align); },
        [](void *, void *pointer) { give_aligned(pointer); }, nullptr};
    static qk::Scratch *const scratch = qk::scratch_create(allocator, 16);
    void *const blocks[] = {qk::scratch_take(scratch), qk::scratch_take(scratch)};
    for (void *const block : blocks) std::memset(block, 0xff, qk::kScratchBytes);
    for (void *const block : blocks) qk::scratch_give(scratch, block);
    return scratch;
}

}  // namespace harness

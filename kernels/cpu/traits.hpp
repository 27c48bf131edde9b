// What processors differ in beside their instruction sets, and what depends on it: how codes that
// are read once are fetched.
#pragma once
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {

enum Trait : uint32_t {
    // The processor's own prefetching ends with a page, and prefetches hold the buffers that loads
    // wait for (Intel).
    kPagedStreams = 1,
    // Two cycles for a product of bf16 vectors, where two multiply-adds of f32 take one (Intel from
    // Sapphire Rapids on).
    kSlowBf16Vectors = 2,
    // One port for shuffles of 512 bits, and two cycles of it for a permute of two tables (Intel).
    kOneShuffle = 4,
    // Few buffers for lines on their way to the first cache: more of memory comes by the second
    // (AMD before the fifth Zen).
    kFewFills = 8,
};

constexpr uint32_t kAllTraits = 15;

// Those of this processor, asked once; no bit of an exact or an int8 product depends on them.
uint32_t traits();
// Tests: from now on they are these.
void assume_traits(uint32_t assumed);

namespace {

// A line of 64 bytes beside the work of another, to the second cache; in paged streams, 2 KiB
// ahead, to the first as well. Many at once would hold up the loads of what is multiplied.
constexpr int64_t kNearOfPages = 2048;
template <bool paged, int64_t kAhead>
QK_INLINE inline void fetch_line(const uint8_t *line) {
    prefetch_stream(line + kAhead);
    if (paged) prefetch(line + kNearOfPages);
}

// A line of what is walked later, out of turn, to the nearest cache that takes it at memory's
// speed.
QK_INLINE inline void fetch_later(const uint8_t *line, bool few_fills) {
    few_fills ? prefetch_stream(line) : prefetch(line);
}

// With every 512 bytes one of the first 8 lines of the page after, so that its stream has started
// when it is needed.
template <bool paged>
QK_INLINE inline void fetch_page(const uint8_t *ahead) {
    if (!paged) return;
    const int64_t in_page = int64_t(reinterpret_cast<uintptr_t>(ahead) % 4096);
    prefetch_stream(ahead + (4096 - in_page + in_page / 8));
}

}  // namespace
}  // namespace qk::cpu

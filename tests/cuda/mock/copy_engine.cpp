#include "cuda/mock/copy_engine.hpp"

#include <string.h>

#include <array>

namespace simulator {
namespace {

alignas(1024) char anchor[1024];  // what a program has is less than 2^31 bytes away
constexpr uint32_t kAnchor = 1u << 31;

// In its eight bytes. A phase is over once all have arrived and all bytes announced are there;
// these may come before they are announced.
struct Barrier {
    uint16_t arrivals, missing;
    int32_t bytes : 31;
    uint32_t phase : 1;

    void settle() {
        make_progress();
        if (missing != 0 || bytes != 0) return;
        missing = arrivals;
        phase ^= 1;
    }
};
static_assert(sizeof(Barrier) == 8);

Barrier &barrier_at(uint32_t address) { return *static_cast<Barrier *>(shared_pointer(address)); }

}  // namespace

uint32_t shared_address(const void *pointer) {
    return uint32_t(static_cast<const char *>(pointer) - anchor + kAnchor);
}
void *shared_pointer(uint32_t address) { return anchor + (int64_t(address) - kAnchor); }

void barrier_init(uint32_t barrier, uint32_t arrivals) {
    barrier_at(barrier) = {uint16_t(arrivals), uint16_t(arrivals), 0, 0};
}

void barrier_arrive(uint32_t barrier) { barrier_expect(barrier, 0); }

void barrier_expect(uint32_t barrier, uint32_t bytes) {
    Barrier &b = barrier_at(barrier);
    b.bytes += int32_t(bytes);
    --b.missing;
    b.settle();
}

void barrier_wait(uint32_t barrier, uint32_t parity) {
    while (barrier_at(barrier).phase == parity) let_others_run();
}

void copy_box(uint32_t to, const CUtensorMap &map, const int32_t (&at)[3], uint32_t barrier) {
    happen_later([to, map, first = std::to_array(at), barrier] {
        const uint32_t element = 1u << map.type, line = map.box[0] * element;
        const uint32_t planes = map.rank < 3 ? 1 : map.box[2], rows = map.box[1];
        const uint32_t mask = map.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 0
                              : map.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3
                                                                         : 7;
        for (uint32_t i = 0; i < planes * rows * line; i += element) {
            const uint64_t x = uint64_t(first[0]) + i % line / element;
            const uint64_t y = uint64_t(first[1]) + i / line % rows;
            const uint64_t z = uint64_t(first[2]) + i / line / rows;
            const bool there =
                x < map.sizes[0] && y < map.sizes[1] && z < (map.rank < 3 ? 1 : map.sizes[2]);
            const uint32_t linear = to + i, swizzled = linear ^ (linear >> 7 & mask) << 4;
            char *const place = static_cast<char *>(shared_pointer(swizzled));
            memset(place, 0, element);
            if (!there) continue;
            memcpy(place,
                   static_cast<const char *>(map.data) + x * element + y * map.strides[0] +
                       z * map.strides[1],
                   element);
        }
        Barrier &b = barrier_at(barrier);
        b.bytes -= int32_t(planes * rows * line);
        b.settle();
    });
}

}  // namespace simulator

// x of a block's items in shared memory (rows.cuh): a warp of its own asks for the rows of the next
// items as far as there is room, a bulk copy each. They lie in a ring of rows; the place of an item
// says which are its:
//
//     place of an item   | x is here | all have left | rows, the first, expert | slots of the rows
//     |
#pragma once
#include "cuda/linear/sm90/gemv/rows_items.cuh"

namespace qk::cuda {
namespace {

struct XOfItems {
    static constexpr uint32_t kLeft = 8, kRows = 16, kFirst = 20, kExpert = 24, kSlots = 32;
    static constexpr uint32_t kPlaceBytes = kSlots + kItemRows * 4;
    static constexpr uint32_t kBytes = kItemsAtOnce * kPlaceBytes;

    const GemvRowsProblem &p;
    uint32_t places, rows;  // in shared memory

    // Of item number n of the block.
    __device__ uint32_t place(int32_t n) const {
        return places + uint32_t(n) % kItemsAtOnce * kPlaceBytes;
    }
    static __device__ uint32_t parity(int32_t n) { return uint32_t(n) / kItemsAtOnce & 1; }
    __device__ uint32_t row(uint32_t number) const {
        return rows + (number >= p.plan.x_room ? number - p.plan.x_room : number) * p.plan.x_pitch;
    }

    __device__ void init() const {
        if (threadIdx.x >= kItemsAtOnce) return;
        barrier_init(place(int32_t(threadIdx.x)), 1);
        barrier_init(place(int32_t(threadIdx.x)) + kLeft, kRowsWarps);
        barrier_init_fence();
    }
    // By all warps that multiply, for each item in turn.
    __device__ void await(int32_t n) const { barrier_wait(place(n), parity(n)); }
    __device__ void leave(int32_t n) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(place(n) + kLeft);
    }

    // Rows [first, first + count) of the ring, of `item`, whose slots its place has.
    __device__ void ask(uint32_t place, uint32_t first, uint32_t count) const {
        const uint32_t lane = threadIdx.x % 32, bytes = uint32_t(p.gemv.k) * 2;
        const bool pads = lane < (p.plan.x_pitch - 16 - bytes) / 16;  // behind k
        for (uint32_t i = 0; pads && i < count; ++i) {
            shared_store_16(row(first + i) + bytes + lane * 16, {0, 0, 0, 0});
        }
        __syncwarp();
        if (lane == 0) barrier_expect(place, bytes * count);
        __syncwarp();
        if (lane >= count) return;
        const uint32_t slot = shared_load_4(place + kSlots + lane * 4);
        const uint32_t x_row = p.e.x_by_slot ? slot : slot / uint32_t(p.e.slots);
        copy_bulk(row(first + lane),
                  static_cast<const uint8_t *>(p.gemv.x) + x_row * p.x_stride * 2, bytes, place);
    }

    // By one warp.
    __device__ void bring(const ItemsOfBlock &items, const ItemStrips &strips) const {
        const int32_t last = (strips.strip + strips.count - 1) / int32_t(p.cut.strips);
        uint32_t kept = 0, first = 0;  // rows
        RowsItem item = strips.first;
        for (int32_t n = 0, oldest = 0; n <= last; ++n, item = items.next(item)) {
            const uint32_t count = uint32_t(items.rows_of(item)), to = place(n);
            for (; n - oldest >= kItemsAtOnce || kept + count > p.plan.x_room; ++oldest) {
                barrier_wait(place(oldest) + kLeft, parity(oldest));
                kept -= shared_load_4(place(oldest) + kRows);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                shared_store_4(to + kRows, count);
                shared_store_4(to + kFirst, first);
                shared_store_4(to + kExpert, uint32_t(item.expert));
            }
            items.find_slots(item, to + kSlots);
            if (n == 0 && p.routed_early) wait_for_previous_kernel();
            ask(to, first, count);
            kept += count;
            first = first + count >= p.plan.x_room ? first + count - p.plan.x_room : first + count;
        }
    }
};

}  // namespace
}  // namespace qk::cuda

// What the blocks of the matrix kernel for experts multiply (experts.cuh): an item and a block of
// rows of w. The first producer warp looks up one after the other and leaves them in shared memory
// for the other warps, which have no registers for it.
#pragma once
#include "cuda/linear/sm90/gemm/experts_problem.hpp"
#include "cuda/linear/sm90/gemm/shape.cuh"

namespace qk::cuda {
namespace {

// A part of the product: an item and a block of rows of w.
template <class S>
struct ListedUnit {
    const GemmExpertsProblem &p;
    int32_t expert, first, count;  // of the item; a count of 0 comes last
    int32_t block;

    // Row of tiles of the block's first of w, in its expert.
    __device__ int32_t first_tile() const {
        return block * (p.e.halves() ? S::kRowTiles / 2 : S::kRowTiles);
    }
    __device__ Item work() const {
        const int32_t stages = (p.gemm.tiles + S::kTiles - 1) / S::kTiles;
        const int32_t gap = p.e.halves() ? p.of_expert / 2 - S::kRowTiles / 2 : 0;
        return {
            expert * p.of_expert + first_tile(), first - p.first_row, 0, stages * S::kTiles, gap,
            (count + S::kBox - 1) / S::kBox,     p.e.halves()};
    }
    __device__ bool is_there() const { return expert < p.e.count; }
};

// The way of units to the other warps: `full` once one can be read, `empty` when all have done so.
template <class S>
struct UnitQueue {
    static constexpr int kReaders = S::kConsumers * 128 + (S::kMade ? S::kMakers : 1) * 32;
    const GemmExpertsProblem &p;
    uint32_t entries, full, empty;  // in shared memory

    __device__ void prepare() const {
        for (uint32_t i = 0; i < S::kUnits; ++i) {
            barrier_init(full + i * 8, 32);
            barrier_init(empty + i * 8, kReaders);
        }
    }
    __device__ uint32_t entry(const Turn &turn) const { return entries + turn.slot * S::kUnit; }
    // The slots of an item's rows.
    __device__ uint32_t slots(const Turn &turn) const { return entry(turn) + 16; }

    __device__ ListedUnit<S> read(const Turn &turn) const {
        const uint4 v = shared_load_16(entry(turn));
        return {p, int32_t(v.x), int32_t(v.y), int32_t(v.z), int32_t(v.w)};
    }
    __device__ ListedUnit<S> wait(const Turn &turn) const {
        barrier_wait(full + turn.slot * 8, turn.parity);
        return read(turn);
    }
    __device__ void release(const Turn &turn) const { barrier_arrive(empty + turn.slot * 8); }
};

// Looks up a block's units: of each expert all its items by one block of rows of w, then by the
// next, so that blocks that run at once read several items, not all of them one. A warp.
template <class S>
struct UnitFinder {
    static constexpr int kSlots = S::N / 32;  // a lane
    const GemmExpertsProblem &p;
    int32_t first, last;  // items
    int64_t number;       // of the next unit

    __device__ explicit UnitFinder(const GemmExpertsProblem &problem)
        : p(problem), first(p.first_row == 0 ? 0 : item_at(p.first_row)),
          last(p.last_row < *p.list.slots_there ? item_at(p.last_row) : *p.list.items_there),
          number(blockIdx.x) {}
    // The first of those that begin at this row of the list or behind it.
    __device__ int32_t item_at(int32_t row) const {
        int32_t low = 0, high = *p.list.items_there;
        while (low < high) {
            const int32_t middle = (low + high) / 2;
            if (p.list.items[middle].first < row) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    __device__ ListedUnit<S> unit(int64_t of_unit) const {
        const int64_t in_list = of_unit / p.row_blocks;
        if (in_list >= last - first) return {p, 0, 0, 0, 0};
        const int32_t item = first + int32_t(in_list);
        const int32_t block = int32_t(of_unit - in_list * p.row_blocks);
        const ExpertsItem at = p.list.items[item];
        if (at.together == 1) return {p, at.expert, at.first, at.count, p.first_block + block};
        const int32_t begin = max(item - at.number, first);  // of this expert's items
        const int32_t together = min(item - at.number + at.together, last) - begin;
        const int32_t among = (item - begin) * p.row_blocks + block, row = among / together;
        const ExpertsItem &moved = p.list.items[begin + among - row * together];
        return {p, moved.expert, moved.first, moved.count, p.first_block + row};
    }

    // Hands the next unit on; `turn` of the queue.
    __device__ ListedUnit<S> next(const UnitQueue<S> &queue, Turn &turn) {
        const int32_t lane = int32_t(threadIdx.x & 31);
        const ListedUnit<S> found = unit(number);
        int32_t slots[kSlots];
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            const int32_t row = lane + i * 32;
            slots[i] = row < found.count ? p.list.slots[found.first + row] : 0;
        }
        number += gridDim.x;
        barrier_wait(queue.empty + turn.slot * 8, turn.parity);
        const uint32_t entry = queue.entry(turn);
        if (lane == 0) {
            shared_store_16(entry, {uint32_t(found.expert), uint32_t(found.first),
                                    uint32_t(found.count), uint32_t(found.block)});
        }
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
            shared_store_4(queue.slots(turn) + uint32_t(lane + i * 32) * 4, uint32_t(slots[i]));
        }
        barrier_arrive(queue.full + turn.slot * 8);
        turn.next(S::kUnits);
        return found;
    }
};

}  // namespace
}  // namespace qk::cuda

// Which rows of x and w a block multiplies where an expert has several rows of x (rows.cuh): items,
// each up to kItemRows rows of x of one expert, in the sequence of the experts, and of each all its
// strips. Blocks have as many strips each, one after the other:
//
//     items    | expert 0 | expert 3, rows 0 to 7 | expert 3, rows 8 to 9 | expert 4 | ...
//     blocks   | 0    | 1    | 2    | 3    | ...
//
// Every block counts the slots by itself, which takes less time than a kernel in front.
#pragma once
#include "cuda/linear/sm90/gemv/experts.cuh"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"

namespace qk::cuda {
namespace {

constexpr uint32_t kNobody = ~0u;  // the expert of a slot whose expert is not there

// The rows of x of an expert from item_rows * number on.
struct RowsItem {
    int32_t expert, number;
};

// The strips of a block: from strip `strip` of an item on.
struct ItemStrips {
    RowsItem first;
    int32_t strip, count;
};

struct ItemsOfBlock {
    const GemvRowsProblem &p;
    uint32_t counts, slots;  // in shared memory
    int32_t lane;

    __device__ ItemsOfBlock(const GemvRowsProblem &problem, uint32_t behind_fixed)
        : p(problem), counts(behind_fixed + problem.plan.counts),
          slots(behind_fixed + problem.plan.slots), lane(int32_t(threadIdx.x % 32)) {}

    // By all threads of the block, which meet before count() and after it.
    __device__ void clear() const {
        for (uint32_t i = threadIdx.x; i < uint32_t(p.e.count); i += blockDim.x) {
            shared_store_4(counts + i * 4, 0);
        }
    }
    __device__ void count() const {
        for (int32_t i = int32_t(threadIdx.x); i < p.slots; i += int32_t(blockDim.x)) {
            const int32_t expert = fresh_expert(p.e, i);
            const bool there = expert >= 0 && expert < p.e.count;
            shared_store_4(slots + uint32_t(i) * 4, there ? uint32_t(expert) : kNobody);
            if (there) shared_add(counts + uint32_t(expert) * 4, 1);
        }
    }

    __device__ bool is_there(int32_t slot) const {
        return shared_load_4(slots + uint32_t(slot) * 4) != kNobody;
    }
    __device__ int32_t slots_of(int32_t expert) const {
        if (expert >= int32_t(p.e.count)) return 0;
        return int32_t(shared_load_4(counts + uint32_t(expert) * 4));
    }
    __device__ int32_t items_of(int32_t expert) const {
        return (slots_of(expert) + p.plan.item_rows - 1) / p.plan.item_rows;
    }
    __device__ int32_t rows_of(const RowsItem &item) const {
        return min(p.plan.item_rows, slots_of(item.expert) - item.number * p.plan.item_rows);
    }

    // The rest by whole warps.
    __device__ RowsItem next(const RowsItem &item) const {
        const int32_t number = item.number + 1;
        if (number * p.plan.item_rows < slots_of(item.expert)) return {item.expert, number};
        for (int32_t first = item.expert + 1; first < int32_t(p.e.count); first += 32) {
            const uint32_t some = __ballot_sync(~0u, slots_of(first + lane) > 0);
            if (some != 0) return {first + __ffs(int(some)) - 1, 0};
        }
        return {int32_t(p.e.count), 0};
    }
    // Items of the experts from `first` on, up to each lane's.
    __device__ uint32_t items_to(int32_t first) const {
        uint32_t sum = uint32_t(items_of(first + lane));
        for (int i = 1; i < 32; i *= 2) {
            const uint32_t in_front = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += in_front;
        }
        return sum;
    }
    // Item number `number` of the block's experts.
    __device__ RowsItem at(uint32_t number) const {
        for (int32_t first = 0; first < int32_t(p.e.count); first += 32) {
            const uint32_t sum = items_to(first);
            const uint32_t past = __ballot_sync(~0u, sum > number);
            if (past != 0) {
                const int32_t expert = first + __ffs(int(past)) - 1;
                const uint32_t its = uint32_t(items_of(expert));
                return {expert, int32_t(number + its - from_lane(sum, uint32_t(expert - first)))};
            }
            number -= from_lane(sum, 31);
        }
        return {int32_t(p.e.count), 0};
    }
    __device__ ItemStrips strips_of_block() const {
        uint64_t all = 0;
        for (int32_t first = 0; first < int32_t(p.e.count); first += 32) {
            all += from_lane(items_to(first), 31);
        }
        const uint32_t strips = uint32_t(p.cut.strips);
        all *= strips;
        const uint64_t from = all * blockIdx.x / gridDim.x;
        const uint64_t to = all * (blockIdx.x + 1) / gridDim.x;
        const uint32_t number = uint32_t(from / strips);
        return {at(number), int32_t(from - uint64_t(number) * strips), int32_t(to - from)};
    }
    // The slots of an item's rows, in their sequence.
    __device__ void find_slots(const RowsItem &item, uint32_t to) const {
        const int32_t rows = p.plan.item_rows;
        int32_t next = -item.number * rows;  // the row of the next slot that is the expert's
        for (int32_t first = 0; first < p.slots && next < rows; first += 32) {
            const int32_t slot = first + lane;
            const bool mine = slot < p.slots &&
                              shared_load_4(slots + uint32_t(slot) * 4) == uint32_t(item.expert);
            const uint32_t all = __ballot_sync(~0u, mine);
            const int32_t row = next + __popc(all & ((1u << lane) - 1));
            if (mine && row >= 0 && row < rows) {
                shared_store_4(to + uint32_t(row) * 4, uint32_t(slot));
            }
            next += __popc(all);
        }
        __syncwarp();
    }
};

}  // namespace
}  // namespace qk::cuda

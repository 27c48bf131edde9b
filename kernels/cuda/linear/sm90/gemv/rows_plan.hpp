// How several rows of x an expert are cut for the kernel that multiplies them as the one for one
// row of x does (rows.cuh): a pure function of the problem and the device.
#pragma once
#include "cuda/linear/experts_list.hpp"
#include "cuda/linear/sm90/gemv/experts_plan.hpp"

namespace qk::cuda {

constexpr int32_t kItemRows = 8;     // of x, which a product has columns for
constexpr int32_t kRowsWarps = 19;   // of a block that multiply; another one brings x
constexpr int32_t kItemsAtOnce = 4;  // whose x is in shared memory, at most
constexpr int32_t kRowsKeptItems = 2 * kItemsAtOnce;  // items' rows of x that there is room for

constexpr int64_t kRowsSlots = 4096;  // that blocks count at once: more tokens come in passes

// Blocks find their items by themselves, so that the workspace has z alone.
static constexpr ExpertsListPlan plan_rows_list(int64_t tokens, int64_t slots, int64_t count,
                                                int64_t columns, bool summed) {
    const int64_t of_pass = ceil_div(tokens, ceil_div(tokens * slots, kRowsSlots));
    return plan_list({of_pass, slots, count, columns, summed, 0, columns, 0});
}

// A block's shared memory: what the instance has at fixed addresses, the sums of each warp's strip,
// how many slots each expert has, the expert of each slot, rows of x.
struct GemvRowsPlan {
    int32_t item_rows;          // of x, at most
    uint32_t x_pitch, x_room;   // bytes of a row of x; rows
    uint32_t counts, slots, x;  // bytes behind the fixed part
    int64_t end;
};

// Rows of x lie so that eight lanes, of two rows, read from all banks; zeros follow to the end of
// the last half of a unit.
static constexpr int64_t rows_pitch(int64_t k) { return round_up(k, kUnitColumns / 2) * 2 + 16; }
static constexpr int64_t rows_sums(int64_t item_rows) { return kRowsWarps * 2 * item_rows * 64; }

// `room`: bytes behind the fixed part; with less than one row takes, item_rows is 0.
static constexpr GemvRowsPlan plan_gemv_rows(int64_t count, int64_t slots, int64_t k,
                                             int64_t room) {
    const int64_t lists = round_up((count + slots) * 4, 16), pitch = rows_pitch(k);
    const int64_t fit = max64(room - lists, 0) / (pitch + rows_sums(1));
    const int64_t rows = min64(fit, kItemRows), sums = rows_sums(rows);
    const int64_t kept = rows > 0 ? min64((room - lists - sums) / pitch, rows * kRowsKeptItems) : 0;
    return {int32_t(rows),
            uint32_t(pitch),
            uint32_t(kept),
            uint32_t(sums),
            uint32_t(sums + count * 4),
            uint32_t(sums + lists),
            sums + lists + kept * pitch};
}

struct GemvRowsProblem {
    GemvProblem gemv;  // without bias and y
    ExpertsView e;
    ExpertsCut cut;
    GemvRowsPlan plan;  // of the instance
    int32_t slots;      // of all tokens
    int64_t x_stride;
    bool second_by_row;
    bool routed_early;  // the routing can be read before the kernel in front has finished
    bool fills;         // slots whose expert is not there have rows of y
};

// The fixed part of the instance that takes most: more warps' slots than for one row of x, places.
constexpr int64_t kRowsFixed = kGemvShared + (kRowsWarps - kGemvWarps) * 6160 + 256;

// Bytes of its block with items of one row.
static constexpr int64_t gemv_rows_shared(int64_t count, int64_t tokens, int64_t slots, int64_t k) {
    const int64_t counted = min64(tokens * slots, kRowsSlots + slots);
    return kRowsFixed + round_up((count + counted) * 4, 16) + rows_pitch(k) + rows_sums(1);
}

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct GemvRows {
    static Status run(const GemvRowsProblem &p, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda

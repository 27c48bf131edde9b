// Slots by expert, listed on the device for kernels that multiply several rows of x by an expert
// (experts_list.cu), and what they keep in the workspace: a pure function of the problem.
//
//     [how many items and slots] [items] [slots by expert] [z of some tokens and columns of y,
//     where slots are added up] [rows of x by expert, where kernels want them]
#pragma once
#include "cuda/linear/experts.cuh"

namespace qk::cuda {

constexpr int64_t kListed = 10 << 10;  // experts at most: their counters are in shared memory
constexpr int64_t kListLine = 128;     // bytes: rows of x that straddle lines are slow to copy
constexpr int64_t kZBytes = int64_t{64} << 20;   // of z, but for 64 tokens and where x was before
constexpr int64_t kXBytes = int64_t{176} << 20;  // of x, at most, but for the rows of 64 tokens

// Rows [first, first + count) of the list, all of one expert. Where y has a row a slot, those of
// experts that are not there come as `expert` count (below 0) and count + 1 (past the last).
struct ExpertsItem {
    int32_t expert, first, count;
    int32_t number, together;  // among the items of this expert; how many these are
};

// Which of 16 columns of a gathered row of x come first, so that a lane's columns of a product are
// those of a word of codes (sm90/gemm/ring.cuh): 0 1, 4 5, 8 9, 12 13, or the even ones, where
// they are decoded in this order (PlacedE2m1); then the others.
enum class GatheredColumns : uint8_t { kPairs, kEven };

// What is to be listed.
struct ExpertsListCase {
    int64_t tokens, slots, count;
    int64_t columns;       // of y
    bool summed;           // slots are added up
    int32_t item_rows;     // of x, at most, shared out evenly; 0: the kernel uses no list
    int64_t some_columns;  // that a kernel can multiply alone: multiples of these
    int64_t x_bytes;       // of a row of x; 0: rows are left where they are
    GatheredColumns x_columns = GatheredColumns::kPairs;
    int64_t z_bytes = kZBytes;
};

struct ExpertsListPlan {
    int64_t tokens, columns;   // at once
    int64_t items;             // at most
    int64_t rows, x_rows;      // of the list, that items begin in at once; with x
    int64_t order, z, x, end;  // bytes from the start of the workspace
    int32_t item_rows;
    GatheredColumns x_columns;
};

static constexpr ExpertsListPlan plan_list(const ExpertsListCase &c) {
    int64_t tokens = c.tokens, columns = c.columns;
    const int64_t room =  // for tokens whose rows of x are there at once
        c.x_bytes > 0 ? max64(kXBytes / (c.slots * c.x_bytes), 64) : tokens;
    if (c.summed) {  // fewer columns first: tokens at once share the weights that are read
        tokens = min64(tokens, room);
        const int64_t least = min64(c.some_columns, columns) * c.slots * 4;  // bytes, of a token
        tokens = min64(tokens, max64(c.z_bytes / least, 64));
        const int64_t fit = max64(c.z_bytes / (least * tokens), 1) * min64(c.some_columns, columns);
        const int64_t passes = ceil_div(columns, fit);
        columns = min64(columns, round_up(ceil_div(columns, passes), c.some_columns));
    }
    tokens = ceil_div(c.tokens, ceil_div(c.tokens, tokens));
    const int64_t rows = tokens * c.slots, at_once = min64(rows, room * c.slots);
    const int64_t x_rows = at_once < rows ? at_once + c.item_rows : rows;  // the last item's end
    const bool lists = c.item_rows > 0;
    const int64_t items = lists ? min64(rows, rows / c.item_rows + min64(rows, c.count + 2)) : 0;
    const int64_t listed = lists ? 16 + items * int64_t(sizeof(ExpertsItem)) : 0;
    const int64_t order = round_up(listed, kListLine);
    const int64_t z = order + (lists ? round_up(rows * 4, kListLine) : 0);
    const int64_t x = z + (c.summed ? round_up(rows * columns * 4, kListLine) : 0);
    const int64_t end = x + x_rows * c.x_bytes;
    return {tokens, columns, items, at_once, x_rows, order, z, x, end, c.item_rows, c.x_columns};
}

// Where a list is.
struct ExpertsList {
    int32_t *items_there, *slots_there;
    ExpertsItem *items;
    int32_t *slots;
    int32_t item_rows;
};

// What a kernel of items multiplies: some columns of y, which is z where slots are added up, and
// the items that begin in some rows of the list.
struct ListedExperts {
    ExpertsView e;
    ExpertsList list;
    int64_t items;  // at most
    int64_t first, columns;
    int64_t first_row, rows;
    void *x;  // in the sequence of the list from first_row on, where the plan has room for it
    int64_t x_rows;
    void *next = nullptr;  // where rows of y go as x of the next product; null: nowhere
    bool early = false;    // the list was made before the kernel in front began
    GatheredColumns x_columns = GatheredColumns::kPairs;  // of x, and of next
};

using Products = Status(const LinearArgs &, const ListedExperts &, const Launch &);

// For as many tokens at once as the plan has room for: their list, which has no slot that is
// skipped where slots are added up, products, of as many rows of x at once, and sums of slots.
Status run_listed(const LinearArgs &args, const ExpertsListPlan &plan, const Launch &launch,
                  Products *products);

// Two products that have one list: `down` multiplies the y of `up` by its routing, all tokens at
// once. Its x is behind the x of `up`, which its z then takes the place of.
struct ExpertsLayer {
    const LinearArgs &up, &down;
    ExpertsListPlan of_up, of_down;

    int64_t x_of_down() const {
        return max64(of_down.x, of_down.z + round_up(of_up.end - of_up.x, kListLine));
    }
    int64_t end() const { return x_of_down() + of_down.end - of_down.x; }
    bool shares_list() const;
};

inline bool ExpertsLayer::shares_list() const {
    const Experts &a = *up.experts, &b = *down.experts;
    const int64_t rows = a.tokens * a.slots;
    return a.expert == b.expert && a.tokens == b.tokens && a.slots == b.slots &&
           a.count == b.count && !a.summed && b.x_by_slot && down.x.data == up.y.data &&
           down.x.format == up.y.format && down.x.columns == up.y.columns &&
           row_stride(down.x) == row_stride(up.y) && of_up.item_rows == of_down.item_rows &&
           of_up.x_columns == of_down.x_columns && of_up.rows == rows &&
           of_down.tokens == a.tokens && of_down.rows == rows;
}
// Both, within end() bytes; `products` stores y to ListedExperts::next, too.
Status run_layer(const ExpertsLayer &layer, const Launch &launch, Products *products);

#if defined(__CUDACC__)
namespace {

// Columns of y of rows of the list whose experts are not there, by `threads` threads.
__device__ inline void fill_rows(const ExpertsView &e, const ExpertsList &list, int32_t row,
                                 int32_t rows, int64_t first, int32_t columns, int32_t threads) {
    for (int32_t i = int32_t(threadIdx.x); i < columns * rows; i += threads) {
        const int64_t slot = list.slots[row + i / columns], column = first + i % columns;
        const int32_t expert = expert_of(e, slot);
        SlotSum sum;
        if (expert >= 0) sum.add(e, slot, expert, 0);
        if (column < e.columns) store_sum(e, slot, column, sum);
    }
}

}  // namespace
#endif

}  // namespace qk::cuda

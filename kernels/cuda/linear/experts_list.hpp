// Slots by expert, listed on the device for kernels that multiply several rows of x by an expert
// (experts_list.cu), and what they keep in the workspace: a pure function of the problem.
//
//     [how many items] [items] [slots by expert] [z of some tokens, where slots are added up]
#pragma once
#include "cuda/linear/experts.cuh"

namespace qk::cuda {

constexpr int64_t kItemRows = 8;       // of x
constexpr int64_t kListed = 10 << 10;  // experts at most: their counters are in shared memory
constexpr int64_t kZBytes = int64_t{64} << 20;

// Rows [first, first + count) of the list, all of one expert. Where y has a row a slot, those of
// experts that are not there come as `expert` count (below 0) and count + 1 (past the last).
struct ExpertsItem {
    int32_t expert, first, count, unused;
};

struct ExpertsListPlan {
    int64_t tokens;         // at once
    int64_t items;          // at most
    int64_t order, z, end;  // bytes from the start of the workspace
};

static constexpr ExpertsListPlan plan_list(int64_t tokens, int64_t slots, int64_t count,
                                           int64_t columns, bool summed) {
    const int64_t z_bytes = summed ? slots * columns * 4 : 0;
    const int64_t fit = summed ? max64(kZBytes / z_bytes, 64) : tokens;
    const int64_t at_once = min64(tokens, fit), rows = at_once * slots;
    const int64_t items = min64(rows, rows / kItemRows + min64(rows, count + 2));
    const int64_t order = 16 + items * int64_t(sizeof(ExpertsItem));
    const int64_t z = order + round_up(rows * 4, 16);
    return {at_once, items, order, z, z + at_once * z_bytes};
}

// Where a list is.
struct ExpertsList {
    int32_t *items_there;
    ExpertsItem *items;
    int32_t *slots;
};

inline ExpertsList list_at(void *workspace, const ExpertsListPlan &plan) {
    char *const at = static_cast<char *>(workspace);
    return {reinterpret_cast<int32_t *>(at), reinterpret_cast<ExpertsItem *>(at + 16),
            reinterpret_cast<int32_t *>(at + plan.order)};
}

// Makes the list of all slots; of those alone that are there where they are added up.
Status list_experts(const ExpertsView &e, const ExpertsList &list, const Launch &launch);
// y from z [tokens * slots, columns] in f32.
Status add_slots(const ExpertsView &e, const float *z, const Launch &launch);

}  // namespace qk::cuda

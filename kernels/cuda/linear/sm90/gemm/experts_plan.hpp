// How the matrix kernel for experts (experts.cuh) cuts a product: a pure function of the problem.
#pragma once
#include "cuda/linear/experts_list.hpp"
#include "cuda/tile/problem.hpp"

namespace qk::cuda {

// What decides about room in a block's shared memory.
struct GemmExpertsKind {
    bool small_groups;  // of 16 and 32
    bool coded;         // scales; those and the scales of small groups the producers make
    bool lut4, e2m1;    // codes
    bool e8m0 = false;  // scales

    // In small groups E2M1 is decoded without one.
    constexpr bool has_table() const { return lut4 && !(e2m1 && small_groups); }
    constexpr bool placed() const { return e2m1 && small_groups && e8m0; }  // PlacedE2m1
    constexpr GatheredColumns x_columns() const {
        return placed() ? GatheredColumns::kEven : GatheredColumns::kPairs;
    }
    // Measured where warps that copy scales do nothing else: of U4.
    constexpr bool has_96() const { return !lut4 && !small_groups && !coded; }
    // Rows of x of an item, where experts have many. Beside a table there would be two stages of
    // 160, and three warps that make scales do not fit into them.
    constexpr int32_t most_rows() const {
        return has_table() && (coded || small_groups) ? 128 : 160;
    }
};

static constexpr bool has_small_groups(int64_t group_size, int64_t groups_per_row) {
    return groups_per_row > 1 && group_size < 64;
}

// Rows of x that a block has sums for: of an item, at most. By the rows that an expert has if the
// routing is even, so that most experts have one item, or two where codes are looked up: to 64 rows
// blocks have four warpgroups, which hide decoding better than two, and three to 96.
static constexpr int32_t gemm_item_rows(int64_t tokens, int64_t slots, int64_t count,
                                        const GemmExpertsKind &kind) {
    const int64_t rows = tokens * slots;
    if (rows <= 24 * count) return 32;
    if (rows <= (kind.has_table() ? 96 : 56) * count) return 64;
    return kind.has_96() && rows <= 80 * count ? 96 : kind.most_rows();
}

// Rows of w of a block.
static constexpr int64_t gemm_block_rows(int32_t item_rows) {
    return item_rows <= 64 ? 256 : item_rows == 96 ? 192 : 128;
}

static constexpr ExpertsListPlan plan_gemm_list(int64_t tokens, int64_t slots, int64_t count,
                                                int64_t columns, bool summed, int64_t k,
                                                const GemmExpertsKind &kind,
                                                int64_t z_bytes = kZBytes) {
    const int32_t item_rows = gemm_item_rows(tokens, slots, count, kind);
    return plan_list({tokens, slots, count, columns, summed, item_rows, gemm_block_rows(item_rows),
                      k * 2, kind.x_columns(), z_bytes});
}

inline ExpertsListPlan gemm_list_of(const LinearArgs &args, int64_t z_bytes = kZBytes) {
    const ExpertsView e = experts_view(args);
    const Geometry &s = args.w.geometry;
    const GemmExpertsKind kind = {has_small_groups(s.group_size, s.groups_per_row),
                                  has_coded_scales(args.w.scale), codes_of(args.w) == Codes::kLut4,
                                  args.w.format->id == QK_FORMAT_FP4_E2M1,
                                  args.w.scale.format->id == QK_FORMAT_E8M0};
    return plan_gemm_list(e.tokens, e.slots, e.count, e.columns, e.summed, args.x.columns, kind,
                          z_bytes);
}

inline ExpertsLayer gemm_layer_of(const LinearArgs &up, const LinearArgs &down) {
    const ExpertsListPlan of_up = gemm_list_of(up);
    return {up, down, of_up, gemm_list_of(down, max64(kZBytes, of_up.end - of_up.x))};
}
// Whether the two run with one list.
inline bool runs_as_one(const ExpertsLayer &layer, size_t workspace_bytes) {
    return layer.up.y.format->bits == 16 && leaves_whole(experts_view(layer.up)) &&
           layer.shares_list() && size_t(layer.end()) <= workspace_bytes;
}

}  // namespace qk::cuda

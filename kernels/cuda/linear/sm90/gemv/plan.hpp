// How the kernel for one row of x (linear/sm90/gemv/gemv.cu) cuts a weight: a pure function of the
// problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kGemvWarps = 16;
constexpr int kGemvBlocks = 1;     // a multiprocessor: a thread has up to 128 registers
constexpr int32_t kUnitTiles = 8;  // of 64 columns: a warp's unit of work is 16 rows x 512 columns
constexpr uint32_t kUnitBytes = kUnitTiles * 512;
constexpr int64_t kUnitColumns = kUnitTiles * 64;
constexpr int64_t kBlockRows = 32;  // rows of tiles a block takes at most

// Every block takes a run of rows of tiles (16 rows of the weight each): R rows of U units, one
// run of memory. Unit number j of a block belongs to warp j mod 16. The sums of units u, u + 16,
// ... of a row are one partial sum, whose warp differs from row to row but not its order: the order
// of all additions depends on k alone.
struct GemvPlan {
    int32_t blocks;
    int32_t tiles, units;         // of a row of tiles
    int32_t partials;             // of a row of tiles
    int32_t row_step, unit_step;  // 16 units are so many rows and units
    uint32_t reciprocal;          // 2^16 / units, rounded up
    uint32_t sums_bytes;          // of a block's partial sums
    Deal rows;                    // to blocks
    int32_t first_block = 0;      // of the launch's, that has the first rows
};

// A unit of the weight.
struct Unit {
    int32_t row, column;  // of tiles, of units

    // The warp's next one, of units that are dealt to warps in turn.
    QK_HD constexpr void advance(const GemvPlan &plan) {
        row += plan.row_step;
        column += plan.unit_step;
        if (column >= plan.units) {
            column -= plan.units;
            ++row;
        }
    }
};

static constexpr GemvPlan plan_gemv(int64_t n, int64_t k, int64_t most_blocks) {
    const int64_t row_tiles = ceil_div(n, 16), tiles = ceil_div(k, 64);
    const int64_t units = ceil_div(tiles, kUnitTiles);
    const int64_t waves = ceil_div(row_tiles, most_blocks * kBlockRows);
    const int32_t blocks = int32_t(min64(row_tiles, most_blocks * waves));
    const Deal rows = deal(row_tiles, blocks);
    const int64_t most = rows.each + (rows.rest > 0), partials = min64(units, kGemvWarps);
    return {blocks,
            int32_t(tiles),
            int32_t(units),
            int32_t(partials),
            int32_t(kGemvWarps / units),
            int32_t(kGemvWarps % units),
            uint32_t(ceil_div(65536, units)),
            uint32_t(most * partials * 64),
            rows};
}

// Second scales of a block's rows, at most, and of a unit's groups past the end of k; 0: scales are
// not nested.
static constexpr int64_t gemv_seconds(const GemvPlan &plan, int64_t groups_per_row,
                                      int64_t second_group) {
    if (second_group == 0) return 0;
    const int64_t rows = plan.rows.each + (plan.rows.rest > 0);
    return rows * 16 * groups_per_row / second_group + 32;
}

// Bytes of a block: of the instance that takes most, its sums and its second scales.
constexpr int64_t kGemvShared = 134432;

static constexpr int64_t gemv_shared(int64_t n, int64_t k, int64_t groups_per_row,
                                     int64_t second_group, int32_t multiprocessors) {
    const GemvPlan plan = plan_gemv(n, k, multiprocessors);
    return kGemvShared + plan.sums_bytes + gemv_seconds(plan, groups_per_row, second_group) * 4;
}

struct GemvProblem : TilesProblem {
    int32_t group_shift;  // log2 of the tiles a group; -1: half a tile, -2: a quarter; 31: a row
    uint32_t seconds;     // nested: second scales that a block has room for
    GemvPlan plan;
    float entry_unit;   // f32 x: of the entries
    uint32_t x_places;  // f32 x: bytes behind the sums where units of x are kept; 0: nowhere
    qk_format coded;    // what coded scales are: E8M0 and E4M3 need no table
};

inline GemvProblem gemv_problem(const LinearArgs &args, const Device &device,
                                const GemvPlan &plan) {
    return {tiles_problem(args),
            group_tiles_shift(args.w.geometry),
            0,
            plan,
            1,
            0,
            coded_scales(args.w.scale, *device.tables)};
}

// Of a weight that so many blocks have, at most.
inline GemvProblem gemv_problem(const LinearArgs &args, const Device &device, int32_t blocks) {
    const Geometry &s = args.w.geometry;
    const GemvPlan plan = plan_gemv(s.n, s.k, blocks);
    GemvProblem p = gemv_problem(args, device, plan);
    const int64_t second = args.w.scale.second_group;
    p.seconds = uint32_t(gemv_seconds(plan, s.groups_per_row, second));
    return p;
}

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct Gemv {
    static Status run(const GemvProblem &p, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda

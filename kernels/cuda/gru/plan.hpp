// Which way a GRU runs on a device: pure functions of the problem and the device.
#pragma once
#include <initializer_list>

#include "backend/backend.hpp"

namespace qk::cuda {

// The recurrence on clusters: R is in the registers of a cluster's blocks, which advance
// `batch_tile` sequences; h goes from block to block through shared memory.
struct GruPlan {
    int32_t hidden;     // the size the kernel is built for, at least the GRU's
    int32_t tiles;      // of sequences, that alternate in a cluster; 0: it has one sequence
    int32_t tile;       // sequences of a tile, up to 8
    int32_t sequences;  // of a cluster
    int32_t limbs;      // bytes of x
    bool wide;          // W x by the warpgroups' matrix units
    int64_t columns;    // of x and W, padded to whole tiles
    int64_t units;      // of W, the same
    int64_t chunk;      // steps of one launch
};

constexpr int32_t kInputColumns = 64, kInputUnits = 32, kInputRows = 128;  // a tile of W x
constexpr int32_t kWideColumns = 128, kWideUnits = 64, kWideRows = 128;    // the same, if wide
constexpr int64_t kWideAtLeast = 512;                                      // rows of x
constexpr int32_t kDirectCodes = 256;  // gates of at most so many input codes are tabulated
constexpr int32_t kPlainLines = 512;   // of a uniform table
constexpr int64_t kChunkBytes = int64_t{1} << 27;

// How the recurrence computes gates. Direct: 8-bit ones, by a table of all codes in 32 bits; lines:
// 16-bit ones by uniform tables, products in 64 bits; any: as the cell says, slowly.
enum class PlainKind { kAny, kDirect, kLines };

inline bool goes_right(int32_t shift) { return shift >= 0 && shift <= 31; }
inline bool goes_any_way(int32_t shift) {  // a little left, too
    return shift >= -15 && shift <= 31;
}

// Whether 32 bits hold the shifted 64-bit products.
inline bool shifted_is_32(const gru::Cell &cell) {
    constexpr int64_t kCode = int64_t{1} << 17;  // beyond any difference of two codes
    const int64_t n = cell.n_to_h < 0 ? kCode << -cell.n_to_h : kCode;
    const int64_t one = (int64_t{cell.u_one} + kCode) + kCode;
    const int64_t rhh = kCode * kCode >> cell.rhh_to_n;
    return rhh < int64_t{1} << 30 && (kCode * kCode + one * n) >> cell.u_shift < int64_t{1} << 30;
}

inline PlainKind plain_kind(const gru::Cell &cell) {
    const int32_t shifts[] = {cell.ih_to_u, cell.ih_to_r, cell.ih_to_n,
                              cell.hh_to_u, cell.hh_to_r, cell.n_to_h};
    for (const int32_t shift : shifts) {
        if (!goes_any_way(shift)) return PlainKind::kAny;
    }
    if (cell.hh_shifts_right == 0 || !goes_right(cell.rhh_to_n)) return PlainKind::kAny;
    bool direct = cell.cell_is_32 != 0 && cell.view_shift == 0,
         lines = cell.lines_is_32 != 0 && shifted_is_32(cell);
    for (const gru::Table *table : {&cell.update, &cell.reset, &cell.candidate}) {
        if (table->input_max - table->input_min >= kDirectCodes) direct = false;
        if (table->kind != QK_GRU_TABLE_UNIFORM || table->count > kPlainLines) lines = false;
        if (table->input_min - table->input_zero > table->first) lines = false;  // from line 0 on
    }
    return direct ? PlainKind::kDirect : lines ? PlainKind::kLines : PlainKind::kAny;
}

constexpr int32_t kClusterUnits = 1024;  // whose R the registers of a cluster hold

// What both fast ways ask for: 8-bit weights and an 8-bit view of h, sums that 32 bits hold, codes
// and results at natural addresses, whole 8-byte words a row.
inline bool is_fast_gru(const GruArgs &args) {
    const gru::Cell &cell = *args.cell;
    const auto aligned = [](const void *plane, const Format &format, int32_t code_bytes) {
        const uintptr_t bytes = format.id == QK_FORMAT_F32 ? 4 : uintptr_t(code_bytes);
        return reinterpret_cast<uintptr_t>(plane) % bytes == 0;
    };
    return args.gates == nullptr && args.clipped == nullptr && cell.hidden_size % 8 == 0 &&
           cell.w_bytes == 1 && cell.r_bytes == 1 && cell.view_bytes == 1 && cell.sums_is_32 != 0 &&
           aligned(args.x, *args.x_format, cell.x_bytes) &&
           aligned(args.y, *args.y_format, cell.h_bytes);
}

// Few steps of few sequences: a launch each costs less than packing x and W first. States beyond a
// cluster go step by step, whatever their number, unless sequences are many.
constexpr int32_t kStepColumns = 2048, kStepBatch = 4;
constexpr int64_t kMaxSteps = 3, kMaxWideBatch = 64;

// A step's own forms of tables: knots that the lanes of a warp hold, or uniform lines.
constexpr int32_t kLaneKnots = 32;

inline bool has_lane_knots(const gru::Cell &cell) {
    if (plain_kind(cell) != PlainKind::kDirect) return false;
    for (const gru::Table *table : {&cell.update, &cell.reset, &cell.candidate}) {
        if (table->kind != QK_GRU_TABLE_KNOTS || table->count > kLaneKnots) return false;
        if (!goes_right(table->shift)) return false;
    }
    return true;
}

inline bool runs_by_steps(const GruArgs &args, int32_t capability) {
    const gru::Cell &cell = *args.cell;
    const bool wide = cell.hidden_size > kClusterUnits;
    return capability >= 80 && is_fast_gru(args) &&
           (wide ? args.batch <= kMaxWideBatch
                 : args.steps <= kMaxSteps && args.batch <= kStepBatch) &&
           cell.hidden_size <= kStepColumns && cell.x_bytes == 1 && cell.input_size % 8 == 0 &&
           cell.input_size <= kStepColumns && cell.ih_shifts_right != 0 &&
           (has_lane_knots(cell) || plain_kind(cell) == PlainKind::kLines);
}

inline bool plan_gru(const GruArgs &args, int32_t capability, GruPlan *plan) {
    const gru::Cell &cell = *args.cell;
    const int32_t h = cell.hidden_size;
    if (capability < 90 || !is_fast_gru(args) || h > kClusterUnits) return false;
    plan->hidden = h <= 256 ? 256 : h <= 512 ? 512 : 1024;
    // What an H200 holds at once; clusters beyond them would run after these.
    const int64_t clusters = plan->hidden == 256 ? 30 : plan->hidden == 512 ? 15 : 7;
    // One sequence a cluster is the fastest; then as many as a tile holds, for fewer clusters leave
    // more of the memory's time to each; two tiles take less than two rounds of one.
    plan->tiles = args.batch <= clusters ? 0 : args.batch <= 8 * clusters ? 1 : 2;
    plan->tile = plan->tiles == 0 ? 1 : 8;
    plan->sequences = plan->tiles == 2 ? 16 : plan->tile;
    plan->limbs = cell.x_bytes;
    plan->wide = capability == 90 && plan->limbs == 1 && cell.ih_shifts_right != 0 &&
                 args.steps * args.batch >= kWideAtLeast;
    plan->columns = round_up(cell.input_size, plan->wide ? kWideColumns : kInputColumns);
    plan->units = round_up(h, plan->wide ? kWideUnits : kInputUnits);
    const int64_t step_bytes = args.batch * (8 * int64_t{h} + plan->limbs * plan->columns);
    const int64_t fitting = kChunkBytes / step_bytes;
    plan->chunk = fitting < 1 ? 1 : min64(fitting, args.steps);
    return true;
}

// The workspace, piece by piece.
struct GruPieces {
    int64_t w, w_sum, x, ih, bytes;
};

inline GruPieces pieces_of(const GruPlan &plan, const GruArgs &args) {
    const int64_t rows = plan.chunk * args.batch;
    GruPieces pieces = {};
    const auto take = [&](int64_t bytes) {
        const int64_t at = pieces.bytes;
        pieces.bytes += round_up(bytes, 256);
        return at;
    };
    pieces.w = take(3 * plan.units * plan.columns);
    pieces.w_sum = take(3 * plan.units * 4);
    pieces.x = take(plan.limbs * rows * plan.columns);
    pieces.ih = take(rows * args.cell->hidden_size * 8);
    return pieces;
}

}  // namespace qk::cuda

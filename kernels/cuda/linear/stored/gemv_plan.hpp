// How the kernel for one row of x from stored words (words_gemv.cu) uses shared memory; it cuts a
// weight as the one for packed tiles does.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"

namespace qk::cuda {

// Units of a warp on their way or multiplied. Each comes in two halves, so that products begin
// early.
constexpr int kUnitsAhead = 2;

// Rows of units of a block, where they are dealt in turn.
QK_HD constexpr int32_t rows_of_block(const GemvPlan &plan, uint32_t block) {
    return plan.rows.each + (int32_t(block) < plan.rows.rest);
}

// Rows of tiles of a unit. In GPTQ 32 rows of w are 128 bytes of a row of words.
QK_HD constexpr int unit_tall(bool gptq) { return gptq ? 2 : 1; }
QK_HD constexpr int unit_columns(bool gptq) { return int(kUnitColumns) / unit_tall(gptq); }

constexpr int kHalfBytes = 2048;  // of a unit

// As plan_gemv; rows are those of units.
static constexpr GemvPlan plan_words_gemv(int64_t n, int64_t k, bool gptq, int64_t most_blocks) {
    const int tall = unit_tall(gptq);
    const int64_t row_units = ceil_div(n, 16 * tall), units = ceil_div(k, unit_columns(gptq));
    const int64_t waves = ceil_div(row_units, most_blocks * (kBlockRows / tall));
    const int32_t blocks = int32_t(min64(row_units, most_blocks * waves));
    const Deal rows = deal(row_units, blocks);
    const int64_t most = rows.each + (rows.rest > 0), partials = min64(units, kGemvWarps);
    return {blocks,
            int32_t(ceil_div(k, 64)),
            int32_t(units),
            int32_t(partials),
            int32_t(kGemvWarps / units),
            int32_t(kGemvWarps % units),
            uint32_t(ceil_div(65536, units)),
            uint32_t(most * partials * tall * 64),
            rows};
}

// Bytes of a block: the table of pairs, what scale codes stand for, partial sums, slots.
static constexpr int64_t words_gemv_shared(const GemvPlan &plan, bool lut4) {
    return (lut4 ? 32 * 1024 : 0) + 1024 + int64_t{plan.sums_bytes} +
           kGemvWarps * kUnitsAhead * 2 * kHalfBytes;
}

// What scale codes stand for, their bias, and room to 16 bytes.
constexpr int kScaleCodes = 256 + 4;

// Bytes of a block of the kernel for 8-bit codes (bytes_gemv.cu): a table, scale codes, partial
// sums.
static constexpr int64_t bytes_gemv_shared(const GemvPlan &plan, bool table) {
    return (table ? 32 * 1024 : 0) + kScaleCodes * 4 + int64_t{plan.sums_bytes};
}

// ---- Words along n: units of 64, 128 or 256 rows of w, a strip, and as many columns as make 4 KiB

constexpr int kStripCodes = 4096;
QK_HD constexpr int strip_rows(int wide) { return 64 * wide; }
QK_HD constexpr int strip_columns(int wide) { return 128 / wide; }
// Scales, zeros and x of a unit.
QK_HD constexpr int strip_beside(int wide, int scale_bytes) {
    return strip_rows(wide) * scale_bytes + strip_rows(wide) / 2 + strip_columns(wide) * 2;
}

struct StripsCase {
    int64_t n, k, group;  // group: its columns, all of k where it is a row
    int32_t scale_bytes;
    int64_t multiprocessors, shared_bytes;  // shared: of a block, at most
    bool has_clusters;
};

struct StripsPlan {
    int32_t wide;           // 1, 2, 4: a row of words of a unit is 32, 64, 128 bytes
    int32_t cut, clusters;  // blocks that divide k; those groups of blocks
    int32_t units;          // of a strip
    int32_t partials;       // of a block's strip
    uint32_t sums_bytes;    // of a block's strips
    Deal strips;            // to clusters
};

constexpr int64_t kClusterRows = 24 * 256;  // a cluster takes at most

static constexpr StripsPlan cut_strips(const StripsCase &c, int64_t wide, int64_t cut) {
    const int64_t strips = ceil_div(c.n, strip_rows(int(wide)));
    const int64_t units = ceil_div(c.k, strip_columns(int(wide)));
    const int64_t most = max64(1, c.multiprocessors / cut);
    const int64_t waves = ceil_div(strips, most * (kClusterRows / strip_rows(int(wide))));
    const int32_t clusters = int32_t(min64(strips, most * waves));
    const Deal dealt = deal(strips, clusters);
    const int64_t rows = (dealt.each + (dealt.rest > 0)) * strip_rows(int(wide));
    return {int32_t(wide),
            int32_t(cut),
            clusters,
            int32_t(units),
            int32_t(min64(units, kGemvWarps)),
            uint32_t(rows * 4),
            dealt};
}

// Bytes of a block: slots, warps' sums of two strips, its sums, those it receives, their barrier.
static constexpr int64_t columns_gemv_shared(const StripsPlan &plan, int scale_bytes) {
    const int64_t slot = kStripCodes + strip_beside(plan.wide, scale_bytes);
    return kGemvWarps * (kUnitsAhead * slot + 2 * strip_rows(plan.wide) * 4) +
           int64_t{plan.sums_bytes} * plan.cut + (plan.cut > 1 ? 16 : 0);
}

// What takes least by the rows of the busiest block: wide strips read memory better, and two blocks
// that divide k wait for each other. Larger clusters do not all find room at once.
static constexpr StripsPlan plan_columns_gemv(const StripsCase &c) {
    constexpr int64_t kClocks[] = {27, 24, 20};  // a row, with strips 1, 2 and 4 wide
    constexpr int64_t kNone = int64_t{1} << 62;
    StripsPlan best = {};
    int64_t least = 0;
    for (int shift = 2; shift >= 0; --shift) {
        const int64_t wide = int64_t{1} << shift;
        if (wide < 4 && c.group < strip_columns(int(wide))) continue;  // a unit is in one group
        for (int64_t cut = 1; cut <= (c.has_clusters ? 2 : 1); ++cut) {
            const StripsPlan plan = cut_strips(c, wide, cut);
            if (cut > 1 && plan.units < cut * kGemvWarps) continue;
            const bool fits = columns_gemv_shared(plan, c.scale_bytes) <= c.shared_bytes;
            const int64_t clocks = plan.sums_bytes * kClocks[shift] * (cut > 1 ? 21 : 40);
            if (least == 0 || (fits && clocks < least)) best = plan, least = fits ? clocks : kNone;
        }
    }
    return best;
}

}  // namespace qk::cuda

// How the kernel for one row of x from stored words (words_gemv.cu) uses shared memory; it cuts a
// weight as the one for packed tiles does.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"

namespace qk::cuda {

// Units of a warp on their way or multiplied. Each comes in two halves, so that products begin
// early.
constexpr int kUnitsAhead = 2;

// Rows of tiles of a block, where they are dealt in turn.
QK_HD constexpr int32_t rows_of_block(const GemvPlan &plan, uint32_t block) {
    return plan.rows.each + (int32_t(block) < plan.rows.rest);
}

// From a row of a unit (GPTQ: of words) to the next: lanes that load at once find banks of their
// own.
QK_HD constexpr int unit_pitch(bool gptq) {
    return gptq ? 16 * 4 + 16 : int(kUnitColumns) / 2 + 32;
}
QK_HD constexpr int unit_bytes(bool gptq) {
    return unit_pitch(gptq) * (gptq ? int(kUnitColumns) / 8 : 16);
}

// Bytes of a block: the table of pairs, what scale codes stand for, partial sums, slots.
static constexpr int64_t words_gemv_shared(const GemvPlan &plan, bool gptq, bool lut4) {
    return (lut4 ? 32 * 1024 : 0) + 1024 + int64_t{plan.sums_bytes} +
           kGemvWarps * kUnitsAhead * unit_bytes(gptq);
}

}  // namespace qk::cuda

// From a model to a cell: every claim a model makes is checked, and the absence of overflow is
// proven from the widths, shifts and weights, before a kernel sees a number of it.
#pragma once
#include <stdint.h>

#include "gru/cell.hpp"
#include "qk.h"

namespace qk::gru {

enum class Fault : int32_t {
    kNone = 0,
    kStructSize,
    kSize,       // input_size, hidden_size
    kFlags,      // flags, reserved fields
    kQuant,      // bits, signedness, symmetry, granularity
    kZeroPoint,  // outside its type, or not 0 where it must be
    kShift,      // a derived shift outside [-31, 62], or s_u outside [0, 30]
    kView,       // h_view_shift
    kTable,      // count, widths, order of knots
    kPointer,    // an array is missing or not aligned to its element
    kWeight,     // a weight or bias outside its bits
    kOverflow,   // some value could reach 2^62
    kOffset,     // stored offsets are not what the weights give
    kHeader,     // not a GRU file, or from a newer version
    kLength,     // the file is cut or padded
    kChecksum,
    kGranularity,  // shifts differ that granularity calls one
};
const char *fault_text(Fault fault);  // one clause, lower case, static

inline constexpr int32_t kMaxSize = 65535;
inline constexpr int32_t kMaxKnots = 256;
inline constexpr int32_t kMaxUniform = 4096;

// Where a tensor's codes live.
struct CodeRange {
    int32_t min, max;
};
CodeRange code_range(const qk_gru_quant &quant);
static inline int32_t code_bytes(int32_t bits) { return bits <= 8 ? 1 : 2; }

// Whether `quant` may describe tensor `which`.
bool quant_is_valid(int32_t which, const qk_gru_quant &quant);
// Everything that can be said without reading an array.
Fault check_header(const qk_gru_model &model);
// The header, the tables, and every weight and bias against its bits.
Fault check_model(const qk_gru_model &model);

// Offsets of all 3h rows (Cell::ih_offset, hh_offset); the model has been checked.
Fault compute_offsets(const qk_gru_model &model, int64_t *ih_offset, int64_t *hh_offset);
// The same for one row.
Fault compute_row_offsets(const qk_gru_model &model, int64_t row, int64_t *ih, int64_t *hh);

// The model has been checked; offsets are what compute_offsets gives and are borrowed, as are
// the model's arrays.
Fault derive(const qk_gru_model &model, const int64_t *ih_offset, const int64_t *hh_offset,
             Cell *cell);

}  // namespace qk::gru

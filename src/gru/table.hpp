// sigmoid and tanh as lines between integer codes. The tables are data made once by a host
// (docs/gru.md); this file only reads them.
#pragma once
#include <stdint.h>

#include "base/hd.hpp"
#include "base/rounding_shift.hpp"
#include "qk.h"

namespace qk::gru {

struct Table {
    const int32_t *threshold;
    const int32_t *slope;
    const int32_t *intercept;
    int32_t kind;
    int32_t count;
    int32_t shift;
    int32_t width_log2;
    int32_t first;
    int32_t input_zero, input_min, input_max;  // the gate input's type
    int32_t output_min, output_max;            // the clamp of rule 13
    int32_t half;                              // KNOTS: the largest power of two below count
};

template <class Int>
QK_HD static constexpr Int clamp(Int value, Int low, Int high) {
    return value < low ? low : value > high ? high : value;
}

// The number of thresholds (one less than segments) not above the code. Bisection by powers of two:
// a first step beyond the middle leaves the upper `half` segments, whatever the count.
QK_HD static constexpr int32_t knot_segment(const Table &table, int32_t code) {
    const int32_t *below = table.threshold - 1;  // its neighbours above are still to be asked
    int32_t advance = table.count - table.half;
    for (int32_t half = table.half; half > 0; advance = half >>= 1)
        if (code >= below[half]) below += advance;
    return int32_t(below + 1 - table.threshold);
}

// The value of a KNOTS line at a code.
template <class Wide>
QK_HD static constexpr int32_t knots_value(const Table &table, int32_t slope, int32_t intercept,
                                           int32_t code) {
    Wide value = rounding_shift(Wide(slope) * (code - table.input_zero), table.shift) + intercept;
    return int32_t(clamp<Wide>(value, table.output_min, table.output_max));
}

// sum: the gate input, not yet clamped to its type (rule 9). Wide holds a line's value.
template <class Wide, class Sum>
QK_HD static constexpr int32_t table_value(const Table &table, Sum sum) {
    int32_t code = int32_t(clamp<Sum>(sum, table.input_min, table.input_max));
    if (table.kind == QK_GRU_TABLE_KNOTS) {
        const int32_t segment = knot_segment(table, code);
        return knots_value<Wide>(table, table.slope[segment], table.intercept[segment], code);
    }
    // Outside the table the curve is flat, so the ends stand for everything beyond them.
    int32_t last = (table.count << table.width_log2) - 1;
    int32_t position = clamp<int32_t>(code - table.input_zero - table.first, 0, last);
    int32_t segment = position >> table.width_log2;
    int32_t offset = position - (segment << table.width_log2);
    Wide value =
        rounding_shift(Wide(table.slope[segment]) * offset + table.intercept[segment], table.shift);
    return int32_t(clamp<Wide>(value, table.output_min, table.output_max));
}

}  // namespace qk::gru

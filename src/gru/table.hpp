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
};

template <class Int>
QK_HD static constexpr Int clamp(Int value, Int low, Int high) {
    return value < low ? low : value > high ? high : value;
}

// sum: the gate input, not yet clamped to its type (rule 9).
template <class Int>
QK_HD static constexpr int32_t table_value(const Table &table, Int sum) {
    Int code = clamp<Int>(sum, table.input_min, table.input_max);
    Int value;
    if (table.kind == QK_GRU_TABLE_UNIFORM) {
        // Outside the table the curve is flat, so the ends stand for everything beyond them.
        Int last = (Int(table.count) << table.width_log2) - 1;
        Int position = clamp<Int>(code - table.input_zero - table.first, 0, last);
        Int segment = position >> table.width_log2;
        Int offset = position - (segment << table.width_log2);
        value =
            rounding_shift(table.slope[segment] * offset + table.intercept[segment], table.shift);
    } else {
        int32_t segment = 0;
        while (segment < table.count - 1 && code >= table.threshold[segment]) ++segment;
        value = rounding_shift(table.slope[segment] * (code - table.input_zero), table.shift) +
                table.intercept[segment];
    }
    return int32_t(clamp<Int>(value, table.output_min, table.output_max));
}

}  // namespace qk::gru

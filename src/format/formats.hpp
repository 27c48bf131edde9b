// The format table: what the codes of a plane mean, one row a format. Adding a format is a row
// here, its enum in qk.h, its codebook, and a function in tests/reference (docs/adding.md).
#pragma once
#include "format/codebook.hpp"
#include "qk.h"

namespace qk {

enum class FormatKind : uint8_t {
    kFloat,    // dense, takes part in arithmetic
    kInteger,  // dense, stored and moved only
    kU4,       // (code - zero) * scale
    kLut4,     // value(code) * scale: nf4, fp4, e2m1; lut4: its table is a plane
    kLut8,     // table[code] * scale: lut8: the table is a plane; e4m3: it is built in
    kS8,       // int8(code) * scale
    kScale     // of scales only: e8m0
};

struct Format {
    qk_format id;
    const char *name;
    FormatKind kind;
    uint8_t bits;
    float (*value)(int code);  // kLut4: the codebook; null where it is a plane
    float largest;             // kLut4, kS8: the magnitude that absmax maps to
};

// nullptr for an unknown id.
const Format *find_format(qk_format id);

constexpr bool is_dense(const Format &format) { return format.kind <= FormatKind::kInteger; }
constexpr bool is_float(const Format &format) { return format.kind == FormatKind::kFloat; }

// Entries of the TABLE plane, 0 where a format has none.
constexpr int64_t table_entries(const Format &format) {
    switch (format.id) {
        case QK_FORMAT_LUT8: return 256;
        case QK_FORMAT_LUT4: return 16;
        default: return 0;
    }
}

}  // namespace qk

// From a caller's description to checked sizes: the one place that decides whether a description
// makes sense and how many bytes each plane has.
#pragma once
#include "base/status.hpp"
#include "format/formats.hpp"
#include "format/layouts.hpp"

namespace qk {

struct Shape {
    const Format *format;
    const Format *scale_format;  // null for dense
    const Layout *layout;        // null for dense
    Geometry geometry;           // quantized: rows x columns and groups
    int64_t rows, columns;       // leading dimensions multiplied, last dimension
    int64_t stride;              // dense: from a row to the next; from a column where column_major
    bool column_major;           // dense: stored column after column
    int64_t second_group;        // nested and i8 scales: scales per second scale, else 0
    bool has_zero;
    bool whole_range;  // S8 with the flag SYMMETRIC: how it is quantized
    bool has_minimum;  // minima in the ZERO plane, in scale_format
    bool ordered;      // columns are stored in an order of their own
    int64_t globals;   // numbers in the GLOBAL plane: 0, 1 or one a row
    bool divides;      // scales are divided by them
    int64_t plane_bytes[QK_PLANE_COUNT];
};

// Whether the layout keeps a table of what each code of a scale is once it has been divided by the
// tensor's one GLOBAL number: kernels of packed tiles multiply only.
constexpr bool has_folded_code(const Shape &shape) {
    const qk_layout id = shape.layout->id;
    return shape.divides && shape.globals == 1 && (id == kLayoutTiles || id == kLayoutTilesPairs);
}

constexpr int64_t kDefaultSecondGroup = 256;  // bitsandbytes' nested block

// The caller's description as this library knows it.
Status read_desc(const qk_tensor_desc *given, qk_tensor_desc *desc, ErrorText *error);

// Checks `desc` and fills `shape`. `packed` is the layout that QK_LAYOUT_PACKED stands for, or
// QK_LAYOUT_PACKED itself where it has no meaning (no device): then it is refused.
Status resolve(const qk_tensor_desc &desc, qk_layout packed, Shape *shape, ErrorText *error);

// As resolve, where the packed layout depends on the format and so is not known beforehand.
Status resolve_format(const qk_tensor_desc &desc, const Format **format, ErrorText *error);

}  // namespace qk

// What a kernel sees: raw planes and sizes, never a handle. The op layer has checked all of it, so
// kernels check nothing but whether they can run the case at all.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "format/formats.hpp"
#include "format/layouts.hpp"
#include "qk.h"

namespace qk {

// A dense matrix [rows, columns], row-major, at any alignment.
struct Dense {
    const Format *format;
    int64_t rows, columns;
    void *data;
};

// Where the scales of a weight come from. Planes may be misaligned: void, read through memcpy.
struct ScalePlane {
    const Format *format;  // f32, f16, bf16; lut8: nested
    void *data;            // scales, or 8-bit codes where nested
    void *second;          // nested: f32, one a `second_group` scales, numbered as groups are
    void *code;            // nested: f32[256]
    void *bias;            // nested: f32, added to code * second
    int64_t second_group;  // nested: scales per second scale
};

// A weight [n, k]. Dense weights have a dense `format`, a null `layout` and only `data`.
struct Weight {
    const Format *format;
    const Layout *layout;
    Geometry geometry;
    void *data;
    ScalePlane scale;
    void *zero;   // null: every zero is 8 (or the format has none)
    void *table;  // lut8: f32[256]
};

struct DequantizeArgs {
    Weight from;
    Dense to;
};

struct QuantizeArgs {
    Dense from;
    Weight to;
};

struct RepackArgs {
    Weight from, to;  // same format, scale format and geometry
};

struct LinearArgs {
    Dense x;           // [m, k]
    Weight w;          // [n, k]
    const Dense *bias; // [1, n] or null
    Dense y;           // [m, n], x's format
};

}  // namespace qk

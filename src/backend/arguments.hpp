// What a kernel sees: raw planes and sizes, never a handle. The op layer has checked all of it, so
// kernels check nothing but whether they can run the case at all.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/checked.hpp"
#include "format/formats.hpp"
#include "format/layouts.hpp"
#include "gru/calibrate/float_gru.hpp"
#include "gru/cell.hpp"
#include "qk.h"

namespace qk {

// A dense matrix [rows, columns], row-major, at any alignment.
struct Dense {
    const Format *format;
    int64_t rows, columns;
    void *data;
};

// The scales of a weight. Planes may be misaligned, hence void: they are read through memcpy.
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
    int64_t first_row = 0;  // of `from`, that goes to row 0 of `to`; inside backends only
};

struct QuantizeArgs {
    Dense from;
    Weight to;
};

struct RepackArgs {
    Weight from, to;        // same format, scale format and geometry
    int64_t first_row = 0;  // of `from`, that goes to row 0 of `to`, which may have fewer rows;
                            // inside backends only
};

struct LinearArgs {
    Dense x;            // [m, k]
    Weight w;           // [n, k]
    const Dense *bias;  // [1, n] or null
    Dense y;            // [m, n], x's format; inside backends `columns` may be more than n
};

// Steps of a frozen GRU. Everything but x, y and gates is aligned; h and scratch belong to the
// state.
struct GruArgs {
    const gru::Cell *cell;  // its arrays are on the device
    int64_t steps, batch;
    const Format *x_format;  // f32, or i8/i16 as the cell stores x
    const void *x;           // [steps,batch,c]
    const Format *y_format;  // f32, or i8/i16 as the cell stores h
    void *y;                 // [steps,batch,h]
    void *gates;             // f32 [steps,batch,4h] or null
    uint32_t *turns;         // says which of two states is the current one
    void *h;                 // 2 * [batch,h] codes, gru_state_bytes apart, advanced in place
    void *scratch;           // batch * gru_scratch_bytes, then GruPacking's
    const void *packed;      // what GruPacking::make left, or null
    int64_t *clipped;        // [batch,QK_GRU_TENSOR_COUNT] counts of clipped codes, added to;
                             // null for the fast kernels, which do not count
};

// The float GRU of calibration, on the host: y [rows,outputs] = x [rows,count] W^T + bias. W is in
// panels of rows side by side: [ceil(outputs / kFloatPanel)][count][kFloatPanel], zeros past the
// last row, as past the last bias.
constexpr int64_t kFloatPanel = gru::kFloatPanel;
struct FloatProductArgs {
    const float *panels, *bias, *x;
    int64_t rows, count, outputs;
    float *y;
};

// One step of it from its products [batch,3h]; everything else is [batch,h].
struct FloatGatesArgs {
    int64_t batch, units;
    const float *ih, *hh, *h;
    float *u_in, *u, *r_in, *r, *n_in, *n, *h_next;
};

// State (turns / kTurn) % 2 is the current one. A kernel whose blocks all read the whole state
// writes the other one, and its blocks add kTurn to turns between them; the others leave it alone.
constexpr uint32_t kTurn = 4096;  // as many blocks at most

static inline int64_t gru_state_bytes(const gru::Cell &cell, int64_t batch) {
    return round_up(batch * cell.hidden_size * cell.h_bytes, 64);
}

// Room of one sequence: x, the next h and the view of h as codes, the gates of a step.
static inline int64_t gru_scratch_bytes(const gru::Cell &cell) {
    const int64_t h = cell.hidden_size;
    return round_up(int64_t(sizeof(gru::Gates)) * h + 2 * (cell.input_size + 2 * h), 64);
}

}  // namespace qk

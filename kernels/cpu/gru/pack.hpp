// A frozen GRU laid out for vectors of 16 units, one layout for every instruction set. Made
// once, when the GRU is frozen or loaded; docs/gru.md says which models have one.
//
// Weights are stored in panels of 16 units, as they are used, so that a step reads one stream:
//     [panel][4 columns][gate u, r, n][unit of the panel][column]      one byte each, zero padded
//     [panel][2 columns][gate u, r, n][unit of the panel][column]      weights of 16 bits
#pragma once
#include "backend/backend.hpp"

namespace qk::cpu {

constexpr int64_t kGruUnits = 16;  // of a panel

// Codes as planes of bytes, the operands of dot product instructions: the code, or its high byte
// and its low byte. x86 multiplies unsigned by signed bytes, so a signed byte is stored 128 higher;
// Arm multiplies signed bytes, so an unsigned one is stored 128 lower. What the sum of products
// then lacks is the sum of the row's weights times this.
#if defined(__x86_64__)
constexpr int32_t kPlaneShift[2] = {-128, -128 * 256};  // one plane, two planes
#else
constexpr int32_t kPlaneShift[2] = {0, 128};
#endif

// The same of codes of 16 bits as two planes of words; 32-bit Arm multiplies them as they are.
#if defined(__arm__)
constexpr int32_t kWordShift = 0;
#else
constexpr int32_t kWordShift = 128;
#endif

constexpr int kWordOffsetBits = 24;

struct GruShift {  // rounding_shift by right - left; one of them is 0
    int32_t left, right;
};

// A linear part, W x + bw or R h + br. Rows of a panel: [gate][unit].
struct GruRows {
    const int8_t *weights;
    const int32_t *offset;        // Cell::ih_offset, modulo 2^32
    const int32_t *plane_offset;  // the same for codes in planes of bytes, shifted as kPlaneShift
    const int32_t *half;          // 2^(shift - 1) - 1
    const uint8_t *shift;         // 1..31, for sums that are `lift` higher; of words 1..62
    // Weights of 16 bits have this one instead, others have none: per 16 rows the high parts, then
    // kWordOffsetBits low ones.
    const int32_t *word_offset;
    int64_t groups;       // of 4 columns, of 2 where weights have 16 bits
    int32_t min, max;     // the output's type, zero point taken off
    GruShift to_gate[3];  // what the gates do first; none for n of R h + br
    int32_t lift;         // sums times 2^lift, as offsets are, so that every row shifts right
    bool in_pairs;        // two products of columns 8 i to 8 i + 7 fit 16 bits, whatever the codes

    bool has_words() const { return word_offset != nullptr; }
};

enum class GruCurve : int32_t { kDirect, kUniform, kKnots };

// A gate table. position = clamp(sum + bias, low, high), with sum the gate input without its zero
// point.
struct GruTable {
    GruCurve curve;
    int32_t bias, low, high;
    const uint8_t *direct;  // [256] value - output_min, and room for a wide read of the last
    const int32_t *pairs;   // uniform: slope, intercept
    const int32_t *threshold, *slope, *intercept;  // knots: [16]
    int32_t width_log2;
    int32_t zero;  // of the gate input: what a knot's slope does not multiply
    GruShift shift;
    int32_t output_min, output_max;
};

struct GruPack {
    int64_t bytes;
    int64_t panels;  // of 16 units
    GruRows x, h;
    GruTable update, reset, candidate;
    GruShift reset_shift, n_shift, u_shift, view_shift;
    int32_t is_wide;  // the products of two gates need 64 bits
};

// 0 where no vector kernel takes the cell.
int64_t gru_pack_bytes(const gru::Cell &cell);
void gru_pack_make(const gru::Cell &cell, void *memory);

// Room of a state of `batch` sequences, and how it is shared out (gru/run.hpp).
struct GruRoom {
    int64_t steps;                              // done together before the recurrence
    int64_t units, h_stride, x_stride;          // padded h; bytes of a row of codes
    int64_t h_at, view_at, x_at, ih_at, hh_at;  // within a sequence's room
    int64_t bytes;                              // of a sequence
};
GruRoom gru_room(const gru::Cell &cell, int64_t batch);
int64_t gru_room_bytes(const gru::Cell &cell, int64_t batch);

}  // namespace qk::cpu

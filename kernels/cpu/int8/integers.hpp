// The integers of int8 mode (docs/formats.md, "int8 activations"): x in blocks of int8 with a scale
// each, entries of weights as int8. Every kernel of the mode uses these few lines.
#pragma once
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

// A block: the columns that share a group and one run of 128 columns.
constexpr int64_t kInt8Block = 128;

// Entries are integers times a unit: exactly for affine and signed codes and E2M1, else rounded.
inline float int8_steps(const Format &format) {
    switch (format.id) {
        case QK_FORMAT_NF4: return 127;
        case QK_FORMAT_FP4_BNB: return 96;  // all but 1/192 are integers then
        case QK_FORMAT_FP4_E2M1: return 2;
        default: return 1;
    }
}

// To the nearest integer, ties to even, as the low byte of the bits; |value| <= 127.5.
inline int8_t int8_nearest(float value) { return int8_t(uint8_t(f32_bits(value + 0x1.8p23f))); }

// The integers of 16 codes; affine codes stand for themselves (the zero is taken off the sum).
struct Int8Entries {
    int8_t value[16];

    explicit Int8Entries(const Weight &w) {
        const float steps = int8_steps(*w.format);
        for (int code = 0; code < 16; ++code) {
            const bool table = w.format->kind == FormatKind::kLut4;
            value[code] = table ? int8_nearest(w.format->value(code) * steps) : int8_t(code);
        }
    }
};

struct Int8Scale {
    float scale;  // of the block times the unit of entries
    int32_t sum;  // of the block's integers
};

constexpr uint32_t kNotFinite = 0x7f800000;
constexpr float kInt8Smallest = 0x1p-119f;  // below it 127 / largest or its inverse is not normal

// x to integers. A block with a NaN or an infinity has the scale NaN, one of tiny numbers is zero.
inline Int8Scale int8_block(const float *__restrict x, int64_t count, float unit,
                            int8_t *__restrict to) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t magnitude = f32_bits(x[i]) & 0x7fffffffu;
        bits = magnitude > bits ? magnitude : bits;
    }
    const float largest = f32_from_bits(bits);
    if (bits >= kNotFinite || largest < kInt8Smallest) {
        memset(to, 0, size_t(count));
        return {bits >= kNotFinite ? __builtin_nanf("") : 0.0f, 0};
    }
    const float inverse = 127.0f / largest;
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        to[i] = int8_nearest(x[i] * inverse);
        sum += to[i];
    }
    return {largest / 127.0f * unit, sum};
}

// Batches, and the tiles of each instruction set.
constexpr int64_t kTaskRows = 32;  // of w, four blocks of the packed layout
constexpr int64_t kBatch = 64;     // rows of x whose sums a task keeps
constexpr int kTile = 8;           // rows of x side by side

// Of one group of a task's rows. Zeros are 0 where all have the same.
struct TileFactors {
    alignas(64) float scale[kTaskRows];
    alignas(64) int32_t zero[kTaskRows];
};

}  // namespace
}  // namespace qk::cpu

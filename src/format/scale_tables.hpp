// Tables that are built in: what the codes of 8-bit scales and of E4M3 weights stand for. A device
// has a copy in its own memory.
#pragma once
#include "format/codebook.hpp"

namespace qk {

struct alignas(16) ScaleTables {
    float e8m0[256];
    float e8m0_half[256];  // FP4_GGML's
    float e4m3[256];
    float i8[256];
    float one[4];      // a second scale that changes nothing
    float nothing[4];  // -0: a bias that changes nothing, +0 included
};

static constexpr ScaleTables make_scale_tables() {
    ScaleTables tables = {{}, {}, {}, {}, {1, 1, 1, 1}, {-0.0f, -0.0f, -0.0f, -0.0f}};
    for (int code = 0; code < 256; ++code) {
        tables.e8m0[code] = e8m0_value(code);
        tables.e8m0_half[code] = e8m0_half_value(code);
        tables.e4m3[code] = e4m3_value(code);
        tables.i8[code] = float(int8_t(code));
    }
    return tables;
}

extern const ScaleTables kScaleTables;  // in host memory

}  // namespace qk

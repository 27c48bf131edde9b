// The scale of every activation: as fine as its range allows, and no finer than the cell can shift.
// Host only.
#pragma once
#include <stdint.h>

#include "gru/calibrate/ranges.hpp"

namespace qk::gru {

struct BuildOptions {
    qk_gru_quant quant[QK_GRU_TENSOR_COUNT];
    int32_t calibration;
    uint32_t flags;  // QK_GRU_UNIFORM_TABLES and its kin
};

// Weights of rows of `count`, and how they are quantized.
struct Matrix {
    const float *values;
    int64_t rows, count;
    qk_gru_quant quant;
};

struct Scales {
    Exponent of[QK_GRU_TENSOR_COUNT];  // of activations only
    int32_t h_view_shift;

    // Of what W, or R, multiplies.
    int32_t x_shift() const { return of[QK_GRU_X].shift; }
    int32_t view_shift() const { return of[QK_GRU_H].shift - h_view_shift; }
};

Scales choose_scales(const Ranges &ranges, const BuildOptions &options, const Matrix &w,
                     const Matrix &r);

}  // namespace qk::gru

// A product to be judged: y = x . transpose(w) + bias against the same in double.
#pragma once
#include <cstdint>
#include <vector>

#include "qk.h"

enum class Mode { exact, bf16, int8 };  // of qk_linear: docs/formats.md

struct Product {
    qk_format format = QK_FORMAT_F32;  // of x and y
    qk_format weight_format = QK_FORMAT_F32;
    Mode mode = Mode::exact;
    int64_t m = 1, n = 0, k = 0, group = 0;
    std::vector<float> x, weights, bias, y;
    std::vector<float> scales;  // |scale| of every weight; where mode is not exact
};
struct Error {
    double worst = 0;     // largest |y - exact|
    double share = 0;     // largest part of its bound that an error takes
    double checksum = 0;  // sum of y
};

// x must be exact in bf16.
Error compare(const Product &product);

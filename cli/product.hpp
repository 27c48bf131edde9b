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
    std::vector<float> x, bias, y;
};
// Some rows of w, which are columns of y.
struct ProductRows {
    int64_t begin = 0, count = 0;
    const float *weights = nullptr;
    const float *scales = nullptr;  // |scale| of every weight; where mode is not exact
};
struct Error {
    double worst = 0;        // largest |y - exact|
    double share = 0;        // largest part of its bound that an error takes
    int64_t not_finite = 0;  // values of y that are NaN or infinite in double: no error is theirs
};

// Takes one row of x times these rows into the error. x must be exact in bf16.
void compare(const Product &product, const ProductRows &rows, int64_t row_of_x, Error *error);
double sum_of_y(const Product &product);

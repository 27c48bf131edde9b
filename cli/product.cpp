#include "product.hpp"

#include <algorithm>
#include <cmath>

namespace {

// n roundings in a row, relative to the sum of magnitudes.
double sums(double n) {
    const double unit = std::ldexp(1.0, -24);
    return n * unit / (1 - n * unit);
}

double bias_of(const Product &p, int64_t column) {
    return p.bias.empty() ? 0 : double(p.bias[static_cast<size_t>(column)]);
}

// |integer / steps - entry| of int8 mode, times the scale; affine and signed codes are exact.
double entry_error(qk_format format, double weight, double scale) {
    const double steps = format == QK_FORMAT_NF4        ? 127
                         : format == QK_FORMAT_FP4_BNB  ? 96
                         : format == QK_FORMAT_FP4_E2M1 ? 2
                                                        : 0;
    if (steps == 0 || scale == 0) return 0;
    const double entry = std::fabs(weight) / scale;
    return scale * std::fabs(std::nearbyint(entry * steps) / steps - entry) +
           std::ldexp(std::fabs(weight), -23);
}

// What int8 mode adds to the error, as docs/formats.md bounds it, with the row's largest |x| for
// that of each block.
double int8_error(const Product &p, const ProductRows &rows, const float *x, int64_t row) {
    const float *const w = rows.weights + row * p.k;
    const float *const scales = rows.scales + row * p.k;
    double largest = 0;
    for (int64_t i = 0; i < p.k; ++i) largest = std::max(largest, std::fabs(double(x[i])));
    const double x_error = largest * (1.0 / 254 + std::ldexp(1.0, -23));
    double rounding = 0, size = std::fabs(bias_of(p, rows.begin + row)), tiny = 0;
    for (int64_t i = 0; i < p.k; ++i) {
        const double weight = std::fabs(double(w[i])), from_x = std::fabs(double(x[i])) + x_error;
        const double error = entry_error(p.weight_format, w[i], scales[i]);
        rounding += weight * x_error + error * from_x;
        size += (weight + error) * from_x;
        tiny += std::ldexp(double(scales[i]) + 1, -126);
    }
    const int64_t blocks = p.k / 128 + p.k / p.group + 2;
    return rounding + sums(double(blocks + 8)) * size + tiny;
}

// What bf16 mode adds: weights are rounded, of fewer than 8 rows of x the entries of tables, while
// affine codes and zeros are multiplied apart.
double bf16_error(const Product &p, const ProductRows &rows, const float *x, int64_t row) {
    const float *const w = rows.weights + row * p.k;
    const float *const scales = rows.scales + row * p.k;
    const bool affine = p.weight_format == QK_FORMAT_U4_AFFINE;
    const double unit = affine && p.m < 8 ? 0 : std::ldexp(1.0, -8);
    double rounding = 0, size = std::fabs(bias_of(p, rows.begin + row)), scale = 0;
    for (int64_t i = 0; i < p.k; ++i) {
        const double from_x = std::fabs(double(x[i])), weight = std::fabs(double(w[i]));
        rounding += unit * weight * from_x;
        size += from_x * (affine && p.m < 8 ? 30.0 * double(scales[i]) : weight * (1 + unit));
        scale = std::max(scale, double(scales[i]));
    }
    return rounding + sums(double(p.k + 9)) * size +
           std::ldexp(2 * double(p.k) * (1 + 16 * scale), -126);
}

double mode_error(const Product &p, const ProductRows &rows, const float *x, int64_t row) {
    switch (p.mode) {
        case Mode::bf16: return bf16_error(p, rows, x, row);
        case Mode::int8: return int8_error(p, rows, x, row);
        default: return 0;
    }
}

}  // namespace

// What rounding may do: k products and k sums in f32, a weight rounded to x's type before it is
// multiplied, and y rounded to its own. Both relative to the sum of |x w|, but for the last. A mode
// adds to that what it does to x and the weights.
void compare(const Product &p, const ProductRows &rows, int64_t row_of_x, Error *error) {
    const double unit = p.format == QK_FORMAT_F32   ? std::ldexp(1.0, -24)
                        : p.format == QK_FORMAT_F16 ? std::ldexp(1.0, -11)
                                                    : std::ldexp(1.0, -8);
    const double smallest = p.format == QK_FORMAT_F16 ? std::ldexp(1.0, -25) : 0;
    const float *x = &p.x[static_cast<size_t>(row_of_x * p.k)];
    for (int64_t row = 0; row < rows.count; ++row) {
        const float *w = rows.weights + row * p.k;
        double exact = bias_of(p, rows.begin + row);
        double size = std::fabs(exact);
        for (int64_t i = 0; i < p.k; ++i) {
            exact += double(x[i]) * double(w[i]);
            size += std::fabs(double(x[i]) * double(w[i]));
        }
        const double y = p.y[static_cast<size_t>(row_of_x * p.n + rows.begin + row)];
        if (!std::isfinite(exact)) {
            ++error->not_finite;
            if (std::isfinite(y)) error->share = INFINITY;
            continue;
        }
        const double before = (sums(double(p.k + 8)) + unit) * size + mode_error(p, rows, x, row);
        const double bound = before * (1 + unit) + unit * std::fabs(exact) + smallest;
        const double difference = std::isnan(y) ? double(INFINITY) : std::fabs(y - exact);
        error->worst = std::max(error->worst, difference);
        error->share =
            std::max(error->share, difference <= bound ? difference / bound : double(INFINITY));
    }
}

double sum_of_y(const Product &p) {
    double sum = 0;
    for (const float y : p.y) sum += double(y);
    return sum;
}

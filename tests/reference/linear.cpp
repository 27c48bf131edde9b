// y = x . transpose(w) + bias: in double with its error bound, and in the documented f32 order.
#include <cmath>
#include <limits>

#include "reference.hpp"

namespace reference {
namespace {

constexpr int kLanes = 16;

// gamma(n) = n u / (1 - n u), u = 2^-24: the relative error of n roundings in a chain.
double gamma(double roundings) {
    const double u = std::ldexp(1.0, -24);
    return roundings * u / (1 - roundings * u);
}

}  // namespace

Bounded linear_exact(const Product &product) {
    const int64_t m = product.m, n = product.n, k = product.k;
    Bounded result = {std::vector<double>(size_t(m * n)), std::vector<double>(size_t(m * n))};
    for (int64_t row = 0; row < n; ++row) {
        const double bias = product.bias.empty() ? 0.0 : double(product.bias[size_t(row)]);
        // Rounding the weight, a lane's additions, the fold, the bias.
        const double chain = double(1 + (k + kLanes - 1) / kLanes + 4 + 1);
        for (int64_t i = 0; i < m; ++i) {
            double sum = bias, magnitudes = std::fabs(bias), of_x = 0;
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                const double scale = product.scales[size_t(product.groups.of_code[at])];
                const double term =
                    double(product.x[size_t(i * k + c)]) * double(product.entries[at]) * scale;
                sum += term;
                magnitudes += std::fabs(term);
                of_x += std::fabs(double(product.x[size_t(i * k + c)]));
            }
            const double underflow = std::ldexp(of_x + double(k), -149);
            const double of_double = double(k + 3) * std::ldexp(magnitudes, -52);
            result.value[size_t(i * n + row)] = sum;
            result.bound[size_t(i * n + row)] = gamma(chain) * magnitudes + underflow + of_double;
        }
    }
    return result;
}

std::vector<float> linear_ordered(const Product &product) {
    const int64_t m = product.m, n = product.n, k = product.k;
    std::vector<float> y(size_t(m * n));
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t row = 0; row < n; ++row) {
            float sum[kLanes] = {};
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                const float scale = product.scales[size_t(product.groups.of_code[at])];
                const float w = product.entries[at] * scale;
                sum[c % kLanes] = std::fma(product.x[size_t(i * k + c)], w, sum[c % kLanes]);
            }
            for (int distance = kLanes / 2; distance >= 1; distance /= 2) {
                for (int l = 0; l < distance; ++l) sum[l] = sum[l] + sum[l + distance];
            }
            y[size_t(i * n + row)] =
                product.bias.empty() ? sum[0] : sum[0] + product.bias[size_t(row)];
        }
    }
    return y;
}

bool within(Format format, uint32_t bits, double value, double bound) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double low = std::nextafter(value - bound, -infinity);
    const double high = std::nextafter(value + bound, infinity);
    const double got = decode(format, bits);
    if (format == Format::f32) return got >= double(float(low)) && got <= double(float(high));
    const auto round = [format](double number) {
        return double(decode(format, encode(format, float(number))));
    };
    return got >= round(low) && got <= round(high);
}

}  // namespace reference

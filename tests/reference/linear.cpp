// y = x . transpose(w) + bias: in double with its error bound, and in the documented f32 order.
#include <algorithm>
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

// The groups that row `row` passes through, and the most codes that one of them has there.
struct RowGroups {
    int64_t count = 0, longest = 0;
};

RowGroups groups_in_row(const Product &product, int64_t row) {
    RowGroups seen;
    int64_t length = 0;
    for (int64_t c = 0; c < product.k; ++c) {
        const int64_t *group = &product.groups.of_code[size_t(row * product.k + c)];
        const bool first = c == 0 || group[0] != group[-1];
        length = first ? 1 : length + 1;
        seen.count += first;
        seen.longest = std::max(seen.longest, length);
    }
    return seen;
}

}  // namespace

Bounded linear_exact(const Product &product) {
    const int64_t m = product.m, n = product.n, k = product.k;
    Bounded result = {std::vector<double>(size_t(m * n)), std::vector<double>(size_t(m * n))};
    for (int64_t row = 0; row < n; ++row) {
        const RowGroups seen = groups_in_row(product, row);
        const double bias = product.bias.empty() ? 0.0 : double(product.bias[size_t(row)]);
        const double chain = double((seen.longest + kLanes - 1) / kLanes + seen.count + 5);
        for (int64_t i = 0; i < m; ++i) {
            double sum = bias, magnitudes = std::fabs(bias), largest_scale = 0;
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                const double scale = product.scales[size_t(product.groups.of_code[at])];
                const double term =
                    double(product.x[size_t(i * k + c)]) * double(product.entries[at]) * scale;
                sum += term;
                magnitudes += std::fabs(term);
                largest_scale = std::max(largest_scale, std::fabs(scale));
            }
            const double underflow =
                std::ldexp(double(k) * largest_scale + double(kLanes * seen.count), -149);
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
            float sum[kLanes] = {}, part[kLanes] = {};
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                float &lane = part[c % kLanes];
                lane = std::fma(product.x[size_t(i * k + c)], product.entries[at], lane);
                const int64_t group = product.groups.of_code[at];
                if (c + 1 < k && product.groups.of_code[at + 1] == group) continue;
                for (int l = 0; l < kLanes; ++l) {
                    sum[l] = std::fma(part[l], product.scales[size_t(group)], sum[l]);
                    part[l] = 0.0f;
                }
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

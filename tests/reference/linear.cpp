// y = x . transpose(w) + bias: in double with its error bound, and in the documented f32 order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.hpp"

namespace reference {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kBlock = 128;
constexpr int64_t kLaneRows = 2;  // of x, at most, that are summed in lanes

// gamma(n) = n u / (1 - n u), u = 2^-24: the relative error of n roundings in a chain.
double gamma(double roundings) {
    const double u = std::ldexp(1.0, -24);
    return roundings * u / (1 - roundings * u);
}

// x of a block of columns as integers times 2^exponent.
struct Integers {
    bool fit = true;
    int exponent = 0;
    std::vector<int64_t> value;
};

Integers integers_of(const float *x, int64_t count) {
    Integers result;
    double largest = 0;
    for (int64_t c = 0; c < count; ++c) {
        if (!std::isfinite(x[c])) result.fit = false;
        largest = std::max(largest, std::fabs(double(x[c])));
    }
    if (largest != 0 && (largest < std::ldexp(1.0, -64) || largest >= std::ldexp(1.0, 64))) {
        result.fit = false;
    }
    if (!result.fit) return result;
    // 2^23 - 2^16 units hold every x, and half as many do not unless nothing smaller is left.
    const double limit = std::ldexp(1.0, 23) - std::ldexp(1.0, 16);
    result.exponent = -126 - 23;
    while (std::ldexp(largest, -result.exponent) >= limit) ++result.exponent;
    for (int64_t c = 0; c < count; ++c) {
        const double q = std::nearbyint(std::ldexp(double(x[c]), -result.exponent));
        result.value.push_back(int64_t(q));
    }
    return result;
}

bool small_groups(const Product &product) {
    const int64_t size = product.groups.size;
    return size == 16 || size == 32 || size == 64;
}

// Of row i of x, block after block; empty where floats are summed.
std::vector<Integers> integer_blocks(const Product &product, int64_t i) {
    const bool whole =
        product.groups.size % kBlock == 0 && product.entry_steps == 1 && product.minima.empty();
    if (product.groups.flat || product.m > kLaneRows || product.entry_steps == 0) return {};
    if (!whole && !small_groups(product)) return {};
    std::vector<Integers> blocks;
    for (int64_t c = 0; c < product.k; c += kBlock) {
        const int64_t count = std::min(kBlock, product.k - c);
        blocks.push_back(integers_of(&product.x[size_t(i * product.k + c)], count));
        if (!blocks.back().fit) return {};
    }
    return blocks;
}

float fold(float (&sum)[kLanes]) {
    for (int distance = kLanes / 2; distance >= 1; distance /= 2) {
        for (int l = 0; l < distance; ++l) sum[l] = sum[l] + sum[l + distance];
    }
    return sum[0];
}

float weight_of(const Product &product, int64_t row, int64_t c) {
    const size_t at = size_t(row * product.k + c);
    const size_t group = size_t(product.groups.of_code[at]);
    const float value = product.entries[at] * product.scales[group];
    return product.minima.empty() ? value : value - product.minima[group];
}

// One row of x or two, lane by lane.
float sum_lanes(const Product &product, int64_t i, int64_t row) {
    float sum[kLanes] = {};
    for (int64_t c = 0; c < product.k; ++c) {
        const float x = product.x[size_t(i * product.k + c)];
        sum[c % kLanes] = std::fma(x, weight_of(product, row, c), sum[c % kLanes]);
    }
    return fold(sum);
}

// More rows of x, block by block.
float sum_blocks(const Product &product, int64_t i, int64_t row) {
    float sum = 0;
    for (int64_t first = 0; first < product.k; first += kBlock) {
        float block = 0;
        for (int64_t c = first; c < std::min(first + kBlock, product.k); ++c) {
            const float x = product.x[size_t(i * product.k + c)];
            block = std::fma(x, weight_of(product, row, c), block);
        }
        sum = sum + block;
    }
    return sum;
}

// The lane of a block's column.
size_t integer_lane(const Product &product, size_t c) {
    return small_groups(product) ? c / 16 + c / 8 % 2 * 8 : c % kLanes;
}

// Minima times what the integers of a group's columns come to, every fourth group in one sum.
float sum_minima(const Product &product, const std::vector<Integers> &x, int64_t row) {
    float low[4] = {};
    for (int64_t first = 0, g = 0; first < product.k; first += product.groups.size, ++g) {
        const Integers &block = x[size_t(first / kBlock)];
        const size_t start = size_t(first % kBlock);
        const size_t end = std::min(start + size_t(product.groups.size), block.value.size());
        int64_t sum = 0;
        for (size_t c = start; c < end; ++c) sum += block.value[c];
        const float of_x = std::ldexp(float(sum), block.exponent);
        const size_t group = size_t(product.groups.of_code[size_t(row * product.k + first)]);
        low[g % 4] = std::fma(product.minima[group], of_x, low[g % 4]);
    }
    return (low[0] + low[2]) + (low[1] + low[3]);
}

// A row of x as integers, lane by lane of each block.
float sum_integers(const Product &product, const std::vector<Integers> &x, int64_t row) {
    float sum[kLanes] = {};
    for (size_t b = 0; b < x.size(); ++b) {
        const size_t start = b * size_t(kBlock), first = size_t(row * product.k) + start;
        // A block of zeros has no exponent; its unit is 0.
        bool zeros = true;
        int64_t dot[kLanes] = {};
        for (size_t c = 0; c < x[b].value.size(); ++c) {
            zeros = zeros && x[b].value[c] == 0;
            const double entry = double(product.entries[first + c]) * product.entry_steps;
            dot[integer_lane(product, c)] += int64_t(entry) * x[b].value[c];
        }
        const float unit = zeros ? 0.0f : std::ldexp(1.0f, x[b].exponent);
        float scale[kLanes] = {};  // of the group of every column that a lane could have
        bool there[kLanes] = {};
        for (size_t c = 0; c < size_t(kBlock); ++c) {
            const size_t size = size_t(product.groups.size), group = (start + c) / size * size;
            if (group >= size_t(product.k)) continue;
            const size_t of_group = size_t(row * product.k) + group;
            there[integer_lane(product, c)] = true;
            scale[integer_lane(product, c)] =
                product.scales[size_t(product.groups.of_code[of_group])];
        }
        for (int l = 0; l < kLanes; ++l) {
            const float factor = unit / float(product.entry_steps) * scale[l];
            if (there[l]) sum[l] = std::fma(float(dot[l]), factor, sum[l]);
        }
    }
    return product.minima.empty() ? fold(sum) : fold(sum) - sum_minima(product, x, row);
}

// What rounding x to integers and underflowing factors can change.
double integer_error(const Product &product, const std::vector<Integers> &x, int64_t row) {
    double error = 0;
    for (int64_t c = 0; c < product.k; ++c) {
        const double half = std::ldexp(1.0, x[size_t(c / kBlock)].exponent - 1);
        const size_t at = size_t(row * product.k + c), group = size_t(product.groups.of_code[at]);
        error += half * std::fabs(double(product.entries[at]) * double(product.scales[group]));
        if (!product.minima.empty()) error += half * std::fabs(double(product.minima[group]));
    }
    return error + std::ldexp(double(product.k), -123);
}

// Roundings that a term passes at most.
double roundings(const Product &product, bool integers) {
    const double blocks = double((product.k + kBlock - 1) / kBlock);
    const double groups = std::ceil(double(product.k) / double(product.groups.size));
    if (integers) return 1 + (product.minima.empty() ? blocks : groups) + 4 + 1;
    const double of_weight = product.minima.empty() ? 1 : 2;
    if (product.m > kLaneRows) {
        return of_weight + double(std::min(kBlock, product.k)) + blocks + 1;
    }
    return of_weight + double((product.k + kLanes - 1) / kLanes) + 4 + 1;
}

}  // namespace

Bounded linear_exact(const Product &product) {
    const int64_t m = product.m, n = product.n, k = product.k;
    Bounded result = {std::vector<double>(size_t(m * n)), std::vector<double>(size_t(m * n))};
    for (int64_t i = 0; i < m; ++i) {
        const std::vector<Integers> integers = integer_blocks(product, i);
        for (int64_t row = 0; row < n; ++row) {
            const double bias = product.bias.empty() ? 0.0 : double(product.bias[size_t(row)]);
            double sum = bias, magnitudes = std::fabs(bias), of_x = 0;
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                const size_t group = size_t(product.groups.of_code[at]);
                const double scaled = double(product.entries[at]) * double(product.scales[group]);
                const double minimum = product.minima.empty() ? 0.0 : product.minima[group];
                const double x = product.x[size_t(i * k + c)];
                sum += x * (scaled - minimum);
                magnitudes += std::fabs(x * scaled) + std::fabs(x * minimum);
                of_x += std::fabs(double(product.x[size_t(i * k + c)]));
            }
            double error = std::ldexp(of_x + double(k), -149);  // what underflows
            if (!integers.empty()) {
                error = integer_error(product, integers, row);
                magnitudes += error;  // of the rounded x
            }
            const double of_double = double(k + 3) * std::ldexp(magnitudes, -52);
            result.value[size_t(i * n + row)] = sum;
            result.bound[size_t(i * n + row)] =
                gamma(roundings(product, !integers.empty())) * magnitudes + error + of_double;
        }
    }
    return result;
}

std::vector<float> linear_ordered(const Product &product) {
    const int64_t m = product.m, n = product.n;
    std::vector<float> y(size_t(m * n));
    for (int64_t i = 0; i < m; ++i) {
        const std::vector<Integers> integers = integer_blocks(product, i);
        for (int64_t row = 0; row < n; ++row) {
            const float sum = !integers.empty() ? sum_integers(product, integers, row)
                              : m > kLaneRows   ? sum_blocks(product, i, row)
                                                : sum_lanes(product, i, row);
            y[size_t(i * n + row)] = product.bias.empty() ? sum : sum + product.bias[size_t(row)];
        }
    }
    return y;
}

std::vector<float> transposed_ordered(const Product &product) {
    std::vector<float> y;
    for (int64_t i = 0; i < product.m; ++i) {
        for (int64_t c = 0; c < product.k; ++c) {
            float sum = 0, block = 0;
            for (int64_t row = 0; row < product.n; ++row) {
                const float x = product.x[size_t(i * product.n + row)];
                block = std::fma(x, weight_of(product, row, c), block);
                if (row % kBlock != kBlock - 1 && row != product.n - 1) continue;
                sum = sum + block;
                block = 0;
            }
            y.push_back(product.bias.empty() ? sum : sum + product.bias[size_t(c)]);
        }
    }
    return y;
}

Bounded transposed_exact(const Product &product) {
    Bounded result;
    const double blocks = double((product.n + kBlock - 1) / kBlock);
    const double count = 2 + double(std::min(kBlock, product.n)) + blocks + 1;
    for (int64_t i = 0; i < product.m; ++i) {
        for (int64_t c = 0; c < product.k; ++c) {
            const double bias = product.bias.empty() ? 0.0 : double(product.bias[size_t(c)]);
            double sum = bias, magnitudes = std::fabs(bias), of_x = 0;
            for (int64_t row = 0; row < product.n; ++row) {
                const size_t at = size_t(row * product.k + c);
                const size_t group = size_t(product.groups.of_code[at]);
                const double scaled = double(product.entries[at]) * double(product.scales[group]);
                const double minimum = product.minima.empty() ? 0.0 : product.minima[group];
                const double x = product.x[size_t(i * product.n + row)];
                sum += x * (scaled - minimum);
                magnitudes += std::fabs(x * scaled) + std::fabs(x * minimum);
                of_x += std::fabs(x);
            }
            const double of_double = double(product.n + 3) * std::ldexp(magnitudes, -52);
            result.value.push_back(sum);
            result.bound.push_back(gamma(count) * magnitudes +
                                   std::ldexp(of_x + double(product.n), -149) + of_double);
        }
    }
    return result;
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

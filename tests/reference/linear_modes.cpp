// int8 activations and bf16 products, as docs/formats.md defines them ("Modes of qk_linear").
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference.hpp"

namespace reference {
namespace {

double gamma(double roundings) {
    const double u = std::ldexp(1.0, -24);
    return roundings * u / (1 - roundings * u);
}

// What a code counts for, in units of 1 / steps.
struct Integers {
    float steps;
    double error;  // largest |entry - integer / steps|
    static int zero_of(const Weight &weight, int64_t group) {
        if (weight.spec.float_min) return 0;
        return weight.spec.zeros ? weight.zeros[size_t(group)] : 8;
    }
    int of(const Weight &weight, int64_t code, int64_t group) const {
        static const int nf4[] = {-127, -88, -67, -50, -36, -23, -12, 0,
                                  10,   20,  31,  43,  56,  71,  92,  127};
        static const int fp4[] = {0, 0, 64, 96, 32, 48, 16, 24};
        static const int e2m1[] = {0, 1, 2, 3, 4, 6, 8, 12};
        const int half = int(code & 7), sign = code & 8 ? -1 : 1;
        switch (weight.spec.format) {
            case Format::nf4: return nf4[code];
            case Format::fp4_bnb: return sign * fp4[half];
            case Format::fp4_e2m1: return sign * e2m1[half];
            case Format::s8: return code < 128 ? int(code) : int(code) - 256;
            case Format::iq4_nl:
            case Format::fp4_ggml: return int(codebook(weight.spec.format)[size_t(code)]);
            default: return int(code) - zero_of(weight, group);
        }
    }
};

Integers integers_of(Format format) {
    if (format == Format::nf4) return {127, 0.5 / 127};
    if (format == Format::fp4_bnb) return {96, 0.5 / 96 * (1 + std::ldexp(1.0, -20))};
    return {format == Format::fp4_e2m1 ? 2.0f : 1.0f, 0};
}

// The blocks of a row: columns of one group in one run of 128, or 16 where groups straddle rows.
struct Block {
    int64_t first, last;
};
std::vector<Block> blocks_of(const Product &product) {
    std::vector<Block> blocks;
    for (int64_t c = 0; c < product.k; ++c) {
        const int64_t *group = &product.groups.of_code[size_t(c)];
        const auto starts = [&] {
            return product.groups.flat ? c % 16 == 0 : group[0] != group[-1];
        };
        if (c % 128 == 0 || starts()) blocks.push_back({c, c});
        blocks.back().last = c + 1;
    }
    return blocks;
}

// One block of a row of x.
struct Activations {
    std::vector<int> q;
    float scale;
    float largest;
};
Activations quantize_x(const float *x, Block block) {
    Activations result;
    result.largest = 0;
    bool finite = true;
    for (int64_t c = block.first; c < block.last; ++c) {
        finite = finite && std::isfinite(x[c]);
        result.largest = std::max(result.largest, std::fabs(x[c]));
    }
    const bool tiny = result.largest < std::ldexp(1.0f, -119);
    const float inverse = 127.0f / result.largest;
    for (int64_t c = block.first; c < block.last; ++c) {
        const float scaled = x[c] * inverse;
        result.q.push_back(!finite || tiny ? 0 : int(std::nearbyint(scaled)));
    }
    result.scale = !finite ? std::numeric_limits<float>::quiet_NaN()
                   : tiny  ? 0.0f
                           : result.largest / 127.0f;
    return result;
}

}  // namespace

std::vector<float> linear_int8(const Weight &weight, const Product &product) {
    const int64_t m = product.m, n = product.n, k = product.k;
    const Integers integers = integers_of(weight.spec.format);
    const float unit = 1.0f / integers.steps;
    const bool lowers = !product.minima.empty();
    std::vector<float> y(size_t(m * n)), low(size_t(m * n));
    for (int64_t i = 0; i < m; ++i) {
        for (const Block &block : blocks_of(product)) {
            const Activations x = quantize_x(&product.x[size_t(i * k)], block);
            const float x_scale = x.scale * unit;
            const float all = x.scale * float(std::accumulate(x.q.begin(), x.q.end(), 0));
            for (int64_t row = 0; row < n; ++row) {
                int64_t sum = 0;
                const int64_t group = product.groups.of_code[size_t(row * k + block.first)];
                for (int64_t c = block.first; c < block.last; ++c) {
                    const int64_t code = weight.codes[size_t(row * k + c)];
                    sum += integers.of(weight, code, group) * x.q[size_t(c - block.first)];
                }
                float &acc = y[size_t(i * n + row)];
                const float factor = x_scale * product.scales[size_t(group)];
                acc = std::fma(float(sum), factor, acc);
                if (!lowers) continue;
                float &off = low[size_t(i * n + row)];
                off = std::fma(product.minima[size_t(group)], all, off);
            }
        }
        for (int64_t row = 0; row < n && lowers; ++row) {
            y[size_t(i * n + row)] = y[size_t(i * n + row)] - low[size_t(i * n + row)];
        }
        for (int64_t row = 0; row < n && !product.bias.empty(); ++row) {
            y[size_t(i * n + row)] = y[size_t(i * n + row)] + product.bias[size_t(row)];
        }
    }
    return y;
}

Bounded linear_int8_bound(const Weight &weight, const Product &product) {
    Bounded result = linear_exact(product);
    const int64_t n = product.n, k = product.k;
    const double off = integers_of(weight.spec.format).error;
    const std::vector<Block> blocks = blocks_of(product);
    for (int64_t i = 0; i < product.m; ++i) {
        for (int64_t row = 0; row < n; ++row) {
            double error = 0, size = 0;
            for (const Block &block : blocks) {
                const float *x = &product.x[size_t(i * k)];
                const double largest = quantize_x(x, block).largest;
                const bool tiny = largest < std::ldexp(1.0, -119);
                const double step = tiny ? largest : largest / 127 * (0.5 + std::ldexp(1.0, -16));
                const int64_t group = product.groups.of_code[size_t(row * k + block.first)];
                const double scale = std::fabs(product.scales[size_t(group)]);
                const double minimum =
                    product.minima.empty() ? 0 : std::fabs(product.minima[size_t(group)]);
                for (int64_t c = block.first; c < block.last; ++c) {
                    const double entry = std::fabs(product.entries[size_t(row * k + c)]);
                    const double magnitude = std::fabs(x[c]);
                    error += (scale * entry + minimum) * step + scale * off * (magnitude + step);
                    size += (scale * (entry + off) + minimum) * (magnitude + step);
                }
                // Factors that underflow, times the sum.
                error += std::ldexp(scale + minimum + 1, product.minima.empty() ? -126 : -125);
            }
            const double bias = product.bias.empty() ? 0 : std::fabs(product.bias[size_t(row)]);
            result.bound[size_t(i * n + row)] =
                error + gamma(double(blocks.size()) + 6) * (size + bias);
        }
    }
    return result;
}

namespace {

float round_bf16(float value) { return decode_bf16(encode_bf16(value)); }

Product with_rounded_x(const Product &product) {
    Product rounded = product;
    std::transform(product.x.begin(), product.x.end(), rounded.x.begin(), round_bf16);
    return rounded;
}

}  // namespace

Bounded linear_bf16(const Weight &weight, const Product &product) {
    Product rounded = with_rounded_x(product);
    const bool table = weight.spec.format != Format::u4;
    if (table) {
        std::transform(product.entries.begin(), product.entries.end(), rounded.entries.begin(),
                       round_bf16);
    }
    Bounded result = linear_exact(rounded);
    const int64_t n = product.n, k = product.k;
    for (int64_t i = 0; i < product.m; ++i) {
        for (int64_t row = 0; row < n; ++row) {
            // Affine codes are multiplied as they are and the zero's share is taken off the sum.
            double size = product.bias.empty() ? 0 : std::fabs(product.bias[size_t(row)]);
            double largest = 0;
            for (int64_t c = 0; c < k; ++c) {
                const size_t at = size_t(row * k + c);
                const int64_t group = product.groups.of_code[at];
                const double scale = std::fabs(product.scales[size_t(group)]);
                const double zero = table ? 0 : weight.spec.zeros ? weight.zeros[size_t(group)] : 8;
                const double entry =
                    table ? std::fabs(rounded.entries[at]) : double(weight.codes[at]) + zero;
                size += std::fabs(rounded.x[size_t(i * k + c)]) * entry * scale;
                largest = std::max(largest, scale);
            }
            // Machines may take numbers below 2^-126 for zero, as factors, terms and sums.
            const double flushed = double(2 * k) * std::ldexp(1 + 16 * largest, -126);
            result.bound[size_t(i * n + row)] = gamma(double(k + 8)) * size + flushed;
        }
    }
    return result;
}

Bounded linear_bf16_batch(const Product &product) {
    Product rounded = with_rounded_x(product);
    for (size_t at = 0; at < product.entries.size(); ++at) {
        const size_t group = size_t(product.groups.of_code[at]);
        const float weight = product.entries[at] * product.scales[group];
        rounded.entries[at] = round_bf16(weight);
    }
    std::fill(rounded.scales.begin(), rounded.scales.end(), 1.0f);
    Bounded result = linear_exact(rounded);
    const int64_t n = product.n, k = product.k;
    for (int64_t i = 0; i < product.m; ++i) {
        for (int64_t row = 0; row < n; ++row) {
            double size = product.bias.empty() ? 0 : std::fabs(product.bias[size_t(row)]);
            double factors = 0;
            for (int64_t c = 0; c < k; ++c) {
                const double x = std::fabs(rounded.x[size_t(i * k + c)]);
                const double w = std::fabs(rounded.entries[size_t(row * k + c)]);
                size += x * w;
                factors += x + w;
            }
            // Machines may take numbers below 2^-126 for zero, as factors, terms and sums.
            const double flushed = std::ldexp(factors + double(2 * k), -126);
            result.bound[size_t(i * n + row)] = gamma(130 + double(k) / 128) * size + flushed;
        }
    }
    return result;
}

}  // namespace reference

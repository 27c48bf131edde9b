// The float GRU that calibration watches: products by panels and gates by lanes, for vectors of any
// width. The includer defines FloatLanes and IntLanes, kFloatFeature, and how many panels and rows
// of x share a tile's registers.
//
// Every sum is one chain in blocks of 128 columns, product and sum rounded apart, as no instruction
// set has to have a fused product. So its bits depend on nothing but its row of weights and of x.
#pragma once
#include <string.h>

#include "cpu/split.hpp"

#define QK_UNROLL_TILE _Pragma("GCC unroll 8")  // or a tile lives in memory

namespace qk::cpu {
namespace {

constexpr int64_t kFloatLanes = sizeof(FloatLanes) / sizeof(float);
constexpr int64_t kPanelVectors = kFloatPanel / kFloatLanes;
constexpr int64_t kChain = 128;
constexpr int64_t kWorthThreads = 1 << 17;  // products; below, waking workers takes longer

inline FloatLanes lanes_at(const float *from) {
    FloatLanes lanes;
    memcpy(&lanes, from, sizeof(lanes));
    return lanes;
}

// `rows` rows of x by `panels` panels of weights.
template <int64_t panels, int64_t rows>
void product_tile(const FloatProductArgs &a, int64_t panel, int64_t row) {
    constexpr int64_t vectors = panels * kPanelVectors;
    const float *const w = a.panels + panel * a.count * kFloatPanel;
    const float *const x = a.x + row * a.count;
    FloatLanes sum[rows][vectors] = {};
    for (int64_t first = 0; first < a.count; first += kChain) {
        FloatLanes block[rows][vectors] = {};
        const int64_t last = min64(first + kChain, a.count);
        for (int64_t k = first; k < last; ++k) {
            FloatLanes weights[vectors];
            QK_UNROLL_TILE for (int64_t v = 0; v < vectors; ++v) {
                weights[v] = lanes_at(w + (v / kPanelVectors * a.count + k) * kFloatPanel +
                                      v % kPanelVectors * kFloatLanes);
            }
            QK_UNROLL_TILE for (int64_t i = 0; i < rows; ++i) {
                const float value = x[i * a.count + k];
                QK_UNROLL_TILE for (int64_t v = 0; v < vectors; ++v) {
                    block[i][v] += weights[v] * value;
                }
            }
        }
        QK_UNROLL_TILE for (int64_t i = 0; i < rows; ++i) {
            QK_UNROLL_TILE for (int64_t v = 0; v < vectors; ++v) sum[i][v] += block[i][v];
        }
    }
    QK_UNROLL_TILE for (int64_t i = 0; i < rows; ++i) {
        QK_UNROLL_TILE for (int64_t v = 0; v < vectors; ++v) {
            const int64_t at = panel * kFloatPanel + v * kFloatLanes;
            const int64_t count = min64(kFloatLanes, a.outputs - at);
            const FloatLanes y = sum[i][v] + lanes_at(a.bias + at);
            if (count > 0) memcpy(a.y + (row + i) * a.outputs + at, &y, size_t(count) * 4);
        }
    }
}

template <int64_t panels, int64_t rows>
int64_t product_rows(const FloatProductArgs &a, int64_t panel, int64_t row) {
    for (; row + rows <= a.rows; row += rows) product_tile<panels, rows>(a, panel, row);
    return row;
}

// Ranges of panels: many at a time for one row of x, fewer for rows that share what is loaded.
void product_range(const FloatProductArgs &a, int64_t panel, int64_t last) {
    if (a.rows >= kTallRows)
        for (; panel + kTallPanels <= last; panel += kTallPanels)
            product_rows<kTallPanels, 1>(a, panel,
                                         product_rows<kTallPanels, kTallRows>(a, panel, 0));
    else
        for (; panel + kWidePanels <= last; panel += kWidePanels)
            product_rows<kWidePanels, 1>(a, panel, 0);
    for (; panel < last; ++panel)
        product_rows<1, 1>(a, panel, product_rows<1, kTallRows>(a, panel, 0));
}

bool can_run_product(const FloatProductArgs &, const Device &device) {
    return has(device, kFloatFeature);
}

Status run_product(const FloatProductArgs &a, const Launch &launch) {
    const int64_t panels = ceil_div(a.outputs, kFloatPanel);
    if (a.rows * a.count * a.outputs < kWorthThreads)
        product_range(a, 0, panels);
    else
        parallel_ranges(launch.parallel, panels, kWidePanels,
                        [&](int64_t first, int64_t last) { product_range(a, first, last); });
    return QK_OK;
}

constexpr float kToInteger = 12582912.0f;  // at this magnitude f32 holds integers alone

// e^x for |x| <= 80: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial for e^r.
inline FloatLanes exponential(FloatLanes x) {
    const FloatLanes shifted = x * 1.44269504f + kToInteger;
    const FloatLanes n = shifted - kToInteger;
    const FloatLanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    FloatLanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    IntLanes bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits - 0x4b400000 + 127) << 23;  // less kToInteger's own bits: n
    FloatLanes power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

inline FloatLanes within(FloatLanes x, float reach) {
    const FloatLanes high = FloatLanes{} + reach;
    x = x > high ? high : x;
    return x < -high ? -high : x;
}

inline FloatLanes sigmoid(FloatLanes x) { return 1.0f / (1.0f + exponential(-within(x, 80.0f))); }

// Near 0 a polynomial, which keeps the relative error of small values.
inline FloatLanes tangent(FloatLanes x) {
    const FloatLanes far = 1.0f - 2.0f / (exponential(within(x, 20.0f) * 2.0f) + 1.0f);
    const FloatLanes z = x * x;
    FloatLanes p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const FloatLanes near = p * z * x + x;
    return z < FloatLanes{} + 0.390625f ? near : far;
}

inline FloatLanes some_lanes(const float *from, int64_t count) {
    if (count >= kFloatLanes) return lanes_at(from);
    FloatLanes lanes = {};
    memcpy(&lanes, from, size_t(count) * 4);
    return lanes;
}

inline void store_lanes(float *to, FloatLanes lanes, int64_t count) {
    if (count >= kFloatLanes)
        memcpy(to, &lanes, sizeof(lanes));
    else
        memcpy(to, &lanes, size_t(count) * 4);
}

// Units from `unit` on of one sequence: as many as a vector holds, or as are left.
void gates_of(const FloatGatesArgs &a, int64_t sequence, int64_t unit) {
    const int64_t n = a.units, count = n - unit, at = sequence * n + unit;
    const float *const ih = a.ih + sequence * 3 * n + unit;
    const float *const hh = a.hh + sequence * 3 * n + unit;
    const FloatLanes u_in = some_lanes(ih, count) + some_lanes(hh, count);
    const FloatLanes r_in = some_lanes(ih + n, count) + some_lanes(hh + n, count);
    const FloatLanes u = sigmoid(u_in), r = sigmoid(r_in);
    const FloatLanes n_in = some_lanes(ih + 2 * n, count) + r * some_lanes(hh + 2 * n, count);
    const FloatLanes candidate = tangent(n_in);
    store_lanes(a.u_in + at, u_in, count);
    store_lanes(a.r_in + at, r_in, count);
    store_lanes(a.n_in + at, n_in, count);
    store_lanes(a.u + at, u, count);
    store_lanes(a.r + at, r, count);
    store_lanes(a.n + at, candidate, count);
    store_lanes(a.h_next + at, u * some_lanes(a.h + at, count) + (1.0f - u) * candidate, count);
}

bool can_run_gates(const FloatGatesArgs &, const Device &device) {
    return has(device, kFloatFeature);
}

Status run_gates(const FloatGatesArgs &a, const Launch &launch) {
    const int64_t vectors = ceil_div(a.units, kFloatLanes);
    const auto body = [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) gates_of(a, i / vectors, i % vectors * kFloatLanes);
    };
    // A unit's gates take as long as some 32 products.
    if (a.batch * a.units * 32 < kWorthThreads)
        body(0, a.batch * vectors);
    else
        parallel_ranges(launch.parallel, a.batch * vectors, 16, body);
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu

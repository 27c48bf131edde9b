// The float GRU that calibration watches: products by panels and gates by lanes, in vectors as wide
// as the instruction set's.
//
// Every sum is one chain in blocks of 128 columns, product and sum rounded separately, since not
// every instruction set has a fused product. So its bits depend only on its rows of weights and x.
#pragma once
#include <string.h>

#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"

#define QK_UNROLL_TILE _Pragma("GCC unroll 8")  // or a tile lives in memory

namespace qk::cpu {

// Panels and rows of x whose sums fit the registers: of one row, of several that share the weights.
struct FloatGruTile {
    int64_t wide_panels, tall_panels, tall_rows;
};
constexpr FloatGruTile float_gru_tile(int vector_bytes) {
    switch (vector_bytes) {
        case 64: return {8, 4, 4};
        case 32: return {4, 1, 4};
        default: return {2, 1, 2};
    }
}

// Of an instruction set, kFeature and kVectorBytes alone are needed.
template <class Isa>
struct FloatGru {
    typedef float Floats __attribute__((vector_size(Isa::kVectorBytes)));
    typedef int32_t Bits __attribute__((vector_size(Isa::kVectorBytes)));

    static constexpr FloatGruTile kTile = float_gru_tile(Isa::kVectorBytes);
    static constexpr int64_t kLanes = Isa::kVectorBytes / 4, kPanelVectors = kFloatPanel / kLanes;
    static constexpr int64_t kChain = 128;
    // Products; fewer do not repay waking an executor (qk's own threads have a least task as well).
    static constexpr int64_t kWorthThreads = 1 << 17;

    static Floats load(const float *from) {
        Floats lanes;
        memcpy(&lanes, from, sizeof(lanes));
        return lanes;
    }

    // `rows` rows of x by `panels` panels of weights.
    template <int64_t panels, int64_t rows>
    static void product_tile(const FloatProductArgs &a, int64_t panel, int64_t row) {
        constexpr int64_t vectors = panels * kPanelVectors;
        const float *const w = a.panels + panel * a.count * kFloatPanel;
        const float *const x = a.x + row * a.count;
        Floats sum[rows][vectors] = {};
        for (int64_t first = 0; first < a.count; first += kChain) {
            Floats block[rows][vectors] = {};
            const int64_t last = min64(first + kChain, a.count);
            for (int64_t k = first; k < last; ++k) {
                Floats weights[vectors];
                QK_UNROLL_TILE for (int64_t v = 0; v < vectors; ++v) {
                    weights[v] = load(w + (v / kPanelVectors * a.count + k) * kFloatPanel +
                                      v % kPanelVectors * kLanes);
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
                const int64_t at = panel * kFloatPanel + v * kLanes;
                const int64_t count = min64(kLanes, a.outputs - at);
                const Floats y = sum[i][v] + load(a.bias + at);
                if (count > 0) memcpy(a.y + (row + i) * a.outputs + at, &y, size_t(count) * 4);
            }
        }
    }

    template <int64_t panels, int64_t rows>
    static int64_t product_rows(const FloatProductArgs &a, int64_t panel, int64_t row) {
        for (; row + rows <= a.rows; row += rows) product_tile<panels, rows>(a, panel, row);
        return row;
    }

    // Ranges of panels: many at a time for one row of x, fewer for rows that share what is loaded.
    QK_NOINLINE static void product_range(const FloatProductArgs &a, int64_t panel, int64_t last) {
        if (a.rows >= kTile.tall_rows)
            for (; panel + kTile.tall_panels <= last; panel += kTile.tall_panels)
                product_rows<kTile.tall_panels, 1>(
                    a, panel, product_rows<kTile.tall_panels, kTile.tall_rows>(a, panel, 0));
        else
            for (; panel + kTile.wide_panels <= last; panel += kTile.wide_panels)
                product_rows<kTile.wide_panels, 1>(a, panel, 0);
        for (; panel < last; ++panel)
            product_rows<1, 1>(a, panel, product_rows<1, kTile.tall_rows>(a, panel, 0));
    }

    static bool can_run_product(const FloatProductArgs &, const Device &device) {
        return has(device, Isa::kFeature);
    }

    static Status run_product(const FloatProductArgs &a, const Launch &launch) {
        const int64_t panels = ceil_div(a.outputs, kFloatPanel);
        if (a.rows * a.count * a.outputs < kWorthThreads)
            product_range(a, 0, panels);
        else
            parallel_ranges(launch.parallel, panels, kTile.wide_panels,
                            a.rows * a.count * kFloatPanel,
                            [&](int64_t first, int64_t last) { product_range(a, first, last); });
        return QK_OK;
    }

    static constexpr float kToInteger = 12582912.0f;  // at this magnitude f32 holds integers alone

    // e^x for |x| <= 80: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial for e^r.
    static Floats exponential(Floats x) {
        const Floats shifted = x * 1.44269504f + kToInteger;
        const Floats n = shifted - kToInteger;
        const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
        Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * (r * r) + r + 1.0f;
        Bits bits;
        memcpy(&bits, &shifted, sizeof(bits));
        bits = (bits - 0x4b400000 + 127) << 23;  // less kToInteger's own bits: n
        Floats power;
        memcpy(&power, &bits, sizeof(power));
        return p * power;
    }

    static Floats within(Floats x, float reach) {
        const Floats high = Floats{} + reach;
        x = x > high ? high : x;
        return x < -high ? -high : x;
    }

    static Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-within(x, 80.0f))); }

    // Near 0 a polynomial, which keeps the relative error of small values.
    static Floats tangent(Floats x) {
        const Floats far = 1.0f - 2.0f / (exponential(within(x, 20.0f) * 2.0f) + 1.0f);
        const Floats z = x * x;
        Floats p = z * -5.70498872745e-3f + 2.06390887954e-2f;
        p = p * z - 5.37397155531e-2f;
        p = p * z + 1.33314422036e-1f;
        p = p * z - 3.33332819422e-1f;
        const Floats near = p * z * x + x;
        return z < Floats{} + 0.390625f ? near : far;
    }

    static Floats load_some(const float *from, int64_t count) {
        if (count >= kLanes) return load(from);
        Floats lanes = {};
        memcpy(&lanes, from, size_t(count) * 4);
        return lanes;
    }

    static void store_some(float *to, Floats lanes, int64_t count) {
        if (count >= kLanes)
            memcpy(to, &lanes, sizeof(lanes));
        else
            memcpy(to, &lanes, size_t(count) * 4);
    }

    // Units from `unit` on of one sequence: as many as a vector holds, or as are left.
    static void write_gates(const FloatGatesArgs &a, int64_t sequence, int64_t unit) {
        const int64_t n = a.units, count = n - unit, at = sequence * n + unit;
        const float *const ih = a.ih + sequence * 3 * n + unit;
        const float *const hh = a.hh + sequence * 3 * n + unit;
        const Floats u_in = load_some(ih, count) + load_some(hh, count);
        const Floats r_in = load_some(ih + n, count) + load_some(hh + n, count);
        const Floats u = sigmoid(u_in), r = sigmoid(r_in);
        const Floats n_in = load_some(ih + 2 * n, count) + r * load_some(hh + 2 * n, count);
        const Floats candidate = tangent(n_in);
        store_some(a.u_in + at, u_in, count);
        store_some(a.r_in + at, r_in, count);
        store_some(a.n_in + at, n_in, count);
        store_some(a.u + at, u, count);
        store_some(a.r + at, r, count);
        store_some(a.n + at, candidate, count);
        store_some(a.h_next + at, u * load_some(a.h + at, count) + (1.0f - u) * candidate, count);
    }

    static bool can_run_gates(const FloatGatesArgs &, const Device &device) {
        return has(device, Isa::kFeature);
    }

    static Status run_gates(const FloatGatesArgs &a, const Launch &launch) {
        const int64_t vectors = ceil_div(a.units, kLanes);
        const auto body = [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i)
                write_gates(a, i / vectors, i % vectors * kLanes);
        };
        constexpr int64_t kGate = 32;  // products that take as long as a unit's gates
        if (a.batch * a.units * kGate < kWorthThreads)
            body(0, a.batch * vectors);
        else
            parallel_ranges(launch.parallel, a.batch * vectors, 16, kLanes * kGate, body);
        return QK_OK;
    }
};

template <class Isa>
constexpr Kernel<FloatProductArgs> float_product_kernel(const char *name) {
    return {name, FloatGru<Isa>::can_run_product, nullptr, FloatGru<Isa>::run_product};
}
template <class Isa>
constexpr Kernel<FloatGatesArgs> float_gates_kernel(const char *name) {
    return {name, FloatGru<Isa>::can_run_gates, nullptr, FloatGru<Isa>::run_gates};
}

}  // namespace qk::cpu

// What joins the gate and up rows of an expert (docs/formats.md, "Products with experts"): in
// double from additions, products and quotients alone, so that every machine gives the same bits.
#pragma once
#include <stdint.h>
#include <string.h>

#include "base/hd.hpp"
#include "qk.h"

namespace qk {
namespace {

// 1 / i!, rounded to double.
struct Reciprocals {
    double of[14];
    QK_HD constexpr Reciprocals() : of{1} {
        double factorial = 1;
        for (int i = 1; i < 14; ++i) of[i] = 1 / (factorial *= i);
    }
};

// e^x: 2^n times a polynomial of what is left, |r| <= ln(2) / 2. Of numbers beyond 700 it is e^700,
// of infinities 0 and infinity, so that -inf times its sigmoid is NaN, as PyTorch has it.
QK_HD inline double exp_of(double x) {
    constexpr Reciprocals c;
    if (x - x != 0) return x < 0 ? 0 : x;
    x = x > 700 ? 700 : x < -700 ? -700 : x;
    const double n = double(int64_t(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5)));
    const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double sum = c.of[13];
    for (int i = 12; i >= 0; --i) sum = c.of[i] + r * sum;
    const uint64_t bits = uint64_t(int64_t(n) + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof(power));
    return sum * power;
}

QK_HD inline double sigmoid(double x) { return 1 / (1 + exp_of(-x)); }

// 1 - erf of its magnitude is t * e^(a polynomial of t - x * x), to 1.2e-7 of itself (Chebyshev's
// fit in Press et al., Numerical Recipes, section 6.2).
QK_HD inline double erf_of(double x) {
    constexpr double c[] = {-1.26551223, 1.00002368,  0.37409196, 0.09678418,  -0.18628806,
                            0.27886807,  -1.13520398, 1.48851587, -0.82215223, 0.17087277};
    const double magnitude = x < 0 ? -x : x, t = 1 / (1 + 0.5 * magnitude);
    double sum = c[9];
    for (int i = 8; i >= 0; --i) sum = c[i] + t * sum;
    const double rest = t * exp_of(sum - magnitude * magnitude);
    return x < 0 ? rest - 1 : 1 - rest;
}

QK_HD inline double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;  // NaN stays
}

// act(gate) * up, rounded once.
QK_HD inline float join(qk_activation activation, float limit, float alpha, float gate_f,
                        float up_f) {
    const double gate = gate_f, up = up_f;
    switch (activation) {
        case QK_ACTIVATION_SILU: return float(gate * sigmoid(gate) * up);
        case QK_ACTIVATION_GELU:
            return float(0.5 * gate * (1 + erf_of(gate * 0.7071067811865476)) * up);
        case QK_ACTIVATION_GELU_TANH: {
            // 1 + tanh(u) is twice the sigmoid of 2 u.
            const double u = 0.7978845608028654 * (gate + 0.044715 * (gate * gate * gate));
            return float(gate * sigmoid(2 * u) * up);
        }
        default: {
            const double low = gate > limit ? double(limit) : gate;
            const double near = clamp(up, -double(limit), double(limit));
            return float(low * sigmoid(double(alpha) * low) * (near + 1));
        }
    }
}

}  // namespace
}  // namespace qk

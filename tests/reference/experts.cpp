// Products with experts, in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.hpp"

namespace reference {
namespace {

constexpr double kUnit = 0x1p-24;

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

double joined(const Mixture &mixture, double gate, double up) {
    switch (mixture.activation) {
        case Activation::silu: return gate * sigmoid(gate) * up;
        case Activation::gelu: return gate * (1 + std::erf(gate / std::sqrt(2.0))) / 2 * up;
        case Activation::gelu_tanh: {
            const double cubic = gate + 0.044715 * gate * gate * gate;
            return gate * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * cubic)) / 2 * up;
        }
        default: {
            const double limit = mixture.limit, low = std::min(gate, limit);
            const double near = std::max(-limit, std::min(up, limit));
            return low * sigmoid(mixture.alpha * low) * (near + 1);
        }
    }
}

// Errors of both sides: gates have slopes below 1.2, and erf is that of docs/formats.md.
double joined_bound(const Mixture &mixture, double gate, double up, double gate_bound,
                    double up_bound, double value) {
    const double size = std::fabs(up) + up_bound + 1;
    return 1.2 * gate_bound * size + (std::fabs(gate) + gate_bound) * (up_bound + 1e-13 * size) +
           (mixture.activation == Activation::gelu ? 1.3e-7 * std::fabs(gate) * size : 0) +
           2 * kUnit * std::fabs(value) + 1e-44;
}

}  // namespace

Bounded joined_rows(const Mixture &mixture, const Bounded &z, int64_t n) {
    if (mixture.activation == Activation::none) return z;
    Bounded out;
    for (size_t row = 0; row < z.value.size(); row += size_t(n)) {
        for (int64_t i = 0; i < n / 2; ++i) {
            const size_t gate = row + size_t(mixture.interleaved ? 2 * i : i);
            const size_t up = row + size_t(mixture.interleaved ? 2 * i + 1 : n / 2 + i);
            const double value = joined(mixture, z.value[gate], z.value[up]);
            out.value.push_back(value);
            out.bound.push_back(joined_bound(mixture, z.value[gate], z.value[up], z.bound[gate],
                                             z.bound[up], value));
        }
    }
    return out;
}

std::vector<float> summed_rows(const Mixture &mixture, const std::vector<float> &z, int64_t n) {
    std::vector<float> y;
    for (int64_t token = 0; token < mixture.tokens; ++token) {
        for (int64_t i = 0; i < n; ++i) {
            float sum = 0;
            for (int64_t j = 0; j < mixture.slots; ++j) {
                const int64_t slot = token * mixture.slots + j;
                if (mixture.expert[size_t(slot)] < 0) continue;
                const float weight = mixture.weight.empty() ? 1 : mixture.weight[size_t(slot)];
                sum = std::fma(weight, z[size_t(slot * n + i)], sum);
            }
            y.push_back(sum);
        }
    }
    return y;
}

Bounded summed_rows(const Mixture &mixture, const Bounded &z, int64_t n) {
    Bounded y;
    for (int64_t at = 0; at < mixture.tokens * n; ++at) {
        double sum = 0, bound = 0, size = 0;
        for (int64_t j = 0; j < mixture.slots; ++j) {
            const size_t slot = size_t(at / n * mixture.slots + j);
            if (mixture.expert[slot] < 0) continue;
            const double weight = mixture.weight.empty() ? 1 : double(mixture.weight[slot]);
            const size_t from = slot * size_t(n) + size_t(at % n);
            sum += weight * z.value[from];
            bound += std::fabs(weight) * z.bound[from];
            size += std::fabs(weight) * (std::fabs(z.value[from]) + z.bound[from]);
        }
        y.value.push_back(sum);
        y.bound.push_back(bound + double(mixture.slots + 1) * kUnit * size + 1e-44);
    }
    return y;
}

}  // namespace reference

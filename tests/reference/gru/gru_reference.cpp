#include "gru_reference.hpp"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

std::int64_t to_type(int bits, bool is_unsigned, std::int64_t value) {
    std::int64_t low = is_unsigned ? 0 : -(std::int64_t{1} << (bits - 1));
    std::int64_t high = (std::int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
    return std::min(std::max(value, low), high);
}

std::int64_t to_type(const GruModel &m, int which, std::int64_t value) {
    return to_type(m.bits[which], m.is_unsigned[which], value);
}

}  // namespace

std::int64_t divide_by_power(std::int64_t x, int n) {
    if (n <= 0) return x * (std::int64_t{1} << -n);
    if (n > 62) return 0;  // every |x| here is below half of 2^63
    std::int64_t divisor = std::int64_t{1} << n;
    std::int64_t quotient = x / divisor, rest = x % divisor;
    if (rest < 0) {
        quotient -= 1;
        rest += divisor;
    }
    std::int64_t missing = divisor - rest;
    if (rest > missing || (rest == missing && quotient % 2 != 0)) quotient += 1;
    return quotient;
}

std::int64_t gate_value(const GruModel &model, const GruTable &table, int in, int out, bool is_tanh,
                        std::int64_t sum) {
    std::int64_t code = to_type(model, in, sum);
    std::int64_t from_zero = code - model.zero[in];
    std::int64_t value = 0;
    if (!table.uniform) {
        int count = static_cast<int>(table.slope.size()), segment = count - 1;
        for (int i = 0; i < count; ++i) {
            if (code < table.threshold[i]) {
                segment = i;
                break;
            }
        }
        value = divide_by_power(table.slope[segment] * from_zero, table.shift) +
                table.intercept[segment];
    } else {
        std::int64_t width = std::int64_t{1} << table.width_log2;
        std::int64_t position = from_zero - table.first;
        position = std::max<std::int64_t>(
            0, std::min(position, static_cast<std::int64_t>(table.slope.size()) * width - 1));
        std::int64_t segment = position / width, offset = position % width;
        value =
            divide_by_power(table.slope[segment] * offset + table.intercept[segment], table.shift);
    }
    value = to_type(model, out, value);
    if (model.clamp_to_type) return value;
    double one = std::ldexp(1.0, model.shift[out]);
    double real_code = static_cast<double>(value - model.zero[out]);
    if (real_code > one) value = model.zero[out] + static_cast<std::int64_t>(one);
    double floor_code = is_tanh ? -one : 0.0;
    if (real_code < floor_code) value = model.zero[out] + static_cast<std::int64_t>(floor_code);
    return value;
}

GruTrace run_gru(const GruModel &m, const std::vector<std::int64_t> &x,
                 std::vector<std::int64_t> &h, int t, int b) {
    int c = m.c, n = m.h, view = m.view_shift;
    const int *s = m.shift;
    const std::int64_t *z = m.zero;
    GruTrace trace;
    for (int step = 0; step < t * b; ++step) {
        int sequence = step % b;
        const std::int64_t *xs = x.data() + std::int64_t{step} * c;
        std::vector<std::int64_t> old(h.begin() + std::int64_t{sequence} * n,
                                      h.begin() + std::int64_t{sequence + 1} * n);
        std::vector<std::int64_t> ih(3 * n), hh(3 * n), gates(4 * n);
        for (int row = 0; row < 3 * n; ++row) {
            std::int64_t sum_x = 0, sum_h = 0;
            for (int k = 0; k < c; ++k) sum_x += m.w[std::int64_t{row} * c + k] * (xs[k] - z[X]);
            for (int k = 0; k < n; ++k) {
                std::int64_t seen = to_type(m.bits[H] - view, false, divide_by_power(old[k], view));
                sum_h += m.r[std::int64_t{row} * n + k] * (seen - z[H] / (1 << view));
            }
            int scale_x = m.w_shift[row] + s[X];
            int scale_h = m.r_shift[row] + s[H] - view;
            sum_x += divide_by_power(m.bw[row], m.bw_shift[row] - scale_x);
            sum_h += divide_by_power(m.br[row], m.br_shift[row] - scale_h);
            ih[row] = to_type(m, IH, divide_by_power(sum_x, scale_x - s[IH]) + z[IH]);
            hh[row] = to_type(m, HH, divide_by_power(sum_h, scale_h - s[HH]) + z[HH]);
        }
        for (int j = 0; j < n; ++j) {
            auto from_ih = [&](int gate, int in) {
                return divide_by_power(ih[gate * n + j] - z[IH], s[IH] - s[in]);
            };
            auto from_hh = [&](int gate, int in) {
                return divide_by_power(hh[gate * n + j] - z[HH], s[HH] - s[in]);
            };
            std::int64_t u = gate_value(m, m.update, U_IN, U_OUT, false,
                                        from_ih(0, U_IN) + from_hh(0, U_IN) + z[U_IN]);
            std::int64_t r = gate_value(m, m.reset, R_IN, R_OUT, false,
                                        from_ih(1, R_IN) + from_hh(1, R_IN) + z[R_IN]);
            std::int64_t product = (r - z[R_OUT]) * (hh[2 * n + j] - z[HH]);
            std::int64_t reset_hidden = divide_by_power(product, s[R_OUT] + s[HH] - s[N_IN]);
            std::int64_t nn = gate_value(m, m.candidate, N_IN, N_OUT, true,
                                         from_ih(2, N_IN) + reset_hidden + z[N_IN]);
            std::int64_t aligned = divide_by_power(nn - z[N_OUT], s[N_OUT] - s[H]) + z[H];
            std::int64_t one = (std::int64_t{1} << s[U_OUT]) + z[U_OUT];
            std::int64_t combined = (u - z[U_OUT]) * (old[j] - z[H]) + (one - u) * (aligned - z[H]);
            h[std::int64_t{sequence} * n + j] =
                to_type(m, H, divide_by_power(combined, s[U_OUT]) + z[H]);
            gates[j] = u, gates[n + j] = r, gates[2 * n + j] = nn, gates[3 * n + j] = hh[2 * n + j];
        }
        trace.ih.insert(trace.ih.end(), ih.begin(), ih.end());
        trace.gates.insert(trace.gates.end(), gates.begin(), gates.end());
        auto now = h.begin() + std::int64_t{sequence} * n;
        trace.h.insert(trace.h.end(), now, now + n);
    }
    return trace;
}

std::vector<double> run_gru_float(int c, int n, const std::vector<double> &w,
                                  const std::vector<double> &r, const std::vector<double> &bw,
                                  const std::vector<double> &br, const std::vector<double> &x,
                                  std::vector<double> &state, int t, int b) {
    auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
    std::vector<double> result;
    for (int step = 0; step < t * b; ++step) {
        double *h = state.data() + std::int64_t{step % b} * n;
        const double *xs = x.data() + std::int64_t{step} * c;
        std::vector<double> ih(bw), hh(br);
        for (int row = 0; row < 3 * n; ++row) {
            for (int k = 0; k < c; ++k) ih[row] += w[std::int64_t{row} * c + k] * xs[k];
            for (int k = 0; k < n; ++k) hh[row] += r[std::int64_t{row} * n + k] * h[k];
        }
        for (int j = 0; j < n; ++j) {
            double u = sigmoid(ih[j] + hh[j]), reset = sigmoid(ih[n + j] + hh[n + j]);
            double candidate = std::tanh(ih[2 * n + j] + reset * hh[2 * n + j]);
            h[j] = (1 - u) * candidate + u * h[j];
            result.push_back(h[j]);
        }
    }
    return result;
}

}  // namespace reference

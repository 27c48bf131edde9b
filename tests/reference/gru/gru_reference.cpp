#include "gru_reference.hpp"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

using Wide = __int128;

std::int64_t weight_at(const void *codes, const qk_gru_quant &quant, std::int64_t index) {
    if (quant.bits <= 8) return static_cast<const std::int8_t *>(codes)[index];
    return static_cast<const std::int16_t *>(codes)[index];
}

std::int64_t lowest(const qk_gru_quant &quant) {
    return quant.is_unsigned ? 0 : -(std::int64_t{1} << (quant.bits - 1));
}

std::int64_t highest(const qk_gru_quant &quant) {
    return (std::int64_t{1} << (quant.is_unsigned ? quant.bits : quant.bits - 1)) - 1;
}

std::int64_t to_type(const qk_gru_quant &quant, std::int64_t value) {
    return std::min(std::max(value, lowest(quant)), highest(quant));
}

}  // namespace

std::int64_t divide_by_power(std::int64_t x, int n) {
    if (n <= 0) return static_cast<std::int64_t>(Wide{x} * (Wide{1} << -n));
    Wide divisor = Wide{1} << n;
    Wide quotient = x / divisor, rest = x % divisor;
    if (rest < 0) {
        quotient -= 1;
        rest += divisor;
    }
    if (2 * rest > divisor || (2 * rest == divisor && quotient % 2 != 0)) quotient += 1;
    return static_cast<std::int64_t>(quotient);
}

std::int64_t gate_value(const qk_gru_model &model, const qk_gru_table &table, int in, int out,
                        bool is_tanh, std::int64_t sum) {
    std::int64_t code = to_type(model.quant[in], sum);
    std::int64_t from_zero = code - model.zero_point[in];
    std::int64_t value = 0;
    if (table.kind == QK_GRU_TABLE_KNOTS) {
        int segment = table.count - 1;
        for (int i = 0; i < table.count; ++i) {
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
        position = std::max<std::int64_t>(0, std::min(position, table.count * width - 1));
        std::int64_t segment = position / width, offset = position % width;
        value =
            divide_by_power(table.slope[segment] * offset + table.intercept[segment], table.shift);
    }
    value = to_type(model.quant[out], value);
    if (model.flags & QK_GRU_MODEL_CLAMP_TYPE) return value;
    double one = std::ldexp(1.0, model.shift[out]);
    double real_code = static_cast<double>(value - model.zero_point[out]);
    if (real_code > one) value = model.zero_point[out] + static_cast<std::int64_t>(one);
    double floor_code = is_tanh ? -one : 0.0;
    if (real_code < floor_code)
        value = model.zero_point[out] + static_cast<std::int64_t>(floor_code);
    return value;
}

GruTrace run_gru(const qk_gru_model &m, const std::vector<std::int64_t> &x,
                 std::vector<std::int64_t> &h, int t, int b) {
    int c = m.input_size, n = m.hidden_size;
    const std::int32_t *s = m.shift, *z = m.zero_point;
    int view = m.h_view_shift;
    qk_gru_quant view_quant = m.quant[QK_GRU_H];
    view_quant.bits -= view;
    GruTrace trace;
    for (int step = 0; step < t * b; ++step) {
        int sequence = step % b;
        const std::int64_t *xs = x.data() + std::int64_t{step} * c;
        std::vector<std::int64_t> old(h.begin() + std::int64_t{sequence} * n,
                                      h.begin() + std::int64_t{sequence + 1} * n);
        std::vector<std::int64_t> ih(3 * n), hh(3 * n), gates(4 * n);
        for (int row = 0; row < 3 * n; ++row) {
            Wide sum_x = 0, sum_h = 0;
            for (int k = 0; k < c; ++k)
                sum_x += Wide{weight_at(m.w, m.quant[QK_GRU_W], std::int64_t{row} * c + k)} *
                         (xs[k] - z[QK_GRU_X]);
            for (int k = 0; k < n; ++k) {
                std::int64_t seen = to_type(view_quant, divide_by_power(old[k], view));
                sum_h += Wide{weight_at(m.r, m.quant[QK_GRU_R], std::int64_t{row} * n + k)} *
                         (seen - z[QK_GRU_H] / (1 << view));
            }
            int scale_x = m.w_shift[row] + s[QK_GRU_X];
            int scale_h = m.r_shift[row] + s[QK_GRU_H] - view;
            sum_x += divide_by_power(m.bw[row], m.bw_shift[row] - scale_x);
            sum_h += divide_by_power(m.br[row], m.br_shift[row] - scale_h);
            std::int64_t code_x = static_cast<std::int64_t>(sum_x);
            std::int64_t code_h = static_cast<std::int64_t>(sum_h);
            ih[row] = to_type(m.quant[QK_GRU_IH],
                              divide_by_power(code_x, scale_x - s[QK_GRU_IH]) + z[QK_GRU_IH]);
            hh[row] = to_type(m.quant[QK_GRU_HH],
                              divide_by_power(code_h, scale_h - s[QK_GRU_HH]) + z[QK_GRU_HH]);
        }
        for (int j = 0; j < n; ++j) {
            auto from_ih = [&](int gate, int in) {
                return divide_by_power(ih[gate * n + j] - z[QK_GRU_IH], s[QK_GRU_IH] - s[in]);
            };
            auto from_hh = [&](int gate, int in) {
                return divide_by_power(hh[gate * n + j] - z[QK_GRU_HH], s[QK_GRU_HH] - s[in]);
            };
            std::int64_t u = gate_value(
                m, m.update, QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT, false,
                from_ih(0, QK_GRU_UPDATE_IN) + from_hh(0, QK_GRU_UPDATE_IN) + z[QK_GRU_UPDATE_IN]);
            std::int64_t r = gate_value(
                m, m.reset, QK_GRU_RESET_IN, QK_GRU_RESET_OUT, false,
                from_ih(1, QK_GRU_RESET_IN) + from_hh(1, QK_GRU_RESET_IN) + z[QK_GRU_RESET_IN]);
            std::int64_t product = (r - z[QK_GRU_RESET_OUT]) * (hh[2 * n + j] - z[QK_GRU_HH]);
            std::int64_t reset_hidden =
                divide_by_power(product, s[QK_GRU_RESET_OUT] + s[QK_GRU_HH] - s[QK_GRU_NEW_IN]);
            std::int64_t nn =
                gate_value(m, m.candidate, QK_GRU_NEW_IN, QK_GRU_NEW_OUT, true,
                           from_ih(2, QK_GRU_NEW_IN) + reset_hidden + z[QK_GRU_NEW_IN]);
            std::int64_t aligned =
                divide_by_power(nn - z[QK_GRU_NEW_OUT], s[QK_GRU_NEW_OUT] - s[QK_GRU_H]) +
                z[QK_GRU_H];
            std::int64_t one = (std::int64_t{1} << s[QK_GRU_UPDATE_OUT]) + z[QK_GRU_UPDATE_OUT];
            std::int64_t combined = (u - z[QK_GRU_UPDATE_OUT]) * (old[j] - z[QK_GRU_H]) +
                                    (one - u) * (aligned - z[QK_GRU_H]);
            h[std::int64_t{sequence} * n + j] = to_type(
                m.quant[QK_GRU_H], divide_by_power(combined, s[QK_GRU_UPDATE_OUT]) + z[QK_GRU_H]);
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

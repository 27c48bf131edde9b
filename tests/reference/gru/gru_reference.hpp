// The quantized GRU as docs/gru.md describes it, one scalar at a time, in wide integers: no shared
// line with the library, no attempt at speed.
#pragma once
#include <cstdint>
#include <vector>

namespace reference {

enum GruTensor { X, H, W, R, BW, BR, IH, HH, U_IN, U_OUT, R_IN, R_OUT, N_IN, N_OUT, GRU_TENSORS };

struct GruTable {
    bool uniform = false;  // else between knots
    int shift = 0, width_log2 = 0, first = 0;
    std::vector<std::int64_t> threshold, slope, intercept;
};

struct GruModel {
    int c = 0, h = 0, view_shift = 0;
    bool clamp_to_type = false;
    int bits[GRU_TENSORS] = {}, shift[GRU_TENSORS] = {};
    bool is_unsigned[GRU_TENSORS] = {};
    std::int64_t zero[GRU_TENSORS] = {};
    std::vector<std::int64_t> w, r, bw, br;  // gates u, r, n
    std::vector<int> w_shift, r_shift, bw_shift, br_shift;
    GruTable update, reset, candidate;
};

// x / 2^n rounded to nearest, ties to even; n <= 0 multiplies.
std::int64_t divide_by_power(std::int64_t x, int n);

struct GruTrace {
    std::vector<std::int64_t> ih;     // [t*b, 3h]
    std::vector<std::int64_t> h;      // [t*b, h]
    std::vector<std::int64_t> gates;  // [t*b, 4h] u, r, n, hh_n
};

// x [t,b,c] codes; h [b,h] codes, replaced by the last state.
GruTrace run_gru(const GruModel &model, const std::vector<std::int64_t> &x,
                 std::vector<std::int64_t> &h, int t, int b);

// One gate: input code (not yet clamped) to output code.
std::int64_t gate_value(const GruModel &model, const GruTable &table, int in, int out, bool is_tanh,
                        std::int64_t sum);

// Float GRU with reset after the product, in double; weights in the order u, r, n; x [t,b,c].
// Returns h [t,b,h]; state [b,h] is updated.
std::vector<double> run_gru_float(int c, int h, const std::vector<double> &w,
                                  const std::vector<double> &r, const std::vector<double> &bw,
                                  const std::vector<double> &br, const std::vector<double> &x,
                                  std::vector<double> &state, int t, int b);

}  // namespace reference

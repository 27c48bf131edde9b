#include "gru/calibrate/float_gru.hpp"

#include <math.h>

namespace qk::gru {

FloatTrace float_trace(float *block, int32_t hidden_size) {
    int64_t h = hidden_size;
    return {block,         block + 3 * h,  block + 6 * h,  block + 7 * h, block + 8 * h,
            block + 9 * h, block + 10 * h, block + 11 * h, block + 12 * h};
}

namespace {

void linear(const float *weights, const float *bias, const float *vector, int64_t rows,
            int64_t count, float *out) {
    for (int64_t row = 0; row < rows; ++row) {
        float sum = 0.0f;
        for (int64_t k = 0; k < count; ++k) sum += weights[row * count + k] * vector[k];
        out[row] = sum + bias[row];
    }
}

float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

}  // namespace

void float_step(const FloatGru &gru, const float *x, const float *h, const FloatTrace &trace) {
    int64_t n = gru.hidden_size;
    linear(gru.w, gru.bw, x, 3 * n, gru.input_size, trace.ih);
    linear(gru.r, gru.br, h, 3 * n, n, trace.hh);
    for (int64_t j = 0; j < n; ++j) {
        trace.u_in[j] = trace.ih[j] + trace.hh[j];
        trace.r_in[j] = trace.ih[n + j] + trace.hh[n + j];
        trace.u[j] = sigmoid(trace.u_in[j]);
        trace.r[j] = sigmoid(trace.r_in[j]);
        trace.n_in[j] = trace.ih[2 * n + j] + trace.r[j] * trace.hh[2 * n + j];
        trace.n[j] = tanhf(trace.n_in[j]);
        trace.h[j] = trace.u[j] * h[j] + (1.0f - trace.u[j]) * trace.n[j];
    }
}

}  // namespace qk::gru

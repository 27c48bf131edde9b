// The float GRU that calibration watches: reset after the product, f32, gates in the order u, r,
// n. Host only; the quantized run never comes here.
#pragma once
#include <stdint.h>

namespace qk::gru {

struct FloatGru {
    int32_t input_size, hidden_size;
    const float *w;   // [3h,c]
    const float *r;   // [3h,h]
    const float *bw;  // [3h]
    const float *br;  // [3h]
};

// Everything one step of one sequence computes, 13h floats in one block.
struct FloatTrace {
    float *ih, *hh;             // [3h]
    float *u, *r, *n;           // [h] gate outputs
    float *u_in, *r_in, *n_in;  // [h]
    float *h;                   // [h] the new state
};
static inline int64_t float_trace_floats(int32_t hidden_size) {
    return int64_t{13} * hidden_size;
}
FloatTrace float_trace(float *block, int32_t hidden_size);

// h [h] old state; the new one is left in trace.h.
void float_step(const FloatGru &gru, const float *x, const float *h, const FloatTrace &trace);

}  // namespace qk::gru

// The float GRU that calibration watches: reset after the product, f32, gates in the order u, r,
// n. Host only: the quantized GRU never uses it. Kernels of the CPU backend compute it.
#pragma once
#include <stdint.h>

namespace qk::gru {

inline constexpr int64_t kFloatPanel = 16;  // rows of weights side by side

struct FloatGru {
    int32_t input_size, hidden_size;
    const float *w;         // [3h,c]
    const float *r;         // [3h,h]
    const float *bw;        // [3h], and zeros to a whole panel
    const float *br;        // the same
    const float *w_panels;  // W and R in panels
    const float *r_panels;
};

// Everything one step of a batch computes.
struct FloatTrace {
    float *ih, *hh;             // [b,3h]
    float *u, *r, *n;           // [b,h] gate outputs
    float *u_in, *r_in, *n_in;  // [b,h]
    float *h;                   // [b,h] the new states
};

static inline int64_t panels_rows(int64_t rows) {
    return (rows + kFloatPanel - 1) / kFloatPanel * kFloatPanel;
}
// [rows,count] to panels_rows(rows) * count floats, which hold zeros.
void fill_panels(const float *weights, int64_t rows, int64_t count, float *panels);

}  // namespace qk::gru

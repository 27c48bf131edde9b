// What y may be: the documented bits where there are any, the exact result and its bound elsewhere.
#pragma once
#include "soak/soak.hpp"

namespace soak {

struct Problem {
    const Case *c;
    const Contents *w;
    std::vector<float> x, bias, weight;  // as stored; the weight dequantized to f32
    Bytes x_bytes, bias_bytes;
    bool tight = false;  // CUDA: no path that rounds weights to x's type runs
};

Problem problem(const Case &c, const Contents &w, Random *random);
// y [m, n] of `p` on the CPU or on CUDA.
void expect_on_cpu(const Problem &p, const Bytes &y);
void expect_on_cuda(const Problem &p, const Bytes &y);

}  // namespace soak

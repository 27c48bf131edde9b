// One quantized GRU on the CPU and on the GPU, and the comparison of all outputs.
#pragma once
#include <memory>

#include "cuda/harness.hpp"
#include "gru/owned_model.hpp"
#include "object/gru.hpp"

namespace cuda_test {

struct GruCase {
    int steps = 5, batch = 2;
    bool x_is_float = false, y_is_float = false, with_gates = false;
    size_t offset = 0;  // of x, y and gates past an aligned address
};

struct GruRun {  // all that a run leaves behind
    std::vector<uint8_t> y, gates;
    std::vector<float> h;
};

class GruPair {
  public:
    GruPair();
    ~GruPair();
    GruPair(const GruPair &) = delete;

    // False where the model is refused, by both sides with the same status.
    bool create(const qk_gru_model &model);
    // A random GRU of the preset, frozen on the CPU and loaded on both sides.
    void create(qk_gru_preset preset, uint32_t flags, int c, int h, Rng &rng);

    // Random x and first h; every kernel of the CUDA list that takes the case gives the CPU's
    // bits. Returns how many kernels ran.
    int check(const GruCase &c, Rng &rng);
    // The same against codes of y that are known, from the first h of zeros.
    int check_codes(const GruCase &c, const std::vector<uint8_t> &x, const std::vector<uint8_t> &y);

    qk_context *cpu = nullptr, *cuda = nullptr;
    qk_gru *cpu_gru = nullptr, *cuda_gru = nullptr;

  private:
    void clear();
    qk::GruArgs arguments(const GruCase &c) const;
    GruRun run_cpu(const GruCase &c, std::vector<uint8_t> x, const std::vector<float> &h);
    GruRun run_cuda(const qk::Kernel<qk::GruArgs> &kernel, qk::GruArgs args, const GruCase &c,
                    const std::vector<uint8_t> &x, const std::vector<float> &h);
};

// x of a GRU: f32 that reach beyond its range, or codes that may exceed its bits.
std::vector<uint8_t> random_x(const qk::gru::Cell &cell, bool is_float, int64_t count, Rng &rng);

qk_tensor *wrap_rows(qk_context *context, qk_format format, int64_t t, int64_t b, int64_t columns,
                     void *data);

}  // namespace cuda_test

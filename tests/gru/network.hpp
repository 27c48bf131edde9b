// Trained networks from outside the repository, and a GRU's life through the public header.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qk.h"

namespace gru_test {

struct Network {  // PyTorch's order r, z, n
    int c = 0, h = 0;
    int calib_b = 1, test_b = 1;
    std::vector<float> w, r, bw, br;
    std::vector<float> calib, test;  // [t,b,c]
};

std::string data_folder();
std::vector<float> read_f32(const std::string &path);
std::vector<std::int32_t> read_i32(const std::string &path);

// False where the data is missing. direction: "" or "_reverse".
bool load_ulunas(const std::string &name, int batch, Network &network,
                 const std::string &direction = "");

// Rows of gates from r, z, n to u, r, n, in double.
std::vector<double> in_model_order(const std::vector<float> &rows);

struct Setting {
    qk_gru_preset preset = QK_GRU_W8A8;
    std::uint32_t flags = 0;
    qk_gru_calibration calibration = QK_GRU_CALIBRATE_MIN_MAX;
};

// A context, a GRU and whatever tensors a test needs; every failure is a test failure with the
// library's own sentence.
class Session {
  public:
    explicit Session(int threads = 1);
    ~Session();
    Session(const Session &) = delete;

    qk_gru *create(const Network &network, const Setting &setting);
    void calibrate(qk_gru *gru, const std::vector<float> &x, int batch, int c,
                   const float *h0 = nullptr);
    void freeze(qk_gru *gru);
    qk_gru *frozen(const Network &network, const Setting &setting);
    // x [t,b,c] f32 through one call of `chunk` steps each; h [t,b,h] f32.
    std::vector<float> run(const qk_gru *gru, qk_gru_state *state, const std::vector<float> &x,
                           int batch, int chunk);
    // From a fresh state, all at once.
    std::vector<float> run(const qk_gru *gru, const std::vector<float> &x, int batch);
    qk_gru_state *state(const qk_gru *gru, int batch);
    qk_tensor *wrap(void *data, qk_format format, std::int64_t t, std::int64_t b,
                    std::int64_t columns);
    std::vector<char> save(const qk_gru *gru);

    qk_context *context = nullptr;

  private:
    std::vector<qk_gru *> grus_;
    std::vector<qk_gru_state *> states_;
};

// Signal over error in dB, against a double GRU.
double sqnr_db(const Network &network, const std::vector<float> &h);

}  // namespace gru_test

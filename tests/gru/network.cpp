#include "network.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "reference/gru/gru_reference.hpp"

namespace gru_test {

std::string data_folder() {
    const char *set = std::getenv("QK_SHARED_DATA");
    return set != nullptr ? set : QK_SHARED_DATA_DEFAULT;
}

namespace {

template <class T>
std::vector<T> read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char *>(values.data()));
    return values;
}

}  // namespace

std::vector<float> read_f32(const std::string &path) { return read_file<float>(path); }
std::vector<std::int32_t> read_i32(const std::string &path) {
    return read_file<std::int32_t>(path);
}

bool load_ulunas(const std::string &name, int batch, Network &network,
                 const std::string &direction) {
    std::string folder = data_folder() + "/ulunas/", weights = folder + "w_" + name;
    std::string cell = "_l0" + direction + ".f32";
    network.w = read_f32(weights + "_weight_ih" + cell);
    network.r = read_f32(weights + "_weight_hh" + cell);
    network.bw = read_f32(weights + "_bias_ih" + cell);
    network.br = read_f32(weights + "_bias_hh" + cell);
    if (network.br.empty()) return false;
    network.h = static_cast<int>(network.br.size() / 3);
    network.c = static_cast<int>(network.w.size() / network.br.size());
    network.calib = read_f32(folder + "io_" + name + "_calib_x.f32");
    network.test = read_f32(folder + "io_" + name + "_test_x.f32");
    network.calib_b = network.test_b = batch;
    return true;
}

std::vector<double> in_model_order(const std::vector<float> &rows) {
    std::size_t gate = rows.size() / 3;
    std::vector<double> result(rows.begin() + gate, rows.begin() + 2 * gate);
    result.insert(result.end(), rows.begin(), rows.begin() + gate);
    result.insert(result.end(), rows.begin() + 2 * gate, rows.end());
    return result;
}

Session::Session(int threads) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = threads;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
}

Session::~Session() {
    for (qk_gru_state *state : states_) qk_gru_state_destroy(state);
    for (qk_gru *gru : grus_) qk_gru_destroy(gru);
    qk_context_destroy(context);
}

qk_gru *Session::create(const Network &network, const Setting &setting) {
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = network.c;
    config.hidden_size = network.h;
    config.preset = setting.preset;
    config.flags = setting.flags;
    config.calibration = setting.calibration;
    qk_gru *gru = nullptr;
    EXPECT_EQ(qk_gru_create(context, &config, network.w.data(), network.r.data(), network.bw.data(),
                            network.br.data(), &gru),
              QK_OK)
        << qk_context_error(context);
    grus_.push_back(gru);
    return gru;
}

qk_tensor *Session::wrap(void *data, qk_format format, std::int64_t t, std::int64_t b,
                         std::int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 3;
    desc.shape[0] = t, desc.shape[1] = b, desc.shape[2] = columns;
    void *planes[] = {data};
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, 1, &tensor), QK_OK)
        << qk_context_error(context);
    return tensor;
}

void Session::calibrate(qk_gru *gru, const std::vector<float> &x, int batch, int c,
                        const float *h0) {
    std::vector<float> copy(x);
    qk_tensor *tensor =
        wrap(copy.data(), QK_FORMAT_F32, static_cast<std::int64_t>(x.size()) / batch / c, batch, c);
    EXPECT_EQ(qk_gru_calibrate(context, gru, tensor, h0), QK_OK) << qk_context_error(context);
    qk_tensor_destroy(tensor);
}

void Session::freeze(qk_gru *gru) {
    EXPECT_EQ(qk_gru_freeze(context, gru), QK_OK) << qk_context_error(context);
}

qk_gru *Session::frozen(const Network &network, const Setting &setting) {
    qk_gru *gru = create(network, setting);
    calibrate(gru, network.calib, network.calib_b, network.c);
    freeze(gru);
    return gru;
}

qk_gru_state *Session::state(const qk_gru *gru, int batch) {
    qk_gru_state *state = nullptr;
    EXPECT_EQ(qk_gru_state_create(context, gru, batch, &state), QK_OK) << qk_context_error(context);
    states_.push_back(state);
    return state;
}

std::vector<float> Session::run(const qk_gru *gru, qk_gru_state *state, const std::vector<float> &x,
                                int batch, int chunk) {
    qk_gru_model model;
    model.struct_size = sizeof(model);
    EXPECT_EQ(qk_gru_describe(gru, &model), QK_OK);
    int c = model.input_size, h = model.hidden_size;
    int steps = static_cast<int>(x.size()) / (batch * c);
    std::vector<float> input(x), result(static_cast<std::size_t>(steps) * batch * h);
    for (int first = 0; first < steps; first += chunk) {
        int count = std::min(chunk, steps - first);
        qk_tensor *tx =
            wrap(input.data() + std::int64_t{first} * batch * c, QK_FORMAT_F32, count, batch, c);
        qk_tensor *ty =
            wrap(result.data() + std::int64_t{first} * batch * h, QK_FORMAT_F32, count, batch, h);
        EXPECT_EQ(qk_gru_run(context, gru, state, tx, ty), QK_OK) << qk_context_error(context);
        qk_tensor_destroy(tx);
        qk_tensor_destroy(ty);
    }
    return result;
}

std::vector<float> Session::run(const qk_gru *gru, const std::vector<float> &x, int batch) {
    return run(gru, state(gru, batch), x, batch, 1 << 30);
}

std::vector<char> Session::save(const qk_gru *gru) {
    std::size_t bytes = 0;
    EXPECT_EQ(qk_gru_save(gru, nullptr, 0, &bytes), QK_OK);
    std::vector<char> file(bytes);
    EXPECT_EQ(qk_gru_save(gru, file.data(), bytes, &bytes), QK_OK);
    return file;
}

double sqnr_db(const Network &network, const std::vector<float> &h) {
    std::vector<double> x(network.test.begin(), network.test.end());
    std::vector<double> state(static_cast<std::size_t>(network.test_b) * network.h);
    int steps = static_cast<int>(network.test.size()) / (network.test_b * network.c);
    std::vector<double> golden = reference::run_gru_float(
        network.c, network.h, in_model_order(network.w), in_model_order(network.r),
        in_model_order(network.bw), in_model_order(network.br), x, state, steps, network.test_b);
    EXPECT_EQ(golden.size(), h.size());
    double signal = 0, noise = 0;
    for (std::size_t i = 0; i < golden.size(); ++i) {
        signal += golden[i] * golden[i];
        noise += (golden[i] - h[i]) * (golden[i] - h[i]);
    }
    return 10 * std::log10(signal / noise);
}

}  // namespace gru_test

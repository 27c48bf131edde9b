// Trained networks: calibrated on one recording, measured on another, against a double GRU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "gru/calibrate/build.hpp"
#include "gru/image.hpp"
#include "gru/step.hpp"
#include "gru_reference.hpp"

#ifndef QK_SHARED_DATA_DEFAULT
#define QK_SHARED_DATA_DEFAULT "../shared/data"
#endif

namespace {

std::string data_folder() {
    const char *set = std::getenv("QK_SHARED_DATA");
    return set != nullptr ? set : QK_SHARED_DATA_DEFAULT;
}

std::vector<float> read_f32(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<float> values(bytes.size() / 4);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char *>(values.data()));
    return values;
}

struct Network {
    int c = 0, h = 0, calib_b = 1, test_b = 1;
    std::vector<float> w, r, bw, br, calib, test;
};

// PyTorch keeps r, z, n; the library wants u (= z), r, n.
std::vector<float> reorder(const std::vector<float> &rows, int h) {
    std::size_t block = rows.size() / 3;
    std::vector<float> result(rows.begin() + block, rows.begin() + 2 * block);
    result.insert(result.end(), rows.begin(), rows.begin() + block);
    result.insert(result.end(), rows.begin() + 2 * block, rows.end());
    (void)h;
    return result;
}

bool load_ulunas(const std::string &name, int b_calib, int b_test, Network &net) {
    std::string folder = data_folder() + "/ulunas/";
    auto weights = [&](const char *part) {
        return read_f32(folder + "w_" + name + part + "_l0.f32");
    };
    net.bw = weights("_bias_ih");
    if (net.bw.empty()) return false;
    net.h = static_cast<int>(net.bw.size() / 3);
    net.w = reorder(weights("_weight_ih"), net.h), net.r = reorder(weights("_weight_hh"), net.h);
    net.bw = reorder(net.bw, net.h), net.br = reorder(weights("_bias_hh"), net.h);
    net.c = static_cast<int>(net.w.size()) / (3 * net.h);
    net.calib = read_f32(folder + "io_" + name + "_calib_x.f32");
    net.test = read_f32(folder + "io_" + name + "_test_x.f32");
    net.calib_b = b_calib, net.test_b = b_test;
    return true;
}

struct Setting {
    qk_gru_preset preset;
    int calibration;
    std::uint32_t flags;
};

double sqnr(const Network &net, const Setting &setting) {
    namespace g = qk::gru;
    g::FloatGru gru = {net.c, net.h, net.w.data(), net.r.data(), net.bw.data(), net.br.data()};
    std::vector<double> x_sum(net.c), h_sum(net.h);
    std::vector<g::Histogram> histogram(QK_GRU_TENSOR_COUNT);
    for (auto &one : histogram) one.reach = -20;
    g::Ranges ranges = {};
    ranges.histogram = histogram.data(), ranges.x_sum = x_sum.data(), ranges.h_sum = h_sum.data();
    std::size_t b = static_cast<std::size_t>(net.calib_b);
    std::vector<float> block(b * g::float_trace_floats(net.h)), state(b * net.h);
    std::vector<g::FloatTrace> traces(b);
    for (std::size_t i = 0; i < b; ++i)
        traces[i] = g::float_trace(block.data() + i * g::float_trace_floats(net.h), net.h);
    for (std::size_t step = 0; step < net.calib.size() / (b * net.c); ++step) {
        const float *x = net.calib.data() + step * b * net.c;
        for (std::size_t i = 0; i < b; ++i)
            g::float_step(gru, x + i * net.c, state.data() + i * net.h, traces[i]);
        g::observe_step(&ranges, gru, setting.calibration, net.calib_b, x, state.data(),
                        traces.data());
        for (std::size_t i = 0; i < b; ++i)
            std::copy(traces[i].h, traces[i].h + net.h, state.begin() + i * net.h);
    }
    g::BuildOptions options = {};
    EXPECT_TRUE(g::preset_quants(setting.preset, options.quant, &options.flags));
    options.flags |= setting.flags;
    options.calibration = setting.calibration;
    std::vector<std::int8_t> shifts(12u * net.h);
    std::vector<std::int16_t> w(net.w.size()), r(net.r.size());
    std::vector<std::int32_t> biases(6u * net.h);
    g::ModelStorage storage = {};
    std::int8_t *s = shifts.data();
    storage.w_shift = s, storage.r_shift = s + 3 * net.h;
    storage.bw_shift = s + 6 * net.h, storage.br_shift = s + 9 * net.h;
    storage.w = w.data(), storage.r = r.data();
    storage.bw = biases.data(), storage.br = biases.data() + 3 * net.h;
    qk_gru_model model, loaded;
    g::build_model(gru, ranges, options, &storage, &model);
    std::vector<std::uint64_t> image(static_cast<std::size_t>(g::image_bytes(model)) / 8);
    g::Cell cell;
    EXPECT_STREQ(g::fault_text(g::image_write(model, image.data())), "no fault");
    EXPECT_STREQ(g::fault_text(g::image_read(image.data(), image.size() * 8, &loaded, &cell)),
                 "no fault");
    // Measure.
    auto wide = [](const std::vector<float> &v) { return std::vector<double>(v.begin(), v.end()); };
    int tb = net.test_b, steps = static_cast<int>(net.test.size()) / (tb * net.c);
    std::vector<double> zero(static_cast<std::size_t>(tb) * net.h);
    std::vector<double> golden =
        reference::run_gru_float(net.c, net.h, wide(net.w), wide(net.r), wide(net.bw), wide(net.br),
                                 wide(net.test), zero, steps, tb);
    double signal = 0, noise = 0;
    for (int sequence = 0; sequence < tb; ++sequence) {
        std::vector<std::int16_t> old(net.h), next(net.h), codes(net.c), scratch(net.h);
        for (int j = 0; j < net.h; ++j) g::store_code(old.data(), cell.h_bytes, j, cell.h_zero);
        for (int step = 0; step < steps; ++step) {
            std::size_t at = static_cast<std::size_t>(step) * tb + sequence;
            for (int k = 0; k < net.c; ++k)
                g::store_code(codes.data(), cell.x_bytes, k,
                              g::quantize(net.test[at * net.c + k], model.quant[QK_GRU_X],
                                          {model.shift[QK_GRU_X], model.zero_point[QK_GRU_X]}));
            g::step(cell, codes.data(), old.data(), next.data(), scratch.data(), nullptr);
            old.swap(next);
            for (int j = 0; j < net.h; ++j) {
                double h = golden[at * net.h + j];
                double q = std::ldexp(g::load_code(old.data(), cell.h_bytes, j) - cell.h_zero,
                                      -model.shift[QK_GRU_H]);
                signal += h * h, noise += (h - q) * (h - q);
            }
        }
    }
    return 10 * std::log10(signal / noise);
}

TEST(GruAccuracy, Table) {
    const char *names[] = {
        "encoder_en_convs_3_pconv2_2_ta_gru", "decoder_de_convs_0_dconv_4_ta_gru",
        "encoder_en_convs_1_pconv2_2_ta_gru", "dpgrnn_1_inter_rnn_rnn1", "dpgrnn_1_intra_rnn_rnn1"};
    const int batch_c[] = {1, 1, 1, 33, 600}, batch_t[] = {1, 1, 1, 33, 600};
    std::vector<Network> nets;
    for (int i = 0; i < 4; ++i) {
        Network net;
        if (!load_ulunas(names[i], batch_c[i], batch_t[i], net))
            GTEST_SKIP() << "no networks at " << data_folder();
        nets.push_back(net);
    }
    const std::uint32_t kU = QK_GRU_UNIFORM_TABLES, kB = QK_GRU_BIAS_CORRECTION,
                        kH = QK_GRU_HEADROOM;
    const struct {
        const char *name;
        Setting setting;
    } rows[] = {
        {"w8a8 seed", {QK_GRU_W8A8, 0, 0}},
        {"w8a8 ema", {QK_GRU_W8A8, 1, 0}},
        {"w8a8 mse", {QK_GRU_W8A8, 2, 0}},
        {"w8a8 u+b", {QK_GRU_W8A8, 0, kU | kB}},
        {"w8h16", {QK_GRU_W8H16, 0, 0}},
        {"w8h16 mse", {QK_GRU_W8H16, 2, 0}},
        {"w8h16 head", {QK_GRU_W8H16, 0, kH}},
        {"w8a16 seed", {QK_GRU_W8A16, 0, 0}},
        {"w8a16 u+b", {QK_GRU_W8A16, 0, kU | kB}},
        {"w8a16 u+b+h", {QK_GRU_W8A16, 0, kU | kB | kH}},
        {"w16a16 seed", {QK_GRU_W16A16, 0, 0}},
        {"w16a16 u", {QK_GRU_W16A16, 0, kU}},
        {"w16a16 u+h", {QK_GRU_W16A16, 0, kU | kH}},
    };
    for (const auto &row : rows) {
        std::printf("%-12s", row.name);
        for (const Network &net : nets) std::printf(" %6.2f", sqnr(net, row.setting));
        std::printf("\n");
    }
}

}  // namespace

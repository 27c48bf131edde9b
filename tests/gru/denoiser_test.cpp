// The project's own trained network, in every clone: its accuracy, and golden runs of its frozen
// forms, made once (tests/gru/golden/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "gru/derive.hpp"
#include "network.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

std::string read_all(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A tensor of a safetensors file: enough of its header to find it.
std::vector<float> tensor_of(const std::string &file, const std::string &name) {
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), 8);
    const std::size_t at = file.find("\"" + name + "\""), offsets = file.find("data_offsets", at);
    unsigned long begin = 0, end = 0;
    EXPECT_EQ(std::sscanf(file.c_str() + offsets, "data_offsets\":[%lu,%lu]", &begin, &end), 2);
    std::vector<float> values((end - begin) / 4);
    std::memcpy(values.data(), file.data() + 8 + header + begin, end - begin);
    return values;
}

Network denoiser() {
    const std::string folder = QK_EXAMPLES "/gru/";
    const std::string file = read_all(folder + "denoiser.safetensors");
    Network net;
    net.c = 16, net.h = 64;
    net.w = tensor_of(file, "gru.weight_ih_l0"), net.r = tensor_of(file, "gru.weight_hh_l0");
    net.bw = tensor_of(file, "gru.bias_ih_l0"), net.br = tensor_of(file, "gru.bias_hh_l0");
    net.calib = gru_test::read_f32(folder + "calibration.f32");
    net.test = gru_test::read_f32(folder + "test.f32");
    EXPECT_EQ(net.w.size(), 3u * 64 * 16);
    EXPECT_EQ(net.test.size(), 512u * 16);
    return net;
}

const struct {
    const char *name;
    gru_test::Setting setting;
    double db;          // on test.f32
    std::uint64_t run;  // FNV-1a of the codes of h
} kForms[] = {
    {"w8a8", {QK_GRU_W8A8}, 19.07, 9534062866857463277u},
    {"w8h16", {QK_GRU_W8H16}, 35.14, 15999793025867568581u},
    {"w16a16", {QK_GRU_W16A16, QK_GRU_UNIFORM_TABLES}, 66.44, 10965506526596371335u},
};

TEST(GruDenoiser, FreezesToTheGoldenBytes) {
    const Network net = denoiser();
    for (const auto &form : kForms) {
        SCOPED_TRACE(form.name);
        Session session(2);
        qk_gru *const gru = session.frozen(net, form.setting);
        EXPECT_NEAR(gru_test::sqnr_db(net, session.run(gru, net.test, 1)), form.db, 0.01);
        const std::vector<char> file = session.save(gru);
        if (const char *folder = std::getenv("QK_WRITE_GOLDEN"))
            std::ofstream(std::string(folder) + "/" + form.name + ".qkg", std::ios::binary)
                .write(file.data(), std::streamsize(file.size()));
        const std::string golden = read_all(QK_GRU_GOLDEN "/" + std::string(form.name) + ".qkg");
        EXPECT_TRUE(std::string(file.begin(), file.end()) == golden)
            << file.size() << " bytes, golden " << golden.size();
    }
}

std::uint64_t fnv1a(const std::vector<std::int64_t> &codes) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::int64_t code : codes)
        for (int byte = 0; byte < 2; ++byte)
            hash = (hash ^ (std::uint64_t(code) >> 8 * byte & 255)) * 0x100000001b3;
    return hash;
}

// Loaded golden bytes give the pinned codes: the reference, the kernels at any chunk, and counting.
TEST(GruDenoiser, GoldenRunsOfTheStoredForms) {
    const Network net = denoiser();
    for (const auto &form : kForms) {
        SCOPED_TRACE(form.name);
        Session session;
        const std::string golden = read_all(QK_GRU_GOLDEN "/" + std::string(form.name) + ".qkg");
        qk_gru *gru = nullptr;
        ASSERT_EQ(qk_gru_load(session.context, golden.data(), golden.size(), &gru), QK_OK)
            << qk_context_error(session.context);
        qk_gru_model model;
        model.struct_size = sizeof(model);
        ASSERT_EQ(qk_gru_describe(gru, &model), QK_OK);
        const double end = std::ldexp(1.0, model.quant[QK_GRU_X].bits - 1);
        std::vector<std::int64_t> x, state(64, model.zero_point[QK_GRU_H]);
        for (const float value : net.test) {
            const double code =
                std::rint(std::ldexp(value, model.shift[QK_GRU_X])) + model.zero_point[QK_GRU_X];
            x.push_back(static_cast<std::int64_t>(std::fmin(end - 1, std::fmax(-end, code))));
        }
        const reference::GruTrace trace =
            reference::run_gru(gru_test::reference_model(model), x, state, 512, 1);
        EXPECT_EQ(fnv1a(trace.h), form.run) << fnv1a(trace.h);
        for (const int chunk : {512, 37, 1})
            for (const int counts : {0, 1}) {
                qk_gru_state *const fresh = session.state(gru, 1);
                ASSERT_EQ(qk_gru_state_count_clipped(session.context, fresh, counts), QK_OK);
                const std::vector<float> y = session.run(gru, fresh, net.test, 1, chunk);
                std::vector<std::int64_t> codes;
                for (const float value : y)
                    codes.push_back(std::int64_t(std::ldexp(value, model.shift[QK_GRU_H])) +
                                    model.zero_point[QK_GRU_H]);
                EXPECT_EQ(fnv1a(codes), form.run);
            }
        qk_gru_destroy(gru);
    }
}

}  // namespace

// Every option, width and granularity that qk.h offers, drawn at random through a GRU's whole life,
// against the naive reference run on the integers that it froze to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "network.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

class Draw {
  public:
    explicit Draw(unsigned seed) : random_(seed) {}
    int from(int low, int high) {
        return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
    }
    bool one_in(int n) { return from(1, n) == 1; }
    std::vector<float> values(int count, float reach) {
        std::uniform_real_distribution<float> uniform(-reach, reach);
        std::vector<float> result(static_cast<std::size_t>(count));
        for (float &value : result) value = uniform(random_);
        return result;
    }

  private:
    std::mt19937 random_;
};

// Weights and inputs over many orders of magnitude, now and then all of them 0.
Network draw_network(Draw &draw) {
    Network net;
    net.c = draw.from(1, 9), net.h = draw.from(1, 20);
    net.calib_b = net.test_b = draw.from(1, 3);
    const auto reach = [&](int low, int high) {
        return draw.one_in(12) ? 0.0f : std::ldexp(1.0f, draw.from(low, high));
    };
    net.w = draw.values(3 * net.h * net.c, reach(-4, 2));
    net.r = draw.values(3 * net.h * net.h, reach(-4, 1));
    net.bw = draw.values(3 * net.h, reach(-6, 2));
    net.br = draw.values(3 * net.h, reach(-6, 2));
    const float x = reach(-3, 3);
    net.calib = draw.values(30 * net.calib_b * net.c, x);
    net.test = draw.values(12 * net.test_b * net.c, 1.5f * x);
    return net;
}

qk_gru_quant draw_quant(Draw &draw, int which) {
    const bool weight = which >= QK_GRU_W && which <= QK_GRU_BR;
    const bool bias = which == QK_GRU_BW || which == QK_GRU_BR;
    qk_gru_quant quant = {draw.from(4, bias ? 32 : 16), 0, 0, 0};
    quant.is_symmetric = weight || draw.one_in(2);
    if (weight) quant.granularity = draw.from(0, 2);
    if (which >= QK_GRU_IH) quant.is_unsigned = draw.one_in(2);
    return quant;
}

template <class T>
std::vector<T> narrowed(const std::vector<std::int64_t> &codes) {
    return {codes.begin(), codes.end()};
}

// Bytes of codes as the library takes them: int8_t up to 8 bits, else int16_t.
struct Codes {
    std::vector<std::int8_t> bytes;
    std::vector<std::int16_t> words;
    bool is_wide;

    Codes(const std::vector<std::int64_t> &codes, int bits)
        : bytes(narrowed<std::int8_t>(codes)), words(narrowed<std::int16_t>(codes)),
          is_wide(bits > 8) {}
    void *data() { return is_wide ? static_cast<void *>(words.data()) : bytes.data(); }
    qk_format format() const { return is_wide ? QK_FORMAT_I16 : QK_FORMAT_I8; }
    std::int64_t at(std::size_t i) const { return is_wide ? words[i] : bytes[i]; }
};

class Life {
  public:
    explicit Life(Draw &draw) : draw_(draw), net_(draw_network(draw)) {}

    void freeze() {
        gru_test::Setting setting;
        setting.preset = draw_.from(QK_GRU_W8A8, QK_GRU_W16A16);
        setting.flags = static_cast<std::uint32_t>(draw_.from(0, 15));
        setting.calibration = draw_.from(QK_GRU_CALIBRATE_MIN_MAX, QK_GRU_CALIBRATE_MSE);
        gru_ = session_.create(net_, setting);
        for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
            if (draw_.one_in(2)) continue;
            const qk_gru_quant quant = draw_quant(draw_, which);
            EXPECT_EQ(qk_gru_set_quant(gru_, which, &quant), QK_OK) << which;
        }
        const std::vector<float> h0 = draw_.values(net_.calib_b * net_.h, 1.0f);
        for (int calls = draw_.from(1, 3); calls > 0; --calls)
            session_.calibrate(gru_, net_.calib, net_.calib_b, net_.c,
                               draw_.one_in(2) ? h0.data() : nullptr);
        session_.freeze(gru_);
    }

    void run() {
        const std::vector<char> file = session_.save(gru_);
        qk_gru *loaded = nullptr;
        ASSERT_EQ(qk_gru_load(session_.context, file.data(), file.size(), &loaded), QK_OK)
            << qk_context_error(session_.context);
        model_.struct_size = sizeof(model_);
        ASSERT_EQ(qk_gru_describe(loaded, &model_), QK_OK);
        compare(loaded);
        qk_gru_destroy(loaded);
    }

  private:
    std::int64_t code_of(float value, int which) const {
        const int bits = model_.quant[which].bits;
        const double half = std::ldexp(1.0, bits - 1);
        const double code =
            std::rint(std::ldexp(double(value), model_.shift[which])) + model_.zero_point[which];
        return static_cast<std::int64_t>(std::clamp(code, -half, half - 1));
    }
    double real_of(std::int64_t code, int which) const {
        return std::ldexp(static_cast<double>(code - model_.zero_point[which]),
                          -model_.shift[which]);
    }

    void compare(const qk_gru *gru) {
        const int b = net_.test_b, h = net_.h, steps = 12;
        const std::vector<float> h0 = draw_.values(b * h, 1.0f);
        std::vector<std::int64_t> codes, state;
        for (const float value : net_.test) codes.push_back(code_of(value, QK_GRU_X));
        for (const float value : h0) state.push_back(code_of(value, QK_GRU_H));
        const auto trace =
            reference::run_gru(gru_test::reference_model(model_), codes, state, steps, b);
        qk_gru_state *streams[3];
        for (qk_gru_state *&stream : streams) {
            stream = session_.state(gru, b);
            ASSERT_EQ(qk_gru_state_write(session_.context, stream, h0.data()), QK_OK);
        }
        const std::vector<float> y =
            session_.run(gru, streams[0], net_.test, b, draw_.from(1, steps));
        std::vector<float> last(static_cast<std::size_t>(b * h));
        ASSERT_EQ(qk_gru_state_read(session_.context, streams[0], last.data()), QK_OK);
        EXPECT_TRUE(std::equal(last.begin(), last.end(), y.end() - b * h));

        Codes x(codes, model_.quant[QK_GRU_X].bits);
        Codes out(trace.h, model_.quant[QK_GRU_H].bits), with_gates(out);
        std::vector<float> gates(4 * trace.h.size());
        qk_tensor *tx = session_.wrap(x.data(), x.format(), steps, b, net_.c);
        qk_tensor *ty = session_.wrap(out.data(), out.format(), steps, b, h);
        qk_tensor *tz = session_.wrap(with_gates.data(), out.format(), steps, b, h);
        qk_tensor *tv = session_.wrap(gates.data(), QK_FORMAT_F32, steps, b, 4 * h);
        std::fill(out.bytes.begin(), out.bytes.end(), std::int8_t{77});
        std::fill(out.words.begin(), out.words.end(), std::int16_t{77});
        EXPECT_EQ(qk_gru_run(session_.context, gru, streams[1], tx, ty), QK_OK);
        EXPECT_EQ(qk_gru_run_gates(session_.context, gru, streams[2], tx, tz, tv), QK_OK);
        const int shown[] = {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT, QK_GRU_NEW_OUT, QK_GRU_HH};
        for (std::size_t i = 0; i < trace.h.size(); ++i) {
            ASSERT_EQ(out.at(i), trace.h[i]) << i;
            ASSERT_EQ(with_gates.at(i), trace.h[i]) << i;
            ASSERT_EQ(y[i], real_of(trace.h[i], QK_GRU_H)) << i;
        }
        for (std::size_t i = 0; i < gates.size(); ++i)
            ASSERT_EQ(
                gates[i],
                real_of(trace.gates[i],
                        shown[i % (4u * static_cast<unsigned>(h)) / static_cast<unsigned>(h)]));
        for (qk_tensor *tensor : {tx, ty, tz, tv}) qk_tensor_destroy(tensor);
    }

    Draw &draw_;
    Network net_;
    Session session_;
    qk_gru *gru_ = nullptr;
    qk_gru_model model_ = {};
};

TEST(GruOptions, EveryWidthFlagAndRangeRunsAsTheReferenceSays) {
    for (unsigned seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Draw draw(seed);
        Life life(draw);
        life.freeze();
        if (!testing::Test::HasFailure()) life.run();
    }
}

// The finest scale, 2^-23, of weights and of inputs that are all 0 would put a bias's shift beyond
// rule 3's; such weights take a coarser one.
TEST(GruOptions, PrunedWeightsLeaveTheirBiasesAlone) {
    Network net;
    net.c = 2, net.h = 3;
    net.w.assign(18, 0.0f), net.r.assign(27, 0.0f);
    net.bw = {9, -3, 2, -1, 0.5f, 7, 1, -2, 0.25f}, net.br.assign(9, 0.0f);
    net.calib.assign(20, 0.0f), net.test = net.calib;
    const qk_gru_quant coarse = {8, 0, 1, 2};
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8A16, QK_GRU_W16A16}) {
        Session session;
        qk_gru *gru = session.create(net, {preset});
        ASSERT_EQ(qk_gru_set_quant(gru, QK_GRU_BW, &coarse), QK_OK);
        session.calibrate(gru, net.calib, 1, 2);
        session.freeze(gru);
        std::int32_t w = 0, bias = 0, x = 0, zero = 0;
        ASSERT_EQ(qk_gru_scale(gru, QK_GRU_W, 3, &w, &zero), QK_OK);  // r's first, its bias 9
        ASSERT_EQ(qk_gru_scale(gru, QK_GRU_BW, 3, &bias, &zero), QK_OK);
        ASSERT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &x, &zero), QK_OK);
        EXPECT_EQ(x, 23);
        EXPECT_EQ(bias - (w + x), -29);
        EXPECT_GT(gru_test::sqnr_db(net, session.run(gru, net.test, 1)), 10);
    }
}

}  // namespace

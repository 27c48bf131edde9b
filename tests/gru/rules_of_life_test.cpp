// Rules 1, 14 and 16 to 25 of docs/gru.md: choosing scales, tables, and what a GRU's life keeps.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gru/calibrate/build.hpp"
#include "gru/image.hpp"
#include "network.hpp"
#include "owned_model.hpp"

namespace {

namespace g = qk::gru;
using gru_test::OwnedModel;

const qk_gru_quant kInt8 = {8, 0, 0, 0}, kUint8 = {8, 1, 0, 0}, kSymmetric8 = {8, 0, 1, 0};

TEST(GruRule, 01_RealZeroIsTheZeroPointAndTheZeroPointIsACode) {
    for (int bits : {4, 8, 12, 16})
        for (int is_unsigned : {0, 1})
            for (double low : {-1e6, -7.3, -1.0, -0.4, -1e-4, 0.0})
                for (double high : {0.0, 1e-3, 0.7, 1.0, 20.0, 3e5}) {
                    qk_gru_quant quant = {bits, is_unsigned, 0, 0};
                    g::Exponent e = g::exponent_of_range(quant, low, high);
                    g::CodeRange codes = g::code_range(quant);
                    EXPECT_EQ(g::quantize(0.0, quant, e), e.zero);
                    EXPECT_GE(e.zero, codes.min);
                    EXPECT_LE(e.zero, codes.max);
                }
    g::Exponent e = g::exponent_of_range(kInt8, -1.0, 3.0);  // 256 / 4 = 2^6 steps a unit
    EXPECT_EQ(e.shift, 6);
    EXPECT_EQ(e.zero, -128 + 64);
}

TEST(GruRule, 14_UnsignedGatesUseAllTheirBits) {
    qk_gru_quant quants[QK_GRU_TENSOR_COUNT];
    std::uint32_t flags = 0;
    ASSERT_TRUE(g::preset_quants(QK_GRU_W8A8, quants, &flags));
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {1, 1, 1}, net.r = {1, 1, 1}, net.bw = {-9, -9, 0}, net.br = {0, 0, 0};
    net.calib = {0.5f, -0.5f};
    gru_test::Session session;
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W16A16}) {
        qk_gru *gru = session.frozen(net, {preset});
        int bits = preset == QK_GRU_W8A8 ? 8 : 16;
        for (int out : {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT}) {
            std::int32_t shift = 0, zero = -1;
            ASSERT_EQ(qk_gru_scale(gru, out, 0, &shift, &zero), QK_OK);
            EXPECT_EQ(shift, bits);  // these gates stay below 0.001, and are not cut at 1/2
            EXPECT_EQ(zero, 0);
        }
    }
}

TEST(GruRule, 16_TablesAreDataAndSurviveSavingUntouched) {
    std::mt19937_64 random(11);
    OwnedModel m(3, 4);
    gru_test::randomize(m, random, {3, 4, false});
    const qk_gru_model &model = m.view();
    std::vector<std::uint64_t> image(static_cast<std::size_t>(g::image_bytes(model)) / 8);
    ASSERT_EQ(g::image_write(model, image.data()), g::Fault::kNone);
    qk_gru_model loaded;
    g::Cell cell;
    ASSERT_EQ(g::image_read(image.data(), image.size() * 8, &loaded, &cell), g::Fault::kNone);
    const qk_gru_table *tables[] = {&loaded.update, &loaded.reset, &loaded.candidate};
    for (int gate = 0; gate < 3; ++gate)
        for (int i = 0; i < tables[gate]->count; ++i) {
            EXPECT_EQ(tables[gate]->slope[i], m.tables[gate].slope[i]);
            EXPECT_EQ(tables[gate]->intercept[i], m.tables[gate].intercept[i]);
        }
}

// Largest distance of a table from its curve over every input code, and whether it ever falls.
struct TableFacts {
    double error;
    bool monotone;
};

TableFacts inspect(g::Curve curve, int bits, int in_shift, int in_zero, bool uniform) {
    qk_gru_quant input = {bits, 0, 0, 0}, output = {bits, curve == g::Curve::kSigmoid, 0, 0};
    int out_shift = curve == g::Curve::kSigmoid ? bits : bits - 1;
    g::TableSpec spec = {curve, input, output, {in_shift, in_zero}, {out_shift, 0}};
    g::TableStorage storage;
    qk_gru_table table =
        uniform ? g::build_uniform(spec, &storage) : g::build_knots(spec, &storage);
    reference::GruModel m;
    m.bits[reference::N_IN] = m.bits[reference::N_OUT] = bits;
    m.is_unsigned[reference::N_OUT] = output.is_unsigned != 0;
    m.zero[reference::N_IN] = in_zero, m.shift[reference::N_OUT] = out_shift;
    reference::GruTable lines = gru_test::reference_table(table);
    TableFacts facts = {0.0, true};
    std::int64_t before = -100000;
    for (int code = -(1 << (bits - 1)); code < 1 << (bits - 1); ++code) {
        std::int64_t y = reference::gate_value(m, lines, reference::N_IN, reference::N_OUT,
                                               curve == g::Curve::kTanh, code);
        double x = std::ldexp(code - in_zero, -in_shift);
        double exact = curve == g::Curve::kTanh ? std::tanh(x) : 1 / (1 + std::exp(-x));
        facts.error = std::max(facts.error, std::fabs(std::ldexp(double(y), -out_shift) - exact));
        facts.monotone = facts.monotone && y >= before;
        before = y;
    }
    return facts;
}

TEST(GruRule, 17_UniformTablesAreMonotoneAndWithinTheirBound) {
    for (g::Curve curve : {g::Curve::kSigmoid, g::Curve::kTanh})
        for (int bits : {8, 12, 16})
            for (int in_shift : {bits - 6, bits - 5, bits - 4, bits - 2})
                for (int in_zero : {0, 77, -(1 << (bits - 1))}) {
                    TableFacts facts = inspect(curve, bits, in_shift, in_zero, true);
                    int out_shift = curve == g::Curve::kSigmoid ? bits : bits - 1;
                    // The line's own error h^2/16 max|f''|, with h at most range/256 because 512
                    // segments are at least half used; the neglected third derivative; one step
                    // for rounding, the floored slope and the largest code.
                    double limit = curve == g::Curve::kTanh ? (out_shift + 3) * 0.34658
                                                            : (out_shift + 2) * 0.69315;
                    double h = 2 * limit / 256;
                    double bend = curve == g::Curve::kTanh ? 0.7699 : 0.0963;
                    double bound = 1.1 * h * h / 16 * bend + std::ldexp(1.0, -out_shift);
                    EXPECT_TRUE(facts.monotone);
                    EXPECT_LE(facts.error, bound) << bits << " " << in_shift << " " << in_zero;
                }
    // The compatible table is what it is: two orders of magnitude coarser.
    EXPECT_GT(inspect(g::Curve::kTanh, 16, 11, 0, false).error, 5e-3);
}

TEST(GruRule, 18_MovingRangesMoveAtEveryStepAndOnlyForXAndH) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {0, 0, 0}, net.r = {0, 0, 0}, net.bw = {0, 0, 0}, net.br = {0, 0, 0};
    // The largest x is 4, then 0.9*4 + 0.1*1 = 3.7, 3.43 ...: below 2 it gains a bit.
    net.calib = {4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    gru_test::Session session;
    std::int32_t shift = 0, zero = 0;
    double range = 4;
    for (std::size_t i = 1; i < net.calib.size(); ++i) range = 0.9 * range + 0.1;
    qk_gru *moving = session.frozen(net, {QK_GRU_W8A8, 0, QK_GRU_CALIBRATE_MOVING});
    ASSERT_EQ(qk_gru_scale(moving, QK_GRU_X, 0, &shift, &zero), QK_OK);
    ASSERT_LT(range, 2.0);
    EXPECT_EQ(shift, 7);
    qk_gru *global = session.frozen(net, {QK_GRU_W8A8});
    ASSERT_EQ(qk_gru_scale(global, QK_GRU_X, 0, &shift, &zero), QK_OK);
    EXPECT_EQ(shift, 6);
}

TEST(GruRule, 19_ThereAreTwoToTheBStepsNotOneLess) {
    EXPECT_EQ(g::exponent_of_range(kInt8, -1.0, 1.0).shift, 7);
    EXPECT_EQ(g::exponent_of_range(kSymmetric8, -1.0, 1.0).shift, 7);
    EXPECT_EQ(g::exponent_of_range(kUint8, 0.0, 1.0).shift, 8);
}

TEST(GruRule, 20_MinMaxFloorsTheExponentAndMseSearchesIt) {
    EXPECT_EQ(g::exponent_of_range(kInt8, 0.0, 1.01).shift, 7);  // 256/1.01 = 2^7.99
    EXPECT_EQ(g::floor_log2(0.99), -1);
    EXPECT_EQ(g::floor_log2(1.0), 0);
    // A hundred thousand values in +-1 and one at 8: clipping the one is cheaper.
    g::Histogram histogram = {};
    histogram.reach = 3;
    for (int i = 0; i < g::kBins; ++i)
        if (std::abs(i - g::kBins / 2) < g::kBins / 16) histogram.count[i] = 400;
    histogram.count[g::kBins - 1] = 1;
    g::Range range = {-1.0, 8.0, true};
    EXPECT_EQ(g::exponent_of_range(kInt8, -1.0, 8.0).shift, 4);
    g::Exponent best = g::exponent_of_histogram(kInt8, histogram, range);
    EXPECT_GT(best.shift, 4);
    // An empty histogram ties everywhere: the larger range stays.
    g::Histogram empty = {};
    EXPECT_EQ(g::exponent_of_histogram(kInt8, empty, range).shift, 3);
}

TEST(GruRule, 21_GateOrderIsStatedAndOnlyMovesRows) {
    gru_test::Network pytorch;
    pytorch.c = 2, pytorch.h = 1;
    pytorch.w = {1, 2, 3, 4, 5, 6};  // r, z, n
    pytorch.r = {0.1f, 0.2f, 0.3f}, pytorch.bw = {1, 2, 3}, pytorch.br = {4, 5, 6};
    pytorch.calib = {0.5f, -0.5f};
    gru_test::Session session;
    std::vector<char> first = session.save(session.frozen(pytorch, {}));
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = 2, config.hidden_size = 1;
    config.gate_order = QK_GRU_ORDER_ZRN;
    config.preset = QK_GRU_W8A8;
    const float w[] = {3, 4, 1, 2, 5, 6}, r[] = {0.2f, 0.1f, 0.3f}, bw[] = {2, 1, 3},
                br[] = {5, 4, 6};
    qk_gru *gru = nullptr;
    ASSERT_EQ(qk_gru_create(session.context, &config, w, r, bw, br, &gru), QK_OK);
    session.calibrate(gru, pytorch.calib, 1, 2);
    session.freeze(gru);
    EXPECT_EQ(first, session.save(gru));
    qk_gru_destroy(gru);
}

TEST(GruRule, 22_NoInitialStateMeansRealZero) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {0, 0, 1}, net.r = {0, 0, 0}, net.bw = {9, 9, 0}, net.br = {0, 0, 0};
    net.calib = {3, 3, 3, 3, -0.2f};
    gru_test::Session session;
    qk_gru *gru = session.frozen(net, {});
    std::int32_t shift = 0, zero = 0;
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_H, 0, &shift, &zero), QK_OK);
    ASSERT_NE(zero, 0);  // or the test would not tell 0 from the zero point
    qk_gru_state *state = session.state(gru, 1);
    float h = -1;
    ASSERT_EQ(qk_gru_state_read(session.context, state, &h), QK_OK);
    EXPECT_EQ(h, 0.0f);
    float set = 1.0f;
    ASSERT_EQ(qk_gru_state_write(session.context, state, &set), QK_OK);
    ASSERT_EQ(qk_gru_state_reset(session.context, state), QK_OK);
    ASSERT_EQ(qk_gru_state_read(session.context, state, &h), QK_OK);
    EXPECT_EQ(h, 0.0f);
}

TEST(GruRule, 23_ExponentsMayBeNegative) {
    g::Exponent e = g::exponent_of_range(kInt8, -1000.0, 1000.0);
    EXPECT_EQ(e.shift, -3);
    EXPECT_EQ(e.zero, -128 + 125);
    EXPECT_EQ(g::quantize(1000.0, kInt8, e), -3 + 125);
}

TEST(GruRule, 24_AZeroBiasChannelShiftsByMoreThan31) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {10000, 1, 1}, net.r = {0.5f, 0.5f, 0.5f}, net.bw = {0, 0, 1}, net.br = {0, 0, 0};
    net.calib = {10000.0f, -10000.0f};
    gru_test::Session session;
    qk_gru *gru = session.frozen(net, {});
    std::int32_t w = 0, bias = 0, x = 0, zero = 0;
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_W, 1, &w, &zero), QK_OK);  // row r of the model
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_BW, 1, &bias, &zero), QK_OK);
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &x, &zero), QK_OK);
    EXPECT_EQ(bias, 23);
    EXPECT_GT(bias - (w + x), 31);
    std::vector<float> h = session.run(gru, net.calib, 1);
    EXPECT_TRUE(std::isfinite(h[1]));
}

TEST(GruRule, 25_SplitsOfTimeAndBatchGiveTheSameBits) {
    gru_test::Network net;
    net.c = 5, net.h = 7;
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto fill = [&](std::vector<float> &v, int count) {
        v.resize(count);
        for (float &value : v) value = uniform(random);
    };
    fill(net.w, 3 * 7 * 5), fill(net.r, 3 * 7 * 7), fill(net.bw, 21), fill(net.br, 21);
    const int t = 600, b = 3;
    fill(net.calib, t * b * 5);
    net.calib_b = b;
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        gru_test::Session one_thread(1), threads(4);
        qk_gru *gru = one_thread.frozen(net, {preset});
        std::vector<float> whole = one_thread.run(gru, net.calib, b);
        EXPECT_EQ(one_thread.run(gru, one_thread.state(gru, b), net.calib, b, 1), whole);
        EXPECT_EQ(one_thread.run(gru, one_thread.state(gru, b), net.calib, b, 37), whole);
        qk_gru *again = threads.frozen(net, {preset});
        EXPECT_EQ(threads.run(again, net.calib, b), whole);
        for (int sequence = 0; sequence < b; ++sequence) {
            std::vector<float> x, expected;
            for (int step = 0; step < t; ++step) {
                auto row = net.calib.begin() + (step * b + sequence) * 5;
                x.insert(x.end(), row, row + 5);
                auto h = whole.begin() + (step * b + sequence) * 7;
                expected.insert(expected.end(), h, h + 7);
            }
            EXPECT_EQ(one_thread.run(gru, x, 1), expected);
        }
    }
}

}  // namespace

// What a freeze computes from ranges and means, by hand: no data from anywhere else.
#include <gtest/gtest.h>

#include <cmath>

#include "gru/calibrate/curve.hpp"
#include "network.hpp"

namespace {

namespace g = qk::gru;
using gru_test::Network;
using gru_test::Session;

Network one_unit(int c) {
    Network net;
    net.c = c, net.h = 1;
    net.w.assign(static_cast<std::size_t>(3 * c), 0), net.r.assign(3, 0);
    net.bw.assign(3, 0), net.br.assign(3, 0);
    return net;
}

// Rule 18: nine tenths of the old range stay at every step, of x and of h.
TEST(GruRule, 18_NineTenthsOfTheOldRangeStay) {
    Network net = one_unit(1);
    net.calib = {4, 1, -2};
    Session session;
    qk_gru *const gru = session.create(net, {QK_GRU_W8A8, 0, QK_GRU_CALIBRATE_MOVING});
    session.calibrate(gru, net.calib, 1, 1);
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    ASSERT_EQ(qk_gru_get_ranges(session.context, gru, &ranges), QK_OK);
    EXPECT_DOUBLE_EQ(ranges.max[QK_GRU_X], 0.9 * (0.9 * 4 + 0.1 * 1) + 0.1 * -2);  // 3.13
    EXPECT_DOUBLE_EQ(ranges.min[QK_GRU_X], 0.9 * (0.9 * 4 + 0.1 * 1) + 0.1 * -2);
    Network wide = one_unit(2);
    wide.calib = {4, -1, 2, 0};
    qk_gru *const two = session.create(wide, {QK_GRU_W8A8, 0, QK_GRU_CALIBRATE_MOVING});
    session.calibrate(two, wide.calib, 1, 2);
    ASSERT_EQ(qk_gru_get_ranges(session.context, two, &ranges), QK_OK);
    EXPECT_DOUBLE_EQ(ranges.max[QK_GRU_X], 0.9 * 4 + 0.1 * 2);
    EXPECT_DOUBLE_EQ(ranges.min[QK_GRU_X], 0.9 * -1 + 0.1 * 0);
}

double real_bias(const qk_gru_model &model, bool of_r, int row) {
    return of_r ? std::ldexp(model.br[row], -model.br_shift[row])
                : std::ldexp(model.bw[row], -model.bw_shift[row]);
}

// Weights of 4 bits: 1.0 becomes 7/8 and 0.3 becomes 2/8, so that x = 1, 2 loses 0.125 + 0.1 in
// the row of n, and its bias of 0.5 becomes 0.725. R's 0.3 becomes 5/16: h of mean m loses -m/80.
TEST(GruCalibrate, BiasCorrectionGivesBackWhatRoundingTook) {
    Network net = one_unit(2);
    net.w[4] = 1.0f, net.w[5] = 0.3f;
    net.bw[2] = 0.5f, net.br[2] = 0.25f, net.r[2] = 0.3f;
    for (int t = 0; t < 8; ++t) net.calib.insert(net.calib.end(), {1, 2});
    for (const bool corrects : {false, true}) {
        Session session;
        qk_gru *const gru =
            session.create(net, {QK_GRU_W8A16, corrects ? QK_GRU_BIAS_CORRECTION : 0u});
        const qk_gru_quant four = {4, 0, 1, 2};
        ASSERT_EQ(qk_gru_set_quant(gru, QK_GRU_W, &four), QK_OK);
        ASSERT_EQ(qk_gru_set_quant(gru, QK_GRU_R, &four), QK_OK);
        session.calibrate(gru, net.calib, 1, 2);
        qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
        double x_sum[2] = {}, h_sum = 0;
        ranges.x_sum = x_sum, ranges.h_sum = &h_sum;
        ASSERT_EQ(qk_gru_get_ranges(session.context, gru, &ranges), QK_OK);
        EXPECT_EQ(x_sum[0], 8);
        EXPECT_EQ(x_sum[1], 16);
        const double mean = h_sum / 8;  // of the h that R read, 0 at first
        EXPECT_GT(mean, 0.3);
        session.freeze(gru);
        qk_gru_model model;
        model.struct_size = sizeof(model);
        ASSERT_EQ(qk_gru_describe(gru, &model), QK_OK);
        const std::int8_t *const w = static_cast<const std::int8_t *>(model.w);
        ASSERT_EQ(model.w_shift[2], 3);
        ASSERT_EQ(w[4], 7);
        ASSERT_EQ(w[5], 2);
        const double step = std::ldexp(1.0, -15);
        EXPECT_NEAR(real_bias(model, false, 2), corrects ? 0.725 : 0.5, step);
        EXPECT_NEAR(real_bias(model, true, 2), corrects ? 0.25 - mean / 80 : 0.25, step);
        EXPECT_EQ(model.bw[0], 0);  // rows that lose nothing gain nothing
    }
}

// The seed flow's table of tanh for codes of 8 bits in 1/16 steps to 1/32 steps, word by word:
// intercepts have more places than the output here, and what they have more is floored.
TEST(GruCalibrate, KnotsWordByWord) {
    const qk_gru_quant int8 = {8, 0, 0, 0};
    g::TableStorage storage;
    const g::TableSpec spec = {g::Curve::kTanh, int8, int8, {4, 3}, {5, -7}};
    const qk_gru_table table = g::build_knots(spec, &storage);
    ASSERT_EQ(table.count, 16);
    EXPECT_EQ(table.shift, 6);
    const int expected[16][3] = {// threshold, slope, intercept
                                 {-43, 1, -39}, {-26, 5, -36}, {-18, 21, -28}, {-12, 45, -20},
                                 {-7, 72, -14}, {-4, 98, -10}, {0, 117, -8},   {3, 126, -7},
                                 {6, 127, -7},  {10, 117, -7}, {13, 98, -5},   {18, 72, -1},
                                 {24, 46, 6},   {32, 21, 14},  {49, 5, 21},    {67, 1, 24}};
    for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(table.threshold[i], expected[i][0]) << i;
        EXPECT_EQ(table.slope[i], expected[i][1]) << i;
        EXPECT_EQ(table.intercept[i], expected[i][2]) << i;
    }
}

}  // namespace

// What calibration saw, read, merged and given: the same bytes of a frozen GRU come of it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "network.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;
using gru_test::Setting;

Network random_network() {
    Network net;
    net.c = 3, net.h = 4;
    std::mt19937 random(8);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto fill = [&](std::vector<float> &values, int count) {
        values.resize(static_cast<std::size_t>(count));
        for (float &value : values) value = uniform(random);
    };
    fill(net.w, 36), fill(net.r, 48), fill(net.bw, 12), fill(net.br, 12);
    fill(net.calib, 90), fill(net.test, 60);
    for (float &value : net.test) value *= 2;
    return net;
}

// A copy with room for the sums.
struct Held {
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    std::vector<double> x_sum = std::vector<double>(3), h_sum = std::vector<double>(4);

    Held() { ranges.x_sum = x_sum.data(), ranges.h_sum = h_sum.data(); }
    Held(const Held &) = delete;
    Held(Session &session, const qk_gru *gru) : Held() {
        EXPECT_EQ(qk_gru_get_ranges(session.context, gru, &ranges), QK_OK)
            << qk_context_error(session.context);
    }
};

TEST(GruRanges, AreWhatCalibrationSaw) {
    const Network net = random_network();
    Session session;
    qk_gru *const gru = session.create(net, {});
    Held none(session, gru);
    EXPECT_EQ(none.ranges.samples, 0);
    session.calibrate(gru, net.calib, 3, net.c);
    Held held(session, gru);
    EXPECT_EQ(held.ranges.samples, 30);
    const auto [low, high] = std::minmax_element(net.calib.begin(), net.calib.end());
    EXPECT_EQ(held.ranges.min[QK_GRU_X], *low);
    EXPECT_EQ(held.ranges.max[QK_GRU_X], *high);
    double sum[3] = {};
    for (std::size_t i = 0; i < net.calib.size(); ++i) sum[i % 3] += net.calib[i];
    for (int k = 0; k < 3; ++k) EXPECT_NEAR(held.x_sum[k], sum[k], 1e-12);
    for (const int which : {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT}) {
        EXPECT_GT(held.ranges.min[which], 0);
        EXPECT_LT(held.ranges.max[which], 1);
    }
    for (const int which : {QK_GRU_W, QK_GRU_R, QK_GRU_BW, QK_GRU_BR}) {
        EXPECT_EQ(held.ranges.min[which], 0);
        EXPECT_EQ(held.ranges.max[which], 0);
    }
}

TEST(GruRanges, GivenRangesFreezeToTheSameBytes) {
    const Network net = random_network();
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W16A16})
        for (const qk_gru_calibration calibration :
             {QK_GRU_CALIBRATE_MIN_MAX, QK_GRU_CALIBRATE_MOVING}) {
            Session session;
            const Setting setting = {preset, 0, calibration};
            qk_gru *const seen = session.create(net, setting), *const given =
                                                                   session.create(net, setting);
            session.calibrate(seen, net.calib, 1, net.c);
            Held held(session, seen);
            session.calibrate(given, net.test, 1, net.c);  // replaced
            ASSERT_EQ(qk_gru_set_ranges(session.context, given, &held.ranges), QK_OK);
            session.freeze(seen);
            session.freeze(given);
            EXPECT_EQ(session.save(given), session.save(seen));
        }
}

TEST(GruRanges, MergedRangesAreOneCalibration) {
    const Network net = random_network();
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16}) {
        Session session;
        qk_gru *const both = session.create(net, {preset}),
                      *const first = session.create(net, {preset}),
                      *const second = session.create(net, {preset});
        session.calibrate(both, net.calib, 1, net.c);
        session.calibrate(both, net.test, 1, net.c);
        session.calibrate(first, net.calib, 1, net.c);
        session.calibrate(second, net.test, 1, net.c);
        Held held(session, second);
        ASSERT_EQ(qk_gru_merge_ranges(session.context, first, &held.ranges), QK_OK);
        Held merged(session, first), whole(session, both);
        EXPECT_EQ(merged.ranges.samples, 50);
        for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
            EXPECT_EQ(merged.ranges.min[which], whole.ranges.min[which]);
            EXPECT_EQ(merged.ranges.max[which], whole.ranges.max[which]);
        }
        for (int k = 0; k < 3; ++k) EXPECT_NEAR(merged.x_sum[k], whole.x_sum[k], 1e-12);
        for (int k = 0; k < 4; ++k) EXPECT_NEAR(merged.h_sum[k], whole.h_sum[k], 1e-12);
        session.freeze(first);
        session.freeze(both);
        EXPECT_EQ(session.save(first), session.save(both));
    }
}

// Without any data: hand numbers, -1..3 in 8 bits.
TEST(GruRanges, GivenByHand) {
    const Network net = random_network();
    Session session;
    qk_gru *const gru = session.create(net, {});
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    ranges.samples = 1;
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which)
        ranges.min[which] = -1, ranges.max[which] = 3;
    ASSERT_EQ(qk_gru_set_ranges(session.context, gru, &ranges), QK_OK);
    session.freeze(gru);
    std::int32_t shift = 0, zero = 0;
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &shift, &zero), QK_OK);
    EXPECT_EQ(shift, 6);
    EXPECT_EQ(zero, -64);
}

TEST(GruRanges, RefusalsNameTheTensorAndChangeNothing) {
    const Network net = random_network();
    Session session;
    qk_context *const context = session.context;
    qk_gru *const gru = session.create(net, {QK_GRU_W8H16});
    session.calibrate(gru, net.calib, 1, net.c);
    Held good(session, gru);
    const auto refused = [&](qk_status status, const char *sentence, auto change) {
        Held bad(session, gru);
        change(bad);
        for (const bool merge : {false, true}) {
            EXPECT_EQ(merge ? qk_gru_merge_ranges(context, gru, &bad.ranges)
                            : qk_gru_set_ranges(context, gru, &bad.ranges),
                      status);
            EXPECT_NE(std::string(qk_context_error(context)).find(sentence), std::string::npos)
                << qk_context_error(context);
        }
        Held after(session, gru);
        EXPECT_EQ(after.ranges.samples, good.ranges.samples);
        EXPECT_EQ(after.ranges.max[QK_GRU_X], good.ranges.max[QK_GRU_X]);
        EXPECT_EQ(after.x_sum, good.x_sum);
    };
    const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    refused(QK_ERROR_ABI, "struct_size is 8", [](Held &h) { h.ranges.struct_size = 8; });
    refused(QK_ERROR_ARGUMENT, "reserved is 1", [](Held &h) { h.ranges.reserved = 1; });
    refused(QK_ERROR_ARGUMENT, "samples is 0", [](Held &h) { h.ranges.samples = 0; });
    refused(QK_ERROR_ARGUMENT, "samples is", [](Held &h) { h.ranges.samples = INT64_MAX; });
    refused(QK_ERROR_ARGUMENT, "of new_in are",
            [&](Held &h) { h.ranges.max[QK_GRU_NEW_IN] = nan; });
    refused(QK_ERROR_ARGUMENT, "of hh are", [&](Held &h) { h.ranges.min[QK_GRU_HH] = -infinity; });
    refused(QK_ERROR_ARGUMENT, "of x are 2 to 1",
            [](Held &h) { h.ranges.min[QK_GRU_X] = 2, h.ranges.max[QK_GRU_X] = 1; });
    refused(QK_ERROR_NULL, "x_sum is NULL", [](Held &h) { h.ranges.x_sum = nullptr; });
    refused(QK_ERROR_NULL, "h_sum is NULL", [](Held &h) { h.ranges.h_sum = nullptr; });
    refused(QK_ERROR_ARGUMENT, "h_sum[2] is nan", [&](Held &h) { h.h_sum[2] = nan; });

    qk_gru *const mse = session.create(net, {QK_GRU_W8A8, 0, QK_GRU_CALIBRATE_MSE});
    EXPECT_EQ(qk_gru_set_ranges(context, mse, &good.ranges), QK_ERROR_UNSUPPORTED);
    session.freeze(gru);
    EXPECT_EQ(qk_gru_get_ranges(context, gru, &good.ranges), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_set_ranges(context, gru, &good.ranges), QK_ERROR_STATE);
}

}  // namespace

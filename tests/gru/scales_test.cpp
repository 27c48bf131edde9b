// Scales that are far finer or coarser than usual: what a layer computes does not depend on the
// units of its inputs, and what cannot be represented is refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "network.hpp"
#include "owned_model.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;
using gru_test::Setting;

constexpr qk_gru_preset kPresets[] = {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16};

Network random_network(int c, int h, int steps, unsigned seed = 9) {
    Network net;
    net.c = c, net.h = h;
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto fill = [&](std::vector<float> &values, int count) {
        values.resize(static_cast<std::size_t>(count));
        for (float &value : values) value = uniform(random);
    };
    fill(net.w, 3 * h * c), fill(net.r, 3 * h * h), fill(net.bw, 3 * h), fill(net.br, 3 * h);
    fill(net.calib, steps * c), fill(net.test, steps * c);
    return net;
}

void scale(std::vector<float> &values, int exponent) {
    for (float &value : values) value = std::ldexp(value, exponent);
}

// The same layer, fed in units 2^-exponent times as large.
Network in_units(Network net, int exponent) {
    scale(net.calib, exponent), scale(net.test, exponent), scale(net.w, -exponent);
    return net;
}

std::int32_t shift_of(const qk_gru *gru, qk_gru_tensor which, std::int32_t channel = 0) {
    std::int32_t shift = 0, zero = 0;
    EXPECT_EQ(qk_gru_scale(gru, which, channel, &shift, &zero), QK_OK);
    return shift;
}

TEST(GruScales, UnitsOfTheInputChangeNothingButItsScale) {
    const Network net = random_network(6, 10, 120);
    for (const qk_gru_preset preset : kPresets)
        for (const qk_gru_calibration calibration :
             {QK_GRU_CALIBRATE_MIN_MAX, QK_GRU_CALIBRATE_MOVING, QK_GRU_CALIBRATE_MSE}) {
            Session session;
            const Setting setting = {preset, 0, calibration};
            qk_gru *const plain = session.frozen(net, setting);
            const std::vector<float> expected = session.run(plain, net.test, 1);
            EXPECT_GT(gru_test::sqnr_db(net, expected), 10);
            for (const int exponent : {-49, -20, -1, 20, 49}) {
                SCOPED_TRACE(exponent);
                const Network other = in_units(net, exponent);
                qk_gru *const gru = session.frozen(other, setting);
                EXPECT_EQ(session.run(gru, other.test, 1), expected);
                EXPECT_EQ(shift_of(gru, QK_GRU_X), shift_of(plain, QK_GRU_X) - exponent);
                EXPECT_EQ(shift_of(gru, QK_GRU_W, 7), shift_of(plain, QK_GRU_W, 7) + exponent);
                EXPECT_EQ(shift_of(gru, QK_GRU_IH), shift_of(plain, QK_GRU_IH));
            }
        }
}

// 16 bits of a weight of 2^-12 reach 2^-28, 32 bits of a bias of 1 reach 2^-31.
TEST(GruScales, WideTensorsKeepTheirLastBits) {
    const Network net = in_units(random_network(4, 6, 100), 12);
    Session session;
    qk_gru *const gru = session.create(net, {QK_GRU_W16A16});
    const qk_gru_quant wide = {32, 0, 1, 2};
    ASSERT_EQ(qk_gru_set_quant(gru, QK_GRU_BW, &wide), QK_OK);
    session.calibrate(gru, net.calib, 1, net.c);
    session.freeze(gru);
    EXPECT_GE(shift_of(gru, QK_GRU_W), 27);
    EXPECT_GE(shift_of(gru, QK_GRU_BW), 31);
}

// A dead row, far below what any gate can see, neither breaks the freeze nor drags others along.
TEST(GruScales, RowsThatVanishAreRowsOfZeros) {
    Network zeros = random_network(5, 7, 60);
    Network tiny = zeros;
    for (int k = 0; k < 5; ++k) {
        zeros.w[3 * 5 + k] = 0;
        tiny.w[3 * 5 + k] = 1e-38f;
    }
    for (int k = 0; k < 7; ++k) {
        zeros.r[9 * 7 + k] = 0;
        tiny.r[9 * 7 + k] = -1e-30f;
    }
    zeros.bw[20] = 0, tiny.bw[20] = 1e-40f;
    for (const qk_gru_preset preset : kPresets) {
        Session session;
        qk_gru *const gru = session.frozen(tiny, {preset});
        EXPECT_EQ(session.run(gru, tiny.test, 1),
                  session.run(session.frozen(zeros, {preset}), tiny.test, 1));
        // No shift that the vector kernels would leave to the generic one.
        for (int row = 0; row < 21; ++row)
            EXPECT_LE(
                shift_of(gru, QK_GRU_W, row) + shift_of(gru, QK_GRU_X) - shift_of(gru, QK_GRU_IH),
                31);
    }
}

TEST(GruScales, WhatNothingCanRepresentIsRefusedByName) {
    Network net = random_network(2, 3, 20);
    for (float &value : net.w) value *= 1e15f;
    for (float &value : net.calib) value *= 1e15f;
    Session session;
    qk_gru *const knots = session.create(net, {QK_GRU_W8A8});
    session.calibrate(knots, net.calib, 1, 2);
    EXPECT_EQ(qk_gru_freeze(session.context, knots), QK_ERROR_ARGUMENT);
    EXPECT_STREQ(qk_context_error(session.context),
                 "gru: the ranges cannot be frozen: update_in: a shift lies outside its range, or "
                 "a derived one outside -31..62");
}

TEST(GruScales, RefusedModelsNameTensorAndRow) {
    std::mt19937_64 random(4);
    gru_test::OwnedModel m(3, 2);
    gru_test::randomize(m, random, {3, 2, false});
    Session session;
    const auto refused = [&](const std::string &place, auto change) {
        const auto saved = m.model;
        const auto shifts = m.bw_shift;
        const auto weights = m.w_shift;
        const auto codes = m.br;
        change();
        qk_gru *out = nullptr;
        const qk_gru_model bad = m.view();
        EXPECT_EQ(qk_gru_create_from_model(session.context, &bad, &out), QK_ERROR_ARGUMENT);
        EXPECT_EQ(out, nullptr);
        EXPECT_EQ(std::string(qk_context_error(session.context)).find("model: " + place + ": "), 0u)
            << qk_context_error(session.context);
        m.model = saved, m.bw_shift = shifts, m.w_shift = weights, m.br = codes;
    };
    refused("hh", [&] { m.model.quant[QK_GRU_HH].bits = 17; });
    refused("reset_in", [&] { m.model.zero_point[QK_GRU_RESET_IN] = 1 << 17; });
    refused("x", [&] { m.model.shift[QK_GRU_X] = 127; });
    refused("bw, row 4", [&] { m.bw_shift[4] = 127; });
    refused("bw, row 3", [&] { m.bw_shift[3] = -60; });
    refused("w, row 5", [&] { m.w_shift[5] = m.bw_shift[5] = 100; });
    refused("br, row 2", [&] {
        m.model.quant[QK_GRU_BR].bits = 8;
        m.br = {0, 0, 128, 0, 0, 0};
    });
    refused("update_out", [&] { m.model.shift[QK_GRU_UPDATE_OUT] = 31; });
    refused("new_in", [&] { m.model.shift[QK_GRU_NEW_IN] = 90; });
    m.br_shift.assign(6, 9);
    const auto granularity = [&](int of_bw, std::vector<std::int8_t> shifts) {
        m.model.quant[QK_GRU_BW].granularity = of_bw;
        m.bw_shift = std::move(shifts);
    };
    refused("bw, row 4", [&] { granularity(0, {9, 9, 9, 9, 8, 9}); });
    refused("bw, row 3", [&] { granularity(1, {9, 9, 8, 7, 6, 6}); });
    for (const int of_bw : {0, 1, 2}) {
        granularity(of_bw, {9, 9, 9, 9, 9, 9});
        if (of_bw >= 1) m.bw_shift[0] = m.bw_shift[1] = 8;
        if (of_bw == 2) m.bw_shift[5] = 7;
        qk_gru *out = nullptr;
        const qk_gru_model good = m.view();
        EXPECT_EQ(qk_gru_create_from_model(session.context, &good, &out), QK_OK)
            << qk_context_error(session.context);
        qk_gru_destroy(out);
    }
}

}  // namespace

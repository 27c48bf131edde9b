// Counting codes that their types cut: the counts are those of hand and formula, and the results
// stay what they were.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "network.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

Network random_network(int c, int h, int steps, int batch) {
    Network net;
    net.c = c, net.h = h, net.calib_b = net.test_b = batch;
    std::mt19937 random(6);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto fill = [&](std::vector<float> &values, int count) {
        values.resize(static_cast<std::size_t>(count));
        for (float &value : values) value = uniform(random);
    };
    fill(net.w, 3 * h * c), fill(net.r, 3 * h * h), fill(net.bw, 3 * h), fill(net.br, 3 * h);
    fill(net.calib, steps * batch * c);
    net.test = net.calib;
    for (float &value : net.test) value *= 3;
    return net;
}

qk_gru_clipped clipped_of(const Session &session, const qk_gru_state *state) {
    qk_gru_clipped clipped = QK_GRU_CLIPPED_INIT;
    EXPECT_EQ(qk_gru_state_clipped(session.context, state, &clipped), QK_OK)
        << qk_context_error(session.context);
    return clipped;
}

// One input, one unit, weights that pass x on to every gate: each count by hand.
TEST(GruClipped, HandCountedCodes) {
    Network net;
    net.c = net.h = 1;
    net.w = {1, 1, 1}, net.r = {0, 0, 0}, net.bw = {0, 0, 0}, net.br = {0, 0, 0};
    net.calib = {1.5f, -1.5f, 0.25f};  // x, ih and gate inputs: shift 6, codes to +-2
    Session session;
    qk_gru *const gru = session.frozen(net, {QK_GRU_W8A8});
    qk_gru_state *const state = session.state(gru, 1);
    EXPECT_EQ(clipped_of(session, state).samples, 0);
    session.run(gru, state, {5, 5}, 1, 1);
    EXPECT_EQ(clipped_of(session, state).samples, 0);  // off by default

    ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, 1), QK_OK);
    // 7 and -9 are cut at x; what remains, about +-2, just fits ih and the gates. NaN is 0.
    session.run(gru, state, {7, -9, 0.5f, std::nanf("")}, 1, 4);
    qk_gru_clipped clipped = clipped_of(session, state);
    EXPECT_EQ(clipped.samples, 4);
    EXPECT_EQ(clipped.codes[QK_GRU_X], 2);
    for (const int which :
         {QK_GRU_W, QK_GRU_R, QK_GRU_BW, QK_GRU_BR, QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT, QK_GRU_HH})
        EXPECT_EQ(clipped.codes[which], 0) << which;

    // Counts go on, also after a reset of the state, until they are stopped; then they stay.
    ASSERT_EQ(qk_gru_state_reset(session.context, state), QK_OK);
    session.run(gru, state, {7}, 1, 1);
    EXPECT_EQ(clipped_of(session, state).codes[QK_GRU_X], 3);
    ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, 0), QK_OK);
    session.run(gru, state, {7}, 1, 1);
    EXPECT_EQ(clipped_of(session, state).codes[QK_GRU_X], 3);
    EXPECT_EQ(clipped_of(session, state).samples, 5);
    ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, 1), QK_OK);
    EXPECT_EQ(clipped_of(session, state).codes[QK_GRU_X], 0);
    EXPECT_EQ(clipped_of(session, state).samples, 0);
}

// A candidate whose seen range ends at 1/2 cuts tanh; one that saw all of it does not.
TEST(GruClipped, GateOutputsCountWhereTheirTypeEndsEarly) {
    Network net;
    net.c = net.h = 1;
    net.w = {1, 1, 1}, net.r = {0, 0, 0}, net.bw = {0, 0, 0}, net.br = {0, 0, 0};
    net.calib = {0.4f, -0.4f};
    Session session;
    qk_gru *const narrow = session.create(net, {QK_GRU_W8A8, QK_GRU_UNIFORM_TABLES});
    const qk_gru_quant wide = {16, 0, 0, 0};
    for (const int which : {QK_GRU_X, QK_GRU_IH, QK_GRU_HH, QK_GRU_NEW_IN})
        ASSERT_EQ(qk_gru_set_quant(narrow, which, &wide), QK_OK);
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    session.calibrate(narrow, net.calib, 1, 1);
    ASSERT_EQ(qk_gru_get_ranges(session.context, narrow, &ranges), QK_OK);
    for (const int which : {QK_GRU_X, QK_GRU_IH, QK_GRU_NEW_IN})
        ranges.min[which] = -4, ranges.max[which] = 3.99;
    ASSERT_EQ(qk_gru_set_ranges(session.context, narrow, &ranges), QK_OK);
    session.freeze(narrow);
    qk_gru_state *const state = session.state(narrow, 1);
    ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, 1), QK_OK);
    session.run(narrow, state, {3, -3, 0.1f}, 1, 3);
    qk_gru_clipped clipped = clipped_of(session, state);
    EXPECT_EQ(clipped.codes[QK_GRU_NEW_OUT], 2);
    EXPECT_EQ(clipped.codes[QK_GRU_NEW_IN], 0);
    EXPECT_EQ(clipped.codes[QK_GRU_X], 0);

    net.calib = {8, -8};  // tanh saturates: 127/128 and 1 - 2^-7 are its ends
    qk_gru *const whole = session.frozen(net, {QK_GRU_W8A8, QK_GRU_UNIFORM_TABLES});
    qk_gru_state *const other = session.state(whole, 1);
    ASSERT_EQ(qk_gru_state_count_clipped(session.context, other, 1), QK_OK);
    session.run(whole, other, {7, -7, 7}, 1, 3);
    clipped = clipped_of(session, other);
    for (const int which : {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT, QK_GRU_NEW_OUT})
        EXPECT_EQ(clipped.codes[which], 0);
}

// Whatever is counted, by however many threads: the bits of the fast kernels, and x's counts as the
// codes say.
TEST(GruClipped, CountingChangesNoBit) {
    const Network net = random_network(9, 16, 50, 3);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        Session session, threads(3);
        qk_gru *const gru = session.frozen(net, {preset});
        const std::vector<float> expected = session.run(gru, net.test, 3);
        qk_gru_state *const state = session.state(gru, 3);
        ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, 1), QK_OK);
        EXPECT_EQ(session.run(gru, state, net.test, 3, 7), expected);
        const qk_gru_clipped clipped = clipped_of(session, state);
        std::int32_t shift = 0, zero = 0;
        ASSERT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &shift, &zero), QK_OK);
        qk_gru_model model;
        model.struct_size = sizeof(model);
        ASSERT_EQ(qk_gru_describe(gru, &model), QK_OK);
        const double end = std::ldexp(1.0, model.quant[QK_GRU_X].bits - 1);
        std::int64_t cut = 0;
        for (const float value : net.test) {
            const double code = std::rint(std::ldexp(value, shift)) + zero;
            cut += code < -end || code > end - 1;
        }
        EXPECT_GT(cut, 0);
        EXPECT_EQ(clipped.codes[QK_GRU_X], cut);
        EXPECT_GT(clipped.codes[QK_GRU_IH] + clipped.codes[QK_GRU_NEW_IN], 0);
        EXPECT_EQ(clipped.samples, 150);

        qk_gru *const again = threads.frozen(net, {preset});
        qk_gru_state *const shared = threads.state(again, 3);
        ASSERT_EQ(qk_gru_state_count_clipped(threads.context, shared, 1), QK_OK);
        EXPECT_EQ(threads.run(again, shared, net.test, 3, 50), expected);
        const qk_gru_clipped same = clipped_of(threads, shared);
        for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which)
            EXPECT_EQ(same.codes[which], clipped.codes[which]) << which;
    }
}

TEST(GruClipped, GatesAreWrittenWhileCounting) {
    const Network net = random_network(3, 4, 5, 1);
    Session session;
    qk_gru *const gru = session.frozen(net, {QK_GRU_W8H16});
    std::vector<float> x(net.test), y(20), gates(80), plain_y(20), plain(80);
    qk_tensor *const tx = session.wrap(x.data(), QK_FORMAT_F32, 5, 1, 3);
    for (const bool counts : {false, true}) {
        qk_gru_state *const state = session.state(gru, 1);
        ASSERT_EQ(qk_gru_state_count_clipped(session.context, state, counts), QK_OK);
        auto &to_y = counts ? y : plain_y;
        auto &to_gates = counts ? gates : plain;
        qk_tensor *const ty = session.wrap(to_y.data(), QK_FORMAT_F32, 5, 1, 4);
        qk_tensor *const tg = session.wrap(to_gates.data(), QK_FORMAT_F32, 5, 1, 16);
        ASSERT_EQ(qk_gru_run_gates(session.context, gru, state, tx, ty, tg), QK_OK);
        qk_tensor_destroy(ty);
        qk_tensor_destroy(tg);
    }
    qk_tensor_destroy(tx);
    EXPECT_EQ(y, plain_y);
    EXPECT_EQ(gates, plain);
}

TEST(GruClipped, RefusalsAndSizesOfTheStruct) {
    Session session;
    qk_gru_state *const state =
        session.state(session.frozen(random_network(1, 1, 4, 1), {QK_GRU_W8A8}), 1);
    qk_gru_clipped clipped = QK_GRU_CLIPPED_INIT;
    EXPECT_EQ(qk_gru_state_count_clipped(session.context, state, 2), QK_ERROR_ARGUMENT);
    EXPECT_STREQ(qk_context_error(session.context), "on: is 2, accepted are 0 and 1");
    EXPECT_EQ(qk_gru_state_count_clipped(session.context, nullptr, 1), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_state_clipped(session.context, nullptr, &clipped), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_state_clipped(session.context, state, nullptr), QK_ERROR_NULL);
    clipped.struct_size = 0;
    EXPECT_EQ(qk_gru_state_clipped(session.context, state, &clipped), QK_ERROR_ABI);
    clipped.struct_size = 16;
    clipped.codes[0] = 77;
    EXPECT_EQ(qk_gru_state_clipped(session.context, state, &clipped), QK_OK);
    EXPECT_EQ(clipped.codes[0], 77);  // beyond the caller's 16 bytes
}

}  // namespace

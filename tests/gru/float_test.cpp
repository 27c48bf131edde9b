// The float GRU of calibration: one result, whatever computes it and however it is cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/backend.hpp"
#include "harness/only.hpp"
#include "network.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

std::vector<float> random_floats(std::size_t count, std::mt19937 &random, float reach = 1) {
    std::uniform_real_distribution<float> uniform(-reach, reach);
    std::vector<float> values(count);
    for (float &value : values) value = uniform(random);
    return values;
}

qk::Launch one_thread() {
    qk::Launch launch = {};
    launch.parallel.concurrency = 1;
    return launch;
}

// Instruction sets up to the processor's, one more at a time.
template <class Args, class Run>
void expect_equal_kernels(const qk::KernelList<Args> &list, const Args &args, const Run &results) {
    const qk::Device device = qk::device_at(*qk::find_backend(QK_DEVICE_CPU), 0);
    std::vector<float> expected;
    int ran = 0;
    for (int i = list.count; i-- > 0;) {  // the portable one first
        if (!list.kernels[i]->can_run(args, device)) continue;
        const bool is_last = i == list.count - 1;  // with which the others are compared
        if (!harness::wanted("cpu", list.kernels[i]->name) && !is_last) continue;
        EXPECT_EQ(list.kernels[i]->run(args, one_thread()), QK_OK);
        const std::vector<float> found = results();
        if (ran++ == 0) expected = found;
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), 4 * found.size()), 0)
            << list.kernels[i]->name;
    }
    EXPECT_GE(ran, 1);
}

TEST(GruFloat, EveryKernelGivesTheSameProducts) {
    std::mt19937 random(1);
    for (const int rows : {1, 2, 3, 4, 5, 9})
        for (const int count : {1, 16, 127, 128, 129, 300})
            for (const int outputs : {3, 15, 16, 48, 63, 129, 192}) {
                const auto w = random_floats(std::size_t(outputs * count), random);
                const auto x = random_floats(std::size_t(rows * count), random);
                const auto padded = std::size_t(qk::gru::panels_rows(outputs));
                std::vector<float> panels(padded * std::size_t(count)), bias(padded);
                const auto b = random_floats(std::size_t(outputs), random);
                std::copy(b.begin(), b.end(), bias.begin());
                qk::gru::fill_panels(w.data(), outputs, count, panels.data());
                std::vector<float> y(std::size_t(rows * outputs) + 1, 7);
                const qk::FloatProductArgs args = {panels.data(), bias.data(), x.data(), rows,
                                                   count,         outputs,     y.data()};
                expect_equal_kernels(qk::find_backend(QK_DEVICE_CPU)->float_product, args,
                                     [&] { return y; });
                EXPECT_EQ(y.back(), 7);
                // The order that docs/gru.md states.
                for (int i = 0; i < rows; ++i)
                    for (int j = 0; j < outputs; ++j) {
                        volatile float sum = 0;
                        for (int first = 0; first < count; first += 128) {
                            volatile float block = 0;
                            for (int k = first; k < std::min(first + 128, count); ++k) {
                                volatile float product =
                                    w[std::size_t(j * count + k)] * x[std::size_t(i * count + k)];
                                block = block + product;
                            }
                            sum = sum + block;
                        }
                        ASSERT_EQ(y[std::size_t(i * outputs + j)], sum + b[std::size_t(j)]);
                    }
            }
}

TEST(GruFloat, EveryKernelGivesTheSameGatesNearTheFunctions) {
    std::mt19937 random(2);
    for (const int units : {1, 3, 4, 7, 8, 15, 16, 17, 40})
        for (const float reach : {1e-6f, 0.5f, 4.0f, 30.0f, 1e30f}) {
            const std::size_t states = std::size_t(2 * units);
            const auto ih = random_floats(3 * states, random, reach);
            const auto hh = random_floats(3 * states, random, reach);
            const auto h = random_floats(states, random);
            std::vector<float> out(7 * states + 1, 7);
            float *const o = out.data();
            const qk::FloatGatesArgs args = {2,
                                             units,
                                             ih.data(),
                                             hh.data(),
                                             h.data(),
                                             o,
                                             o + states,
                                             o + 2 * states,
                                             o + 3 * states,
                                             o + 4 * states,
                                             o + 5 * states,
                                             o + 6 * states};
            expect_equal_kernels(qk::find_backend(QK_DEVICE_CPU)->float_gates, args,
                                 [&] { return out; });
            EXPECT_EQ(out.back(), 7);
            for (std::size_t i = 0; i < states; ++i) {
                const double u_in = out[i], r_in = out[2 * states + i], n_in = out[4 * states + i];
                EXPECT_NEAR(out[states + i], 1 / (1 + std::exp(-u_in)), 2e-7);
                EXPECT_NEAR(out[3 * states + i], 1 / (1 + std::exp(-r_in)), 2e-7);
                const double n = std::tanh(n_in);
                EXPECT_NEAR(out[5 * states + i], n, std::fmin(2e-7, 4e-7 * std::fabs(n)));
                EXPECT_LE(std::fabs(out[5 * states + i]), 1);
            }
        }
}

std::vector<float> run_float(Session &session, const qk_gru *gru, const std::vector<float> &x,
                             int batch, int c, int h, const float *h0 = nullptr) {
    std::vector<float> in(x), y(x.size() / std::size_t(c) * std::size_t(h));
    const int steps = int(x.size()) / batch / c;
    qk_tensor *const tx = session.wrap(in.data(), QK_FORMAT_F32, steps, batch, c);
    qk_tensor *const ty = session.wrap(y.data(), QK_FORMAT_F32, steps, batch, h);
    EXPECT_EQ(qk_gru_run_float(session.context, gru, tx, h0, ty), QK_OK)
        << qk_context_error(session.context);
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
    return y;
}

// 96 units of 10 sequences are enough for threads to share a step.
TEST(GruFloat, ThreadsTimeAndBatchChangeNoBit) {
    constexpr int c = 40, h = 96, t = 21, b = 10;
    std::mt19937 random(3);
    Network net;
    net.c = c, net.h = h;
    net.w = random_floats(3 * h * c, random, 0.2f), net.r = random_floats(3 * h * h, random, 0.1f);
    net.bw = random_floats(3 * h, random), net.br = random_floats(3 * h, random);
    net.calib = random_floats(t * b * c, random);
    Session session, threads(4);
    qk_gru *const gru = session.create(net, {}), *const shared = threads.create(net, {});
    const auto whole = run_float(session, gru, net.calib, b, c, h);
    EXPECT_EQ(run_float(threads, shared, net.calib, b, c, h), whole);
    std::vector<float> pieces, state(b * h, 0.0f);
    for (int at = 0, steps = 1; at < t; at += steps, steps = std::min(steps + 1, t - at)) {
        const auto from = net.calib.begin() + at * b * c;
        const auto y = run_float(session, gru, {from, from + steps * b * c}, b, c, h, state.data());
        pieces.insert(pieces.end(), y.begin(), y.end());
        state.assign(y.end() - b * h, y.end());
    }
    EXPECT_EQ(pieces, whole);
    for (int sequence = 0; sequence < b; ++sequence) {
        std::vector<float> x, expected;
        for (int step = 0; step < t; ++step) {
            const auto row = net.calib.begin() + (step * b + sequence) * c;
            x.insert(x.end(), row, row + c);
            const auto y = whole.begin() + (step * b + sequence) * h;
            expected.insert(expected.end(), y, y + h);
        }
        EXPECT_EQ(run_float(session, gru, x, 1, c, h), expected);
    }
    // So what calibration sees, and what a freeze makes of it, are the same as well.
    for (const auto calibration : {QK_GRU_CALIBRATE_MIN_MAX, QK_GRU_CALIBRATE_MSE}) {
        qk_gru *const a = session.create(net, {QK_GRU_W8H16, 0, calibration});
        qk_gru *const d = threads.create(net, {QK_GRU_W8H16, 0, calibration});
        session.calibrate(a, net.calib, b, c), threads.calibrate(d, net.calib, b, c);
        session.freeze(a), threads.freeze(d);
        EXPECT_EQ(session.save(a), threads.save(d));
    }
}

}  // namespace

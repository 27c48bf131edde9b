// The GRU behind qk.h: its life, its refusals, its formats, false files, memory that runs out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "gru/image.hpp"
#include "harness/aligned.hpp"
#include "network.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

Network random_network(int c, int h, int steps, int batch, unsigned seed = 5) {
    Network net;
    net.c = c, net.h = h, net.calib_b = net.test_b = batch;
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto fill = [&](std::vector<float> &v, int count) {
        v.resize(static_cast<std::size_t>(count));
        for (float &value : v) value = uniform(random);
    };
    fill(net.w, 3 * h * c), fill(net.r, 3 * h * h), fill(net.bw, 3 * h), fill(net.br, 3 * h);
    fill(net.calib, steps * batch * c), fill(net.test, steps * batch * c);
    return net;
}

std::string sentence(const Session &session) { return qk_context_error(session.context); }

TEST(GruApi, EveryPresetFollowsTheFloatGru) {
    Network net = random_network(6, 10, 200, 2);
    const struct {
        qk_gru_preset preset;
        double least_db;  // far below what these reach; a broken path gives about 0
    } rows[] = {{QK_GRU_W8A8, 15}, {QK_GRU_W8H16, 25}, {QK_GRU_W8A16, 25}, {QK_GRU_W16A16, 25}};
    for (const auto &row : rows) {
        Session session;
        std::vector<float> h = session.run(session.frozen(net, {row.preset}), net.test, 2);
        EXPECT_GT(gru_test::sqnr_db(net, h), row.least_db);
    }
}

TEST(GruApi, FloatRunIsTheFloatGru) {
    Network net = random_network(6, 10, 50, 3);
    Session session;
    qk_gru *gru = session.create(net, {});
    std::vector<float> x(net.test), y(50 * 3 * 10), h0(3 * 10, 0.25f);
    qk_tensor *tx = session.wrap(x.data(), QK_FORMAT_F32, 50, 3, 6);
    qk_tensor *ty = session.wrap(y.data(), QK_FORMAT_F32, 50, 3, 10);
    ASSERT_EQ(qk_gru_run_float(session.context, gru, tx, nullptr, ty), QK_OK) << sentence(session);
    EXPECT_GT(gru_test::sqnr_db(net, y), 120);  // f32 against double
    ASSERT_EQ(qk_gru_run_float(session.context, gru, tx, h0.data(), ty), QK_OK);
    EXPECT_LT(gru_test::sqnr_db(net, y), 60);  // another start
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
}

TEST(GruApi, IntegersInAndOutAreTheSameCodes) {
    Network net = random_network(4, 5, 40, 2);
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W16A16}) {
        Session session;
        qk_gru *gru = session.frozen(net, {preset});
        qk_gru_model model;
        model.struct_size = sizeof(model);
        ASSERT_EQ(qk_gru_describe(gru, &model), QK_OK);
        std::vector<float> y = session.run(gru, net.test, 2);
        std::vector<std::int64_t> codes, state(10, model.zero_point[QK_GRU_H]);
        for (float value : net.test) {
            double code =
                std::rint(std::ldexp(value, model.shift[QK_GRU_X])) + model.zero_point[QK_GRU_X];
            double half = std::ldexp(1.0, model.quant[QK_GRU_X].bits - 1);
            codes.push_back(static_cast<std::int64_t>(std::fmin(half - 1, std::fmax(-half, code))));
        }
        reference::GruTrace trace =
            reference::run_gru(gru_test::reference_model(model), codes, state, 40, 2);
        bool x8 = model.quant[QK_GRU_X].bits <= 8, h8 = model.quant[QK_GRU_H].bits <= 8;
        std::vector<std::int8_t> x_bytes(codes.begin(), codes.end()), y_bytes(400);
        std::vector<std::int16_t> x_words(codes.begin(), codes.end()), y_words(400);
        qk_tensor *tx = x8 ? session.wrap(x_bytes.data(), QK_FORMAT_I8, 40, 2, 4)
                           : session.wrap(x_words.data(), QK_FORMAT_I16, 40, 2, 4);
        qk_tensor *ty = h8 ? session.wrap(y_bytes.data(), QK_FORMAT_I8, 40, 2, 5)
                           : session.wrap(y_words.data(), QK_FORMAT_I16, 40, 2, 5);
        std::vector<float> v(40 * 2 * 20);
        qk_tensor *tv = session.wrap(v.data(), QK_FORMAT_F32, 40, 2, 20);
        qk_gru_state *fresh = session.state(gru, 2);
        ASSERT_EQ(qk_gru_run_gates(session.context, gru, fresh, tx, ty, tv), QK_OK)
            << sentence(session);
        const int outs[] = {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT, QK_GRU_NEW_OUT, QK_GRU_HH};
        for (int i = 0; i < 400; ++i) {
            std::int64_t code = h8 ? y_bytes[i] : y_words[i];
            ASSERT_EQ(code, trace.h[i]);
            ASSERT_EQ(y[i], std::ldexp(code - model.zero_point[QK_GRU_H], -model.shift[QK_GRU_H]));
        }
        for (int i = 0; i < 1600; ++i) {
            int which = outs[i % 20 / 5];
            ASSERT_EQ(v[i],
                      std::ldexp(trace.gates[i] - model.zero_point[which], -model.shift[which]));
        }
        for (qk_tensor *tensor : {tx, ty, tv}) qk_tensor_destroy(tensor);
    }
}

TEST(GruApi, BorderTakesNanInfinitiesAndStrayCodes) {
    Network net = random_network(1, 1, 20, 1);
    Session session;
    qk_gru *gru = session.frozen(net, {});
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    EXPECT_EQ(session.run(gru, {nan}, 1), session.run(gru, {0.0f}, 1));
    EXPECT_EQ(session.run(gru, {inf}, 1), session.run(gru, {1e30f}, 1));
    EXPECT_EQ(session.run(gru, {-inf}, 1), session.run(gru, {-1e30f}, 1));
    qk_gru *narrow = session.create(net, {});
    const qk_gru_quant four = {4, 0, 0, 0};
    ASSERT_EQ(qk_gru_set_quant(narrow, QK_GRU_X, &four), QK_OK);
    session.calibrate(narrow, net.calib, 1, 1);
    session.freeze(narrow);
    std::int8_t x[] = {100, 7}, y[] = {0, 0};
    for (int i = 0; i < 2; ++i) {
        qk_tensor *tx = session.wrap(x + i, QK_FORMAT_I8, 1, 1, 1);
        qk_tensor *ty = session.wrap(y + i, QK_FORMAT_I8, 1, 1, 1);
        EXPECT_EQ(qk_gru_run(session.context, narrow, session.state(narrow, 1), tx, ty), QK_OK);
        qk_tensor_destroy(tx);
        qk_tensor_destroy(ty);
    }
    EXPECT_EQ(y[0], y[1]);  // 100 is not a 4-bit code: taken as 7
}

TEST(GruApi, SaveLoadAndCreateFromModelGiveTheSameBits) {
    Network net = random_network(6, 9, 60, 2);
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        Session session;
        qk_gru *gru = session.frozen(net, {preset});
        std::vector<float> h = session.run(gru, net.test, 2);
        std::vector<char> file = session.save(gru);
        std::vector<char> shifted(file.size() + 1);  // any address will do
        std::memcpy(shifted.data() + 1, file.data(), file.size());
        qk_gru *loaded = nullptr, *copied = nullptr;
        ASSERT_EQ(qk_gru_load(session.context, shifted.data() + 1, file.size(), &loaded), QK_OK)
            << sentence(session);
        EXPECT_EQ(session.save(loaded), file);
        EXPECT_EQ(session.run(loaded, net.test, 2), h);
        qk_gru_model model;
        model.struct_size = sizeof(model);
        ASSERT_EQ(qk_gru_describe(gru, &model), QK_OK);
        ASSERT_EQ(qk_gru_create_from_model(session.context, &model, &copied), QK_OK);
        EXPECT_EQ(session.save(copied), file);
        qk_gru_destroy(loaded);  // its state lives on in the session and keeps it alive
        qk_gru_destroy(copied);
    }
}

TEST(GruApi, EveryDamagedByteAndEveryCutIsRefused) {
    Network net = random_network(2, 2, 20, 1);
    Session session;
    std::vector<char> file = session.save(session.frozen(net, {}));
    qk_gru *out = nullptr;
    for (std::size_t i = 0; i < file.size(); ++i) {
        file[i] ^= 1 << (i % 8);
        ASSERT_EQ(qk_gru_load(session.context, file.data(), file.size(), &out), QK_ERROR_CORRUPT)
            << "byte " << i;
        file[i] ^= 1 << (i % 8);
        ASSERT_EQ(qk_gru_load(session.context, file.data(), i, &out), QK_ERROR_CORRUPT);
    }
    EXPECT_EQ(out, nullptr);
    EXPECT_NE(sentence(session), "");
}

TEST(GruApi, ModelsThatCannotBeProvenAreRefused) {
    std::mt19937_64 random(4);
    gru_test::OwnedModel m(3, 2);
    Session session;
    qk_gru *out = nullptr;
    gru_test::randomize(m, random, {3, 2, false});
    const qk_gru_model good = m.view();
    ASSERT_EQ(qk_gru_create_from_model(session.context, &good, &out), QK_OK) << sentence(session);
    qk_gru_destroy(out);
    auto refused = [&](qk_status code, auto change) {
        qk_gru_model bad = good;
        change(bad);
        out = nullptr;
        EXPECT_EQ(qk_gru_create_from_model(session.context, &bad, &out), code);
        EXPECT_EQ(out, nullptr);
    };
    refused(QK_ERROR_ABI, [](qk_gru_model &b) { b.struct_size -= 8; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.flags = 2; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.input_size = 0; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.hidden_size = 65536; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.quant[QK_GRU_H].bits = 17; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.quant[QK_GRU_X].is_unsigned = 1; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.quant[QK_GRU_W].is_symmetric = 0; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.quant[QK_GRU_IH].granularity = 1; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.zero_point[QK_GRU_X] = 40000; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.zero_point[QK_GRU_W] = 1; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.shift[QK_GRU_UPDATE_OUT] = -1; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.shift[QK_GRU_UPDATE_OUT] = 72; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.shift[QK_GRU_IH] = 120; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.h_view_shift = 9; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.update.count = 0; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.reset.kind = 3; });
    refused(QK_ERROR_ARGUMENT, [](qk_gru_model &b) { b.candidate.shift = 63; });
    refused(QK_ERROR_NULL, [](qk_gru_model &b) { b.w = nullptr; });
    refused(QK_ERROR_NULL, [](qk_gru_model &b) { b.br_shift = nullptr; });
    const std::int32_t huge[] = {INT32_MAX, 0, 0, 0, 0, 0};
    if (good.quant[QK_GRU_BW].bits < 32)
        refused(QK_ERROR_ARGUMENT, [&](qk_gru_model &b) { b.bw = huge; });
}

TEST(GruApi, RefusalsNameTheirReasonAndChangeNothing) {
    Network net = random_network(3, 4, 10, 2);
    Session session, other;
    qk_context *context = session.context;
    qk_gru *gru = session.create(net, {});
    std::vector<float> x(10 * 2 * 4, 0.5f), y(10 * 2 * 4, 7.0f);
    qk_tensor *tx = session.wrap(x.data(), QK_FORMAT_F32, 10, 2, 3);
    qk_tensor *ty = session.wrap(y.data(), QK_FORMAT_F32, 10, 2, 4);
    qk_tensor *wide = session.wrap(x.data(), QK_FORMAT_F32, 10, 2, 4);
    qk_tensor *short_y = session.wrap(y.data(), QK_FORMAT_F32, 9, 2, 4);
    qk_tensor *codes = session.wrap(y.data(), QK_FORMAT_I16, 10, 2, 4);
    qk_tensor *over_x = session.wrap(x.data(), QK_FORMAT_F32, 10, 2, 4);
    qk_gru_state *state = nullptr;
    EXPECT_EQ(qk_gru_freeze(context, gru), QK_ERROR_STATE);
    EXPECT_EQ(sentence(session), "gru: was not calibrated, call qk_gru_calibrate first");
    EXPECT_EQ(qk_gru_state_create(context, gru, 2, &state), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_run(context, gru, nullptr, tx, ty), QK_ERROR_STATE);
    std::size_t bytes = 0;
    EXPECT_EQ(qk_gru_save(gru, nullptr, 0, &bytes), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_calibrate(context, gru, wide, nullptr), QK_ERROR_SHAPE);
    EXPECT_EQ(sentence(session), "x: c is 4, the GRU has 3");
    x[7] = std::nanf("");
    EXPECT_EQ(qk_gru_calibrate(context, gru, tx, nullptr), QK_ERROR_ARGUMENT);
    x[7] = 0.5f;
    EXPECT_EQ(qk_gru_freeze(context, gru), QK_ERROR_STATE);  // the refused call left no trace
    const qk_gru_quant three_bits = {3, 0, 0, 0};
    EXPECT_EQ(qk_gru_set_quant(gru, QK_GRU_X, &three_bits), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_set_quant(gru, 99, &three_bits), QK_ERROR_ARGUMENT);
    ASSERT_EQ(qk_gru_calibrate(context, gru, tx, nullptr), QK_OK);
    session.freeze(gru);
    EXPECT_EQ(qk_gru_calibrate(context, gru, tx, nullptr), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_freeze(context, gru), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_state_create(context, gru, 0, &state), QK_ERROR_ARGUMENT);
    state = session.state(gru, 2);
    EXPECT_EQ(qk_gru_run(context, gru, session.state(gru, 1), tx, ty), QK_ERROR_SHAPE);
    EXPECT_EQ(sentence(session), "x: has 2 sequences, the state 1");
    EXPECT_EQ(qk_gru_run(context, gru, state, wide, ty), QK_ERROR_SHAPE);
    EXPECT_EQ(qk_gru_run(context, gru, state, tx, short_y), QK_ERROR_SHAPE);
    EXPECT_EQ(sentence(session), "y: must be [10,2,4]");
    EXPECT_EQ(qk_gru_run(context, gru, state, tx, codes), QK_ERROR_FORMAT);
    EXPECT_EQ(sentence(session), "y: is i16, accepted are f32 and i8");
    EXPECT_EQ(qk_gru_run(context, gru, state, tx, over_x), QK_ERROR_STATE);
    qk_gru *twin = session.frozen(net, {});
    EXPECT_EQ(qk_gru_run(context, twin, state, tx, ty), QK_ERROR_STATE);
    EXPECT_EQ(sentence(session), "state: belongs to another GRU");
    for (float value : y) EXPECT_EQ(value, 7.0f);
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    qk_gru *out = nullptr;
    EXPECT_EQ(qk_gru_create(context, &config, x.data(), x.data(), nullptr, nullptr, &out),
              QK_ERROR_SHAPE);
    config.input_size = config.hidden_size = 1;
    config.preset = 9;
    EXPECT_EQ(qk_gru_create(context, &config, x.data(), x.data(), nullptr, nullptr, &out),
              QK_ERROR_ARGUMENT);
    config.struct_size = 4;
    EXPECT_EQ(qk_gru_create(context, &config, x.data(), x.data(), nullptr, nullptr, &out),
              QK_ERROR_ABI);
    char small[16];
    EXPECT_EQ(qk_gru_save(gru, small, sizeof(small), &bytes), QK_ERROR_BUFFER_SIZE);
    EXPECT_EQ(qk_gru_create(context, nullptr, x.data(), x.data(), nullptr, nullptr, &out),
              QK_ERROR_NULL);
    for (qk_tensor *t : {tx, ty, wide, short_y, codes, over_x}) qk_tensor_destroy(t);
}

// Handles may go in any order.
TEST(GruApi, StatesOutliveTheHandleOfTheirGruAndContext) {
    Network net = random_network(3, 4, 10, 1);
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK);
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = 3, config.hidden_size = 4;
    qk_gru *gru = nullptr;
    qk_gru_state *state = nullptr;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2, desc.shape[0] = 10, desc.shape[1] = 3;
    void *planes[] = {net.calib.data()};
    qk_tensor *x = nullptr;
    ASSERT_EQ(qk_tensor_wrap(context, &desc, planes, 1, &x), QK_OK);
    ASSERT_EQ(qk_gru_create(context, &config, net.w.data(), net.r.data(), nullptr, nullptr, &gru),
              QK_OK);
    ASSERT_EQ(qk_gru_calibrate(context, gru, x, nullptr), QK_OK);
    ASSERT_EQ(qk_gru_freeze(context, gru), QK_OK);
    ASSERT_EQ(qk_gru_state_create(context, gru, 1, &state), QK_OK);
    std::size_t bytes = 1;
    EXPECT_EQ(qk_gru_workspace(context, gru, 1, 100, &bytes), QK_OK);
    EXPECT_EQ(bytes, 0u);
    qk_context_destroy(context);
    qk_tensor_destroy(x);
    qk_gru_destroy(gru);
    qk_gru_state_destroy(state);
    qk_gru_destroy(nullptr);
    qk_gru_state_destroy(nullptr);
}

// Memory that ends at the n-th request: every n gives a clean failure, and nothing leaks.
struct Budget {
    int left, live;
};

void *budget_allocate(void *user, std::size_t size, std::size_t align) {
    Budget &budget = *static_cast<Budget *>(user);
    if (budget.left-- <= 0) return nullptr;
    void *const pointer = harness::take_aligned(size, align);
    if (pointer != nullptr) ++budget.live;
    return pointer;
}

void budget_release(void *user, void *pointer) {
    --static_cast<Budget *>(user)->live;
    harness::give_aligned(pointer);
}

qk_status whole_life(qk_context *context, const Network &net) {
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = net.c, config.hidden_size = net.h;
    config.preset = QK_GRU_W8H16, config.calibration = QK_GRU_CALIBRATE_MSE;
    qk_gru *gru = nullptr, *loaded = nullptr;
    qk_gru_state *state = nullptr;
    qk_tensor *x = nullptr, *y = nullptr;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2, desc.shape[0] = 10, desc.shape[1] = net.c;
    std::vector<float> input(net.calib), output(10u * net.h);
    void *x_planes[] = {input.data()}, *y_planes[] = {output.data()};
    std::size_t bytes = 0;
    std::vector<char> file;
    qk_status status = qk_tensor_wrap(context, &desc, x_planes, 1, &x);
    desc.shape[1] = net.h;
    if (status == QK_OK) status = qk_tensor_wrap(context, &desc, y_planes, 1, &y);
    if (status == QK_OK)
        status =
            qk_gru_create(context, &config, net.w.data(), net.r.data(), nullptr, nullptr, &gru);
    if (status == QK_OK) status = qk_gru_run_float(context, gru, x, nullptr, y);
    if (status == QK_OK) status = qk_gru_calibrate(context, gru, x, nullptr);
    if (status == QK_OK) status = qk_gru_freeze(context, gru);
    if (status == QK_OK) status = qk_gru_save(gru, nullptr, 0, &bytes);
    file.resize(bytes);
    if (status == QK_OK) status = qk_gru_save(gru, file.data(), bytes, &bytes);
    if (status == QK_OK) status = qk_gru_load(context, file.data(), bytes, &loaded);
    if (status == QK_OK) status = qk_gru_state_create(context, loaded, 1, &state);
    if (status == QK_OK) status = qk_gru_run(context, loaded, state, x, y);
    qk_gru_destroy(gru);
    qk_gru_destroy(loaded);
    qk_gru_state_destroy(state);
    qk_tensor_destroy(x);
    qk_tensor_destroy(y);
    return status;
}

TEST(GruApi, EveryFailingAllocationIsReportedAndNothingLeaks) {
    Network net = random_network(3, 4, 10, 1);
    qk_status status = QK_ERROR_MEMORY;
    int n = 0;
    for (; status != QK_OK && n < 100; ++n) {
        Budget budget = {1 << 30, 0};
        qk_allocator allocator = {budget_allocate, budget_release, &budget};
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 1, options.allocator = &allocator;
        qk_context *context = nullptr;
        ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
        budget.left = n;
        status = whole_life(context, net);
        EXPECT_TRUE(status == QK_OK || status == QK_ERROR_MEMORY);
        qk_context_destroy(context);
        EXPECT_EQ(budget.live, 0) << "after " << n << " allocations";
    }
    EXPECT_EQ(status, QK_OK);
    EXPECT_GT(n, 10);
}

}  // namespace

// Every GRU call x every class of bad argument: the status, a sentence that names the argument, and
// nothing changed.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "network.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

constexpr int kC = 3, kH = 4, kT = 5, kB = 2;

Network small_network() {
    Network net;
    net.c = kC, net.h = kH, net.calib_b = net.test_b = kB;
    net.w.assign(3 * kH * kC, 0.25f), net.r.assign(3 * kH * kH, -0.125f);
    net.bw.assign(3 * kH, 0.5f), net.br.assign(3 * kH, -0.5f);
    for (int i = 0; i < kT * kB * kC; ++i) net.calib.push_back(float(i % 7) - 3);
    return net;
}

// A world of good arguments; each case replaces one of them.
class GruArguments : public testing::Test {
  protected:
    void SetUp() override {
        gru = session.frozen(net, {});
        trained = session.create(net, {});
        twin = session.frozen(net, {});
        state = session.state(gru, kB);
        x = wrap(values, QK_FORMAT_F32, kT, kB, kC);
        y = wrap(results, QK_FORMAT_F32, kT, kB, kH);
        gates = wrap(gate_values, QK_FORMAT_F32, kT, kB, 4 * kH);
        std::memcpy(values, net.calib.data(), sizeof(float) * net.calib.size());
        before = session.save(gru);
    }
    void TearDown() override {
        for (qk_tensor *tensor : tensors) qk_tensor_destroy(tensor);
    }

    qk_tensor *wrap(float *data, qk_format format, int t, int b, int columns) {
        tensors.push_back(session.wrap(data, format, t, b, columns));
        return tensors.back();
    }
    qk_tensor *read_only(float *data, int columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.rank = 3, desc.shape[0] = kT, desc.shape[1] = kB, desc.shape[2] = columns;
        desc.flags = QK_TENSOR_READ_ONLY;
        void *planes[] = {data};
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap(session.context, &desc, planes, 1, &tensor), QK_OK);
        tensors.push_back(tensor);
        return tensor;
    }

    // The call is refused for `argument`; outputs, state and model stay, and the next call works.
    void refuse(qk_status status, const char *argument, const std::function<qk_status()> &call) {
        SCOPED_TRACE(argument);
        for (float &value : results) value = 7;
        for (float &value : gate_values) value = 7;
        std::vector<float> old(kB * kH), now(kB * kH);
        ASSERT_EQ(qk_gru_state_read(session.context, state, old.data()), QK_OK);
        EXPECT_EQ(call(), status) << qk_context_error(session.context);
        EXPECT_EQ(std::string(qk_context_error(session.context)).find(argument), 0u)
            << qk_context_error(session.context);
        for (const float value : results) ASSERT_EQ(value, 7);
        for (const float value : gate_values) ASSERT_EQ(value, 7);
        ASSERT_EQ(qk_gru_state_read(session.context, state, now.data()), QK_OK);
        EXPECT_EQ(now, old);
        EXPECT_EQ(session.save(gru), before);
    }
    template <class T>
    static T *stranger(void *handle) {
        return static_cast<T *>(handle);
    }

    const Network net = small_network();
    Session session;
    qk_gru *gru = nullptr, *trained = nullptr, *twin = nullptr;
    qk_gru_state *state = nullptr;
    float values[kT * kB * kC + 64] = {}, results[kT * kB * kH + 64], gate_values[kT * kB * 4 * kH];
    qk_tensor *x = nullptr, *y = nullptr, *gates = nullptr;
    std::vector<qk_tensor *> tensors;
    std::vector<char> before;
};

TEST_F(GruArguments, OfRun) {
    qk_context *const c = session.context;
    const auto run = [&](const qk_gru *g, qk_gru_state *s, const qk_tensor *from, qk_tensor *to) {
        return [=, this] {
            const qk_status status = qk_gru_run(c, g, s, from, to);
            if (status == QK_OK) return status;
            const std::string sentence = qk_context_error(c);
            EXPECT_EQ(qk_gru_run_gates(c, g, s, from, to, gates), status);  // the same refusal
            EXPECT_EQ(qk_context_error(c), sentence);
            return status;
        };
    };
    refuse(QK_ERROR_NULL, "gru:", run(nullptr, state, x, y));
    refuse(QK_ERROR_STATE, "gru:", run(trained, state, x, y));
    refuse(QK_ERROR_STATE, "gru:", run(stranger<qk_gru>(c), state, x, y));
    refuse(QK_ERROR_NULL, "state:", run(gru, nullptr, x, y));
    refuse(QK_ERROR_STATE, "state:", run(twin, state, x, y));
    refuse(QK_ERROR_STATE, "state:", run(gru, stranger<qk_gru_state>(gru), x, y));
    refuse(QK_ERROR_NULL, "x:", run(gru, state, nullptr, y));
    refuse(QK_ERROR_NULL, "y:", run(gru, state, x, nullptr));
    refuse(QK_ERROR_STATE, "x:", run(gru, state, stranger<qk_tensor>(gru), y));
    // x: columns, sequences (fewer and more than the state's), type.
    refuse(QK_ERROR_SHAPE, "x:", run(gru, state, wrap(values, QK_FORMAT_F32, kT, kB, kC + 1), y));
    for (const int batch : {kB - 1, kB + 1})
        refuse(QK_ERROR_SHAPE, "x:",
               run(gru, state, wrap(values, QK_FORMAT_F32, 2, batch, kC),
                   wrap(results, QK_FORMAT_F32, 2, batch, kH)));
    refuse(QK_ERROR_FORMAT, "x:", run(gru, state, wrap(values, QK_FORMAT_F16, kT, kB, kC), y));
    refuse(QK_ERROR_FORMAT, "x:", run(gru, state, wrap(values, QK_FORMAT_I16, kT, kB, kC), y));
    // y: steps, sequences, columns, type, writable, apart from x.
    refuse(QK_ERROR_SHAPE, "y:", run(gru, state, x, wrap(results, QK_FORMAT_F32, kT - 1, kB, kH)));
    refuse(QK_ERROR_SHAPE, "y:", run(gru, state, x, wrap(results, QK_FORMAT_F32, kT, kB + 1, kH)));
    refuse(QK_ERROR_SHAPE, "y:", run(gru, state, x, wrap(results, QK_FORMAT_F32, kT, kB, kH - 1)));
    refuse(QK_ERROR_FORMAT, "y:", run(gru, state, x, wrap(results, QK_FORMAT_BF16, kT, kB, kH)));
    refuse(QK_ERROR_FORMAT, "y:", run(gru, state, x, wrap(results, QK_FORMAT_I16, kT, kB, kH)));
    refuse(QK_ERROR_STATE, "y:", run(gru, state, x, read_only(results, kH)));
    refuse(QK_ERROR_STATE, "y:", run(gru, state, x, wrap(values, QK_FORMAT_F32, kT, kB, kH)));
    EXPECT_EQ(qk_gru_run(c, gru, state, x, y), QK_OK) << qk_context_error(c);
    EXPECT_EQ(qk_gru_run(nullptr, gru, state, x, y), QK_ERROR_NULL);
}

TEST_F(GruArguments, OfGates) {
    qk_context *const c = session.context;
    const auto run = [&](qk_tensor *to) {
        return [=, this] { return qk_gru_run_gates(c, gru, state, x, y, to); };
    };
    refuse(QK_ERROR_NULL, "gates:", run(nullptr));
    refuse(QK_ERROR_SHAPE, "gates:", run(wrap(gate_values, QK_FORMAT_F32, kT, kB, 3 * kH)));
    refuse(QK_ERROR_SHAPE, "gates:", run(wrap(gate_values, QK_FORMAT_F32, kT - 1, kB, 4 * kH)));
    refuse(QK_ERROR_FORMAT, "gates:", run(wrap(gate_values, QK_FORMAT_I16, kT, kB, 4 * kH)));
    refuse(QK_ERROR_STATE, "gates:", run(read_only(gate_values, 4 * kH)));
    // One byte of y, and of x, inside gates.
    std::vector<float> room(kT * kB * 8 * kH, 7);
    qk_tensor *const wide = wrap(room.data(), QK_FORMAT_F32, kT, kB, 4 * kH);
    qk_tensor *const y_at_end = wrap(room.data() + kT * kB * 4 * kH - 1, QK_FORMAT_F32, kT, kB, kH);
    qk_tensor *const x_at_end = wrap(room.data() + kT * kB * 4 * kH - 1, QK_FORMAT_F32, kT, kB, kC);
    refuse(QK_ERROR_STATE,
           "gates:", [&] { return qk_gru_run_gates(c, gru, state, x, y_at_end, wide); });
    refuse(QK_ERROR_STATE,
           "gates:", [&] { return qk_gru_run_gates(c, gru, state, x_at_end, y, wide); });
    for (const float value : room) ASSERT_EQ(value, 7);
    EXPECT_EQ(qk_gru_run_gates(c, gru, state, x, y, gates), QK_OK) << qk_context_error(c);
}

TEST_F(GruArguments, OfStates) {
    qk_context *const c = session.context;
    float h[kB * kH] = {};
    qk_gru_state *out = nullptr;
    refuse(QK_ERROR_NULL, "gru", [&] { return qk_gru_state_create(c, nullptr, 1, &out); });
    refuse(QK_ERROR_STATE, "gru:", [&] { return qk_gru_state_create(c, trained, 1, &out); });
    refuse(QK_ERROR_NULL, "out", [&] { return qk_gru_state_create(c, gru, 1, nullptr); });
    for (const int32_t batch : {0, -1, INT32_MIN})
        refuse(QK_ERROR_ARGUMENT,
               "batch:", [&] { return qk_gru_state_create(c, gru, batch, &out); });
    refuse(QK_ERROR_NULL, "state", [&] { return qk_gru_state_reset(c, nullptr); });
    refuse(QK_ERROR_NULL, "state", [&] { return qk_gru_state_write(c, nullptr, h); });
    refuse(QK_ERROR_NULL, "h", [&] { return qk_gru_state_write(c, state, nullptr); });
    refuse(QK_ERROR_NULL, "h", [&] { return qk_gru_state_read(c, state, nullptr); });
    refuse(QK_ERROR_STATE,
           "state:", [&] { return qk_gru_state_read(c, stranger<qk_gru_state>(gru), h); });
    size_t bytes = 77;
    refuse(QK_ERROR_NULL, "bytes", [&] { return qk_gru_workspace(c, gru, 1, 1, nullptr); });
    refuse(QK_ERROR_ARGUMENT,
           "batch and t_max:", [&] { return qk_gru_workspace(c, gru, 0, 1, &bytes); });
    refuse(QK_ERROR_ARGUMENT,
           "batch and t_max:", [&] { return qk_gru_workspace(c, gru, 1, 0, &bytes); });
    EXPECT_EQ(bytes, 77u);
    EXPECT_EQ(out, nullptr);
}

TEST_F(GruArguments, OfTraining) {
    qk_context *const c = session.context;
    refuse(QK_ERROR_NULL, "gru:", [&] { return qk_gru_calibrate(c, nullptr, x, nullptr); });
    refuse(QK_ERROR_STATE, "gru:", [&] { return qk_gru_calibrate(c, gru, x, nullptr); });
    refuse(QK_ERROR_NULL, "x:", [&] { return qk_gru_calibrate(c, trained, nullptr, nullptr); });
    refuse(QK_ERROR_FORMAT, "x:", [&] {
        return qk_gru_calibrate(c, trained, wrap(values, QK_FORMAT_I16, kT, kB, kC), nullptr);
    });
    refuse(QK_ERROR_SHAPE, "x:", [&] {
        return qk_gru_calibrate(c, trained, wrap(values, QK_FORMAT_F32, kT, kB, kC + 1), nullptr);
    });
    const float large[kB * kH] = {0, 0, 0, 2e15f};
    refuse(QK_ERROR_ARGUMENT, "h0:", [&] { return qk_gru_calibrate(c, trained, x, large); });
    refuse(QK_ERROR_STATE, "gru:", [&] { return qk_gru_freeze(c, trained); });  // no call counted
    refuse(QK_ERROR_NULL, "gru:", [&] { return qk_gru_freeze(c, nullptr); });
    refuse(QK_ERROR_STATE, "gru:", [&] { return qk_gru_freeze(c, gru); });
    refuse(QK_ERROR_STATE, "gru:", [&] { return qk_gru_run_float(c, gru, x, nullptr, y); });
    refuse(QK_ERROR_NULL, "y:", [&] { return qk_gru_run_float(c, trained, x, nullptr, nullptr); });
    refuse(QK_ERROR_SHAPE, "y:", [&] {
        return qk_gru_run_float(c, trained, x, nullptr,
                                wrap(results, QK_FORMAT_F32, kT, kB, kH + 1));
    });
    refuse(QK_ERROR_STATE, "y:", [&] {
        return qk_gru_run_float(c, trained, x, nullptr, wrap(values, QK_FORMAT_F32, kT, kB, kH));
    });
    const qk_gru_quant good = {8, 0, 0, 0};
    EXPECT_EQ(qk_gru_set_quant(nullptr, QK_GRU_X, &good), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_set_quant(trained, QK_GRU_X, nullptr), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_set_quant(gru, QK_GRU_X, &good), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_set_quant(trained, -1, &good), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_set_quant(trained, QK_GRU_TENSOR_COUNT, &good), QK_ERROR_ARGUMENT);
    const qk_gru_quant bad[] = {{3, 0, 0, 0}, {17, 0, 0, 0}, {8, 1, 0, 0},
                                {8, 2, 0, 0}, {8, 0, 2, 0},  {8, 0, 0, 1}};
    for (const qk_gru_quant &quant : bad)
        EXPECT_EQ(qk_gru_set_quant(trained, QK_GRU_X, &quant), QK_ERROR_ARGUMENT);
}

TEST_F(GruArguments, OfFrozenModels) {
    qk_context *const c = session.context;
    qk_gru *out = nullptr;
    qk_gru_model model = {};
    std::int32_t shift = 77, zero = 77;
    size_t bytes = 77;
    refuse(QK_ERROR_NULL, "model", [&] { return qk_gru_create_from_model(c, nullptr, &out); });
    refuse(QK_ERROR_NULL, "out", [&] { return qk_gru_create_from_model(c, &model, nullptr); });
    refuse(QK_ERROR_ABI, "model:", [&] { return qk_gru_create_from_model(c, &model, &out); });
    refuse(QK_ERROR_NULL, "data", [&] { return qk_gru_load(c, nullptr, 1, &out); });
    refuse(QK_ERROR_NULL, "out", [&] { return qk_gru_load(c, before.data(), 1, nullptr); });
    refuse(QK_ERROR_CORRUPT, "gru:", [&] { return qk_gru_load(c, before.data(), 0, &out); });
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(qk_gru_describe(nullptr, &model), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_describe(gru, nullptr), QK_ERROR_NULL);
    model.struct_size = sizeof(model);
    EXPECT_EQ(qk_gru_describe(trained, &model), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_scale(nullptr, QK_GRU_X, 0, &shift, &zero), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, nullptr, &zero), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &shift, nullptr), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_scale(trained, QK_GRU_X, 0, &shift, &zero), QK_ERROR_STATE);
    EXPECT_EQ(qk_gru_scale(gru, -1, 0, &shift, &zero), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_TENSOR_COUNT, 0, &shift, &zero), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_X, 1, &shift, &zero), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_W, 3 * kH, &shift, &zero), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_scale(gru, QK_GRU_W, -1, &shift, &zero), QK_ERROR_ARGUMENT);
    EXPECT_EQ(qk_gru_save(nullptr, nullptr, 0, &bytes), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_save(gru, nullptr, 0, nullptr), QK_ERROR_NULL);
    EXPECT_EQ(qk_gru_save(trained, nullptr, 0, &bytes), QK_ERROR_STATE);
    EXPECT_EQ(shift, 77);
    EXPECT_EQ(zero, 77);
    EXPECT_EQ(bytes, 77u);
}

}  // namespace

// The generic GRU kernel on simulated threads against the CPU, code by code.
#include "cuda/gru_harness.hpp"
#include "cuda/mock/mock.hpp"

namespace cuda_test {
namespace {

TEST(CudaSimulatedGru, RandomModelsEqualTheCpu) {
    mock::reset();
    GruPair pair;
    Rng rng(1);
    int ran = 0;
    for (int i = 0; i < 20 && !HasFailure(); ++i) {
        gru_test::RandomOptions options;
        options.c = 1 + int(rng() % 40);
        options.h = 1 + int(rng() % 20);
        options.extreme = i % 2 == 1;
        gru_test::OwnedModel owned(options.c, options.h);
        gru_test::randomize(owned, rng, options);
        if (!pair.create(owned.view())) continue;
        const size_t offset = i % 4 == 0 ? 1 : 0;
        ran += pair.check({3, 2, i % 3 == 0, i % 5 < 2, i % 2 == 0, offset}, rng);
    }
    EXPECT_GT(ran, 10);
}

qk_tensor *create_rows(qk_context *context, qk_format format, int64_t t, int64_t b, int64_t columns,
                       const std::vector<uint8_t> &bytes) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 3;
    desc.shape[0] = t, desc.shape[1] = b, desc.shape[2] = columns;
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK) << qk_context_error(context);
    if (!bytes.empty()) {
        EXPECT_EQ(qk_tensor_upload(context, tensor, QK_PLANE_DATA, bytes.data(), bytes.size()),
                  QK_OK);
    }
    return tensor;
}

// Runs x on both and compares what was counted, state by state.
void expect_equal_counts(GruPair &pair, bool x_is_float, int steps, int batch, Rng &rng) {
    const qk::gru::Cell &cell = pair.cpu_gru->cell;
    const int h = cell.hidden_size, c = cell.input_size;
    const qk_format format = x_is_float          ? QK_FORMAT_F32
                             : cell.x_bytes == 1 ? QK_FORMAT_I8
                                                 : QK_FORMAT_I16;
    const std::vector<uint8_t> x = random_x(cell, x_is_float, int64_t{steps} * batch * c, rng);
    qk_gru_clipped clipped[2] = {QK_GRU_CLIPPED_INIT, QK_GRU_CLIPPED_INIT};
    std::vector<float> states[2];
    for (const bool on_cuda : {false, true}) {
        qk_context *const context = on_cuda ? pair.cuda : pair.cpu;
        const qk_gru *const gru = on_cuda ? pair.cuda_gru : pair.cpu_gru;
        qk_tensor *const tx = create_rows(context, format, steps, batch, c, x);
        qk_tensor *const ty = create_rows(context, QK_FORMAT_F32, steps, batch, h, {});
        qk_gru_state *state = nullptr;
        ASSERT_EQ(qk_gru_state_create(context, gru, batch, &state), QK_OK);
        ASSERT_EQ(qk_gru_state_count_clipped(context, state, 1), QK_OK);
        for (int run = 0; run < 2; ++run)
            EXPECT_EQ(qk_gru_run(context, gru, state, tx, ty), QK_OK) << qk_context_error(context);
        EXPECT_EQ(qk_gru_state_clipped(context, state, &clipped[on_cuda]), QK_OK);
        states[on_cuda].resize(size_t(batch) * size_t(h));
        EXPECT_EQ(qk_gru_state_read(context, state, states[on_cuda].data()), QK_OK);
        qk_gru_state_destroy(state);
        qk_tensor_destroy(tx);
        qk_tensor_destroy(ty);
    }
    EXPECT_EQ(states[0], states[1]);
    EXPECT_EQ(clipped[1].samples, int64_t{2} * steps * batch);
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which)
        EXPECT_EQ(clipped[0].codes[which], clipped[1].codes[which]) << which;
}

TEST(CudaSimulatedGru, CountsTheCodesThatTheCpuCounts) {
    mock::reset();
    GruPair pair;
    Rng rng(2);
    int ran = 0;
    for (int i = 0; i < 6 && !HasFailure(); ++i) {
        gru_test::RandomOptions options;
        options.c = 1 + int(rng() % 40);
        options.h = 1 + int(rng() % 18);
        options.extreme = i % 3 == 2;
        gru_test::OwnedModel owned(options.c, options.h);
        gru_test::randomize(owned, rng, options);
        if (!pair.create(owned.view())) continue;
        expect_equal_counts(pair, i % 2 == 0, 2, 2, rng);
        ++ran;
    }
    EXPECT_GT(ran, 3);
}

// What a turn of a step-by-step run left behind is gone once a state is written or reset.
TEST(CudaSimulatedGru, WritingAndResettingForgetTheTurns) {
    mock::reset();
    GruPair pair;
    Rng rng(3);
    pair.create(QK_GRU_W8A8, 0, 3, 5, rng);
    const std::vector<float> zeros(5, 0.0f);
    for (const uint32_t turns : {uint32_t(1), uint32_t(2), uint32_t(3)}) {
        qk_gru_state *state = nullptr;
        ASSERT_EQ(qk_gru_state_create(pair.cuda, pair.cuda_gru, 1, &state), QK_OK);
        qk::GruArgs args = {};
        qk::gru_state_fill(*state, &args);
        const auto leave_turns = [&] {  // as `turns` steps of the kernel that changes places do
            const uint32_t value = turns * qk::kTurn;
            ASSERT_EQ(cudaMemcpy(args.turns, &value, sizeof(value), cudaMemcpyHostToDevice),
                      cudaSuccess);
        };
        std::vector<float> h(5);
        leave_turns();
        ASSERT_EQ(qk_gru_state_read(pair.cuda, state, h.data()), QK_OK);  // they are known here too
        ASSERT_EQ(qk_gru_state_reset(pair.cuda, state), QK_OK);
        ASSERT_EQ(qk_gru_state_read(pair.cuda, state, h.data()), QK_OK);
        EXPECT_EQ(h, zeros);
        qk_gru_state *same = nullptr;
        ASSERT_EQ(qk_gru_state_create(pair.cpu, pair.cpu_gru, 1, &same), QK_OK);
        const std::vector<float> given = {0.5f, -0.25f, 0.125f, 0.75f, -0.5f};
        std::vector<float> expected(5);
        ASSERT_EQ(qk_gru_state_write(pair.cpu, same, given.data()), QK_OK);
        ASSERT_EQ(qk_gru_state_read(pair.cpu, same, expected.data()), QK_OK);
        leave_turns();
        ASSERT_EQ(qk_gru_state_read(pair.cuda, state, h.data()), QK_OK);
        ASSERT_EQ(qk_gru_state_write(pair.cuda, state, given.data()), QK_OK);
        ASSERT_EQ(qk_gru_state_read(pair.cuda, state, h.data()), QK_OK);
        EXPECT_EQ(h, expected);
        qk_gru_state_destroy(same);
        qk_gru_state_destroy(state);
    }
}

}  // namespace
}  // namespace cuda_test

// The quantized GRU on CUDA: the CPU's bits for random models of every width and for trained-like
// ones of every preset, in any format, at any address, however time and batch are split.
#include "cuda/gru_harness.hpp"

namespace cuda_test {
namespace {

GruCase random_case(Rng &rng, int steps, int batch) {
    return {steps, batch, rng() % 2 == 0, rng() % 2 == 0, rng() % 2 == 0, 0};
}

void check_random_models(bool extreme, int models, uint64_t seed) {
    GruPair pair;
    Rng rng(seed);
    int ran = 0, narrow = 0, wide = 0;
    for (int i = 0; i < models && !testing::Test::HasFailure(); ++i) {
        gru_test::RandomOptions options;
        options.c = 1 + int(rng() % 40);
        options.h = 1 + int(rng() % 40);
        options.extreme = extreme;
        gru_test::OwnedModel owned(options.c, options.h);
        gru_test::randomize(owned, rng, options);
        if (!pair.create(owned.view())) continue;
        (pair.cpu_gru->cell.cell_is_32 != 0 ? narrow : wide) += 1;
        ran += pair.check(random_case(rng, 1 + int(rng() % 12), 1 + int(rng() % 5)), rng);
    }
    EXPECT_GT(ran, models / 2);
    EXPECT_GT(narrow, 10);
    EXPECT_GT(wide, 10);
}

TEST(CudaGru, RandomModelsEqualTheCpu) {
    QK_NEEDS_DEVICE();
    check_random_models(false, 300, 1);
}

TEST(CudaGru, CodesAtTheEndsOfEveryTypeEqualTheCpu) {
    QK_NEEDS_DEVICE();
    check_random_models(true, 300, 2);
}

TEST(CudaGru, EveryPresetEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(3);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        for (const uint32_t flags : {0u, QK_GRU_UNIFORM_TABLES}) {
            for (const auto &[c, h] : {std::pair{7, 16}, {64, 64}, {33, 100}, {16, 256}}) {
                SCOPED_TRACE("preset " + std::to_string(preset) + " c " + std::to_string(c) +
                             " h " + std::to_string(h));
                pair.create(preset, flags, c, h, rng);
                if (HasFailure()) return;
                EXPECT_GE(pair.check(random_case(rng, 9, 1), rng), 1);
                EXPECT_GE(pair.check(random_case(rng, 4, 11), rng), 1);
                EXPECT_GE(pair.check(random_case(rng, 1 + int(rng() % 3), 1 + int(rng() % 4)), rng),
                          1);
                if (HasFailure()) return;
            }
        }
    }
}

TEST(CudaGru, LargeStatesEqualTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(4);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16}) {
        for (const auto &[c, h] : {std::pair{40, 512}, {96, 1024}, {24, 528}, {16, 1040}}) {
            SCOPED_TRACE("preset " + std::to_string(preset) + " c " + std::to_string(c) + " h " +
                         std::to_string(h));
            pair.create(preset, 0, c, h, rng);
            if (HasFailure()) return;
            EXPECT_GE(pair.check(random_case(rng, 6, 1), rng), 1);
            EXPECT_GE(pair.check({3, 9, false, true, false, 0}, rng), 2 - (h > 1024));
            EXPECT_GE(pair.check({3, 2, true, true, false, 0}, rng), h > 1024 ? 1 : 3);
            if (HasFailure()) return;
        }
    }
}

TEST(CudaGru, AnyAddress) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(5);
    pair.create(QK_GRU_W8H16, 0, 32, 64, rng);
    ASSERT_FALSE(HasFailure());
    for (size_t offset = 1; offset < 16; offset += offset < 4 ? 1 : 4) {
        for (const bool is_float : {false, true}) {
            EXPECT_GE(pair.check({5, 3, is_float, is_float, true, offset}, rng), 1) << offset;
        }
    }
}

// T steps at once, one by one and in chunks of 37, replayed from a graph: one result.
struct Stream {
    cudaStream_t stream = nullptr;
    qk_context *context = nullptr;
    qk_gru *gru = nullptr;
    qk_gru_state *state = nullptr;
    DeviceBuffer x, y;
    int steps, batch;

    Stream(const GruPair &pair, int steps_, int batch_, Rng &rng) : steps(steps_), batch(batch_) {
        size_t bytes = 0, needed = 0;
        EXPECT_EQ(qk_gru_save(pair.cpu_gru, nullptr, 0, &bytes), QK_OK);
        std::vector<uint8_t> file(bytes);
        EXPECT_EQ(qk_gru_save(pair.cpu_gru, file.data(), bytes, &bytes), QK_OK);
        EXPECT_EQ(qk_gru_workspace(pair.cuda, pair.cuda_gru, batch, steps, &needed), QK_OK);
        EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = stream;
        options.workspace_bytes = needed;
        EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
        poison_workspace(*context);
        EXPECT_EQ(qk_gru_load(context, file.data(), bytes, &gru), QK_OK);
        EXPECT_EQ(qk_gru_state_create(context, gru, batch, &state), QK_OK);
        const int64_t rows = int64_t{steps} * batch;
        x = DeviceBuffer(random_x(gru->cell, true, rows * gru->input_size, rng));
        y = DeviceBuffer(std::vector<uint8_t>(size_t(rows * gru->hidden_size) * 4, 0xcd));
    }
    ~Stream() {
        qk_gru_state_destroy(state);
        qk_gru_destroy(gru);
        qk_context_destroy(context);
        cudaStreamDestroy(stream);
    }

    void queue(int chunk) {
        const int64_t c = gru->input_size, h = gru->hidden_size;
        for (int first = 0; first < steps; first += chunk) {
            const int count = std::min(chunk, steps - first);
            char *const from = static_cast<char *>(x.data()) + int64_t{first} * batch * c * 4;
            char *const to = static_cast<char *>(y.data()) + int64_t{first} * batch * h * 4;
            qk_tensor *const tx = wrap_rows(context, QK_FORMAT_F32, count, batch, c, from);
            qk_tensor *const ty = wrap_rows(context, QK_FORMAT_F32, count, batch, h, to);
            EXPECT_EQ(qk_gru_run(context, gru, state, tx, ty), QK_OK) << qk_context_error(context);
            qk_tensor_destroy(tx);
            qk_tensor_destroy(ty);
        }
    }
    std::vector<uint8_t> run(int chunk) {
        EXPECT_EQ(qk_gru_state_reset(context, state), QK_OK);
        queue(chunk);
        EXPECT_EQ(qk_context_synchronize(context), QK_OK) << qk_context_error(context);
        return y.read();
    }
};

TEST(CudaGru, AnyChunkingAndAGraphGiveTheSameBits) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(6);
    for (const auto &[h, batch] : {std::pair{48, 4}, {256, 1}, {512, 2}, {1024, 20}}) {
        pair.create(QK_GRU_W8H16, 0, 32, h, rng);
        ASSERT_FALSE(HasFailure());
        Stream stream(pair, 600, batch, rng);
        const std::vector<uint8_t> whole = stream.run(600);
        EXPECT_TRUE(stream.run(1) == whole);
        EXPECT_TRUE(stream.run(37) == whole);
        for (const int chunk : {600, 37, 1}) {
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t executable = nullptr;
            ASSERT_EQ(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
            stream.queue(chunk);
            ASSERT_EQ(cudaStreamEndCapture(stream.stream, &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
            for (int repeat = 0; repeat < 3; ++repeat) {
                ASSERT_EQ(qk_gru_state_reset(stream.context, stream.state), QK_OK);
                ASSERT_EQ(cudaGraphLaunch(executable, stream.stream), cudaSuccess);
                ASSERT_EQ(qk_context_synchronize(stream.context), QK_OK);
                EXPECT_TRUE(stream.y.read() == whole) << "chunk " << chunk;
            }
            cudaGraphExecDestroy(executable);
            cudaGraphDestroy(graph);
        }
    }
}

TEST(CudaGru, WithLessWorkspaceTheGenericKernelGivesTheSameBits) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(7);
    pair.create(QK_GRU_W8A8, 0, 64, 256, rng);
    ASSERT_FALSE(HasFailure());
    Stream stream(pair, 20, 4, rng);
    const std::vector<uint8_t> fast = stream.run(20);
    ASSERT_GT(stream.context->workspace_bytes, 0u);
    stream.context->workspace_bytes -= 1;
    EXPECT_TRUE(stream.run(20) == fast);
}

}  // namespace
}  // namespace cuda_test

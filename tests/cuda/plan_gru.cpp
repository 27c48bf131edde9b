// How a GRU runs on CUDA is chosen on the host: by its widths and shifts, the device, the case.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/gru/plan.hpp"
#include "object/gru.hpp"

namespace {

// A frozen GRU of random weights, and the arguments of a run.
struct Frozen {
    qk_context *context = nullptr;
    qk_gru *gru = nullptr;
    qk::GruArgs args = {};

    Frozen(qk_gru_preset preset, int c, int h) {
        EXPECT_EQ(qk_context_create(nullptr, &context), QK_OK);
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.preset = preset;
        config.input_size = c;
        config.hidden_size = h;
        std::mt19937 random(7);
        std::uniform_real_distribution<float> uniform(-1, 1);
        const auto fill = [&](int count, float size) {
            std::vector<float> values(static_cast<size_t>(count));
            for (float &value : values) value = uniform(random) * size;
            return values;
        };
        const auto w = fill(3 * h * c, 0.2f), r = fill(3 * h * h, 0.2f), b = fill(3 * h, 0.2f);
        EXPECT_EQ(qk_gru_create(context, &config, w.data(), r.data(), b.data(), b.data(), &gru),
                  QK_OK);
        auto x = fill(8 * c, 2);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.rank = 2;
        desc.shape[0] = 8;
        desc.shape[1] = c;
        void *plane = x.data();
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap(context, &desc, &plane, 1, &tensor), QK_OK);
        EXPECT_EQ(qk_gru_calibrate(context, gru, tensor, nullptr), QK_OK);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(qk_gru_freeze(context, gru), QK_OK);
        args.cell = &gru->cell;
        args.steps = 1000;
        args.batch = 1;
        args.x_format = args.y_format = qk::find_format(QK_FORMAT_F32);
    }
    ~Frozen() {
        qk_gru_destroy(gru);
        qk_context_destroy(context);
    }
    bool plan(qk::cuda::GruPlan *plan, int32_t capability = 90) const {
        return qk::cuda::plan_gru(args, capability, plan);
    }
};

TEST(CudaPlanGru, PresetsHaveTheirRules) {
    const Frozen narrow(QK_GRU_W8A8, 16, 24), state_16(QK_GRU_W8H16, 16, 24),
        wide(QK_GRU_W16A16, 16, 24);
    qk::cuda::GruPlan plan;
    EXPECT_EQ(qk::cuda::plain_kind(narrow.gru->cell), qk::cuda::PlainKind::kDirect);
    EXPECT_TRUE(qk::cuda::has_lane_knots(narrow.gru->cell));
    EXPECT_EQ(qk::cuda::plain_kind(state_16.gru->cell), qk::cuda::PlainKind::kLines);
    EXPECT_TRUE(narrow.plan(&plan));
    EXPECT_TRUE(state_16.plan(&plan));
    EXPECT_FALSE(wide.plan(&plan));  // 16-bit weights: the generic kernel
}

TEST(CudaPlanGru, ShapeAndDeviceDecide) {
    Frozen f(QK_GRU_W8A8, 16, 24);
    qk::cuda::GruPlan plan;
    EXPECT_FALSE(f.plan(&plan, 89));  // no clusters
    ASSERT_TRUE(f.plan(&plan));
    EXPECT_EQ(plan.hidden, 256);
    EXPECT_EQ(plan.sequences, 1);
    EXPECT_TRUE(plan.wide);
    ASSERT_TRUE(f.plan(&plan, 100));
    EXPECT_FALSE(plan.wide);  // products of a warpgroup are sm_90's alone
    f.args.batch = 64;
    ASSERT_TRUE(f.plan(&plan));
    EXPECT_EQ(plan.sequences, 8);  // a full tile
    f.args.batch = 1000;
    ASSERT_TRUE(f.plan(&plan));
    EXPECT_EQ(plan.sequences, 16);  // more than thirty clusters of one tile
    const auto refused = [&](auto change) {
        const qk::GruArgs before = f.args;
        change(f.args);
        const bool runs = f.plan(&plan);
        f.args = before;
        return !runs;
    };
    float y[2] = {};
    EXPECT_TRUE(refused([&](qk::GruArgs &a) { a.gates = y; }));
    EXPECT_TRUE(refused([&](qk::GruArgs &a) { a.y = reinterpret_cast<char *>(y) + 1; }));
    EXPECT_FALSE(refused([&](qk::GruArgs &a) { a.y = y + 1; }));
    const Frozen odd(QK_GRU_W8A8, 16, 25);
    EXPECT_FALSE(odd.plan(&plan));
}

TEST(CudaPlanGru, FewStepsOfFewSequencesAreLaunchedOneByOne) {
    Frozen f(QK_GRU_W8H16, 16, 24);
    EXPECT_FALSE(qk::cuda::runs_by_steps(f.args, 90));
    f.args.steps = 1;
    EXPECT_TRUE(qk::cuda::runs_by_steps(f.args, 90));
    f.args.batch = qk::cuda::kStepBatch + 1;
    EXPECT_FALSE(qk::cuda::runs_by_steps(f.args, 90));
}

TEST(CudaPlanGru, StatesBeyondAClusterGoStepByStep) {
    Frozen f(QK_GRU_W8A8, 16, 1032);
    qk::cuda::GruPlan plan;
    EXPECT_FALSE(f.plan(&plan));
    EXPECT_TRUE(qk::cuda::runs_by_steps(f.args, 90));
    f.args.batch = qk::cuda::kMaxWideBatch + 1;
    EXPECT_FALSE(qk::cuda::runs_by_steps(f.args, 90));
}

TEST(CudaPlanGru, MoreStepsNeverNeedLessWorkspace) {
    Frozen f(QK_GRU_W8A8, 40, 48);
    for (const int64_t batch : {1, 3, 64, 100000}) {
        int64_t before = 0;
        for (const int64_t steps : {1, 2, 7, 100, 511, 512, 513, 5000, 1000000}) {
            f.args.steps = steps;
            f.args.batch = batch;
            qk::cuda::GruPlan plan;
            ASSERT_TRUE(f.plan(&plan));
            const int64_t bytes = qk::cuda::pieces_of(plan, f.args).bytes;
            EXPECT_GE(bytes, before) << batch << " sequences, " << steps << " steps";
            before = bytes;
        }
    }
}

// At the borders of the conditions, not somewhere beside them.
TEST(CudaPlanGru, BordersOfShapesAndBatches) {
    qk::cuda::GruPlan plan;
    EXPECT_FALSE(Frozen(QK_GRU_W8A8, 16, 12).plan(&plan)) << "rows are whole words of 8 bytes";
    EXPECT_TRUE(Frozen(QK_GRU_W8A8, 16, 16).plan(&plan));
    Frozen gru(QK_GRU_W8A8, 16, 24);
    const struct {
        int64_t batch;
        int32_t tiles;
    } cases[] = {{30, 0}, {31, 1}, {240, 1}, {241, 2}};  // 30 clusters of 256 units fit an H200
    for (const auto &c : cases) {
        gru.args.batch = c.batch;
        ASSERT_TRUE(gru.plan(&plan));
        EXPECT_EQ(plan.tiles, c.tiles) << c.batch;
    }
}

}  // namespace

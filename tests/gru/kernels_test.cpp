// Every GRU kernel of the CPU against the generic one, bit for bit.
#include <gtest/gtest.h>

#include "kernel_case.hpp"

namespace {

using gru_test::KernelCounts;
using gru_test::KernelRun;
using gru_test::RandomOptions;

#if defined(QK_SANITIZED) || defined(QK_EMULATED)
constexpr std::int64_t kSteps = 30000;
#else
constexpr std::int64_t kSteps = 1000000;
#endif

class GruKernels : public testing::Test {
  protected:
    void SetUp() override {
        if (const char *why = gru_test::why_no_vector_kernels()) GTEST_SKIP() << why;
    }
};

void expect_reached(const KernelCounts &counts) {
    counts.print();
    EXPECT_GT(counts.packed, counts.wide);
    EXPECT_GT(counts.wide, 0);
    EXPECT_GT(counts.words, 0);
    EXPECT_GE(counts.compared, counts.packed);  // who packs has a kernel that takes it
    EXPECT_GT(counts.compared_gates, 0);
}

TEST_F(GruKernels, CodesAtTheEndsOfEveryType) {
    KernelCounts counts;
    gru_test::run_random_cases(1, true, kSteps / 10, 20, counts);
    expect_reached(counts);
}

TEST_F(GruKernels, StepsOverManyShapesAndWidths) {
    KernelCounts counts;
    gru_test::run_random_cases(2, false, kSteps * 9 / 10, 20, counts);
    expect_reached(counts);
}

TEST_F(GruKernels, LargerShapes) {
    KernelCounts counts;
    std::mt19937_64 random(3);
    for (const int c : {1, 33, 64, 129, 300}) {
        for (const int h : {1, 31, 64, 100, 257}) {
            for (const std::int64_t batch : {1, 2, 3, 5, 17}) {
                RandomOptions options;
                options.c = c;
                options.h = h;
                options.extreme = batch == 2;
                options.weight_bits = h % 2 == 0 ? 16 : 8;
                options.inside_bits = c % 2 == 0 ? 15 : 4;
                KernelRun run{3, batch, 1, batch == 5};
                run.gates = batch != 2;
                gru_test::run_random_case(random, options, run, counts);
            }
        }
    }
    expect_reached(counts);
}

// More columns than 32 bits hold products of 16-bit weights, every product at its end and, for
// `lowest`, of one sign.
TEST_F(GruKernels, SumsOfWordsBeyondARunOfColumns) {
    KernelCounts counts;
    std::mt19937_64 random(4);
    for (const int c : {503, 504, 505, 528, 1009, 2100}) {
        for (const std::int64_t batch : {1, 3}) {
            for (const bool lowest : {true, false}) {
                gru_test::OwnedModel owned(c, 520);
                RandomOptions options;
                options.c = c;
                options.h = 520;
                options.inside_bits = 15;
                gru_test::randomize(owned, random, options);
                for (const int which : {QK_GRU_W, QK_GRU_R}) owned.model.quant[which].bits = 16;
                owned.model.quant[QK_GRU_X].bits = batch == 3 ? 8 : 16;
                owned.model.zero_point[QK_GRU_X] = 0;
                for (auto *weights : {&owned.w, &owned.r})
                    for (std::int32_t &weight : *weights)
                        weight = !lowest && random() % 16 == 0 ? 32767 : -32768;
                const std::int8_t shift = lowest ? 26 : 22;
                for (auto *rows :
                     {&owned.w_shift, &owned.r_shift, &owned.bw_shift, &owned.br_shift})
                    rows->assign(rows->size(), shift);
                gru_test::run_case(owned, random, true,
                                   KernelRun{2, batch, 1, false, lowest, batch == 3}, counts);
            }
        }
    }
    counts.print();
    EXPECT_EQ(counts.words, counts.models);
}

// One segment more than the vector kernels look up at once: the packing leaves such a model to the
// generic kernel. The segment is added in front, so that the last one is the seventeenth.
TEST_F(GruKernels, ASeventeenthKnotIsNotForgotten) {
    KernelCounts counts;
    std::mt19937_64 random(5);
    int tables = 0;
    for (int i = 0; i < 200; ++i) {
        gru_test::OwnedModel owned(9, 20);
        RandomOptions options;
        options.c = 9;
        options.h = 20;
        options.weight_bits = 8;
        gru_test::randomize(owned, random, options);
        qk_gru_table *views[] = {&owned.model.update, &owned.model.reset, &owned.model.candidate};
        for (int gate = 0; gate < 3; ++gate) {
            if (views[gate]->kind != QK_GRU_TABLE_KNOTS) continue;
            gru_test::OwnedTable &table = owned.tables[gate];
            table.threshold.insert(table.threshold.begin(), table.threshold[0] - 1);
            table.slope.insert(table.slope.begin(), table.slope[0]);
            table.intercept.insert(table.intercept.begin(), table.intercept[0]);
            views[gate]->count = 17;
            ++tables;
        }
        gru_test::run_case(owned, random, false, KernelRun{8, 3, 1, false}, counts);
    }
    counts.print();
    EXPECT_GT(tables, 200);
    EXPECT_GT(counts.packed, 0) << "models whose tables all are of the other kind";
    EXPECT_LT(counts.packed, counts.models / 2);
}

}  // namespace

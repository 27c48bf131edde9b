// The quantized GRU on CUDA at shapes that fit no tile: the CPU's bits from every kernel.
#include "cuda/gru_harness.hpp"

namespace cuda_test {
namespace {

TEST(CudaGru, AnyWidthEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(21);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W16A16}) {
        for (const auto &[c, h] : {std::pair{5, 1},
                                   {1, 3},
                                   {31, 17},
                                   {7, 100},
                                   {129, 264},
                                   {33, 504},
                                   {3, 1000},
                                   {15, 1025},
                                   {16, 1500}}) {
            SCOPED_TRACE("preset " + std::to_string(preset) + " c " + std::to_string(c) + " h " +
                         std::to_string(h));
            pair.create(preset, 0, c, h, rng);
            if (HasFailure()) return;
            EXPECT_GE(pair.check({4, 1, true, false, false, 0}, rng), 1);
            EXPECT_GE(pair.check({2, 3, false, true, false, 0}, rng), 1);
            EXPECT_GE(pair.check({1, 2, true, true, false, 0}, rng), 1);
            if (HasFailure()) return;
        }
    }
}

// Few and many sequences a cluster, one tile and two, the last of them not full.
TEST(CudaGru, AnyNumberOfSequencesEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(22);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16}) {
        for (const int h : {72, 256, 512, 1016}) {
            pair.create(preset, 0, 24, h, rng);
            for (const int batch : {2, 8, 15, 29, 33, 61, 64, 97, 131, 250}) {
                if (HasFailure()) return;
                if (int64_t{batch} * h * h > int64_t{70} * 1000 * 1000) continue;
                SCOPED_TRACE("preset " + std::to_string(preset) + " h " + std::to_string(h) +
                             " batch " + std::to_string(batch));
                EXPECT_GE(pair.check({batch % 2 + 3, batch, batch % 3 == 0, batch % 2 == 0}, rng),
                          2);
            }
        }
    }
}

TEST(CudaGru, StatesBeyondAClusterEqualTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(24);
    for (const qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16}) {
        for (const auto &[c, h] : {std::pair{40, 1032}, {1032, 1504}, {24, 2048}, {8, 2056}}) {
            pair.create(preset, 0, c, h, rng);
            for (const int batch : {1, 4, 9}) {
                if (HasFailure()) return;
                SCOPED_TRACE("preset " + std::to_string(preset) + " h " + std::to_string(h) +
                             " batch " + std::to_string(batch));
                EXPECT_GE(pair.check({3 + batch % 2, batch, batch > 1, batch < 9, false, 0}, rng),
                          h > 2048 ? 1 : 2);
            }
        }
    }
}

// The rules of tables and shifts that no preset has, on the fast kernels' shapes.
TEST(CudaGru, RandomModelsOfEightBitsEqualTheCpu) {
    QK_NEEDS_DEVICE();
    GruPair pair;
    Rng rng(23);
    int ran = 0, fast = 0;
    for (int i = 0; i < 250 && !HasFailure(); ++i) {
        gru_test::RandomOptions options;
        options.c = 8 * (1 + int(rng() % 4));
        options.h = 8 * (1 + int(rng() % 5));
        options.extreme = i % 3 == 0;
        options.weight_bits = 8;
        options.inside_bits = i % 2 == 0 ? 8 : 4;
        gru_test::OwnedModel owned(options.c, options.h);
        gru_test::randomize(owned, rng, options);
        if (!pair.create(owned.view())) continue;
        const int kernels = pair.check(
            {1 + int(rng() % 9), 1 + int(rng() % 20), rng() % 2 == 0, rng() % 2 == 0, false, 0},
            rng);
        ran += 1;
        fast += kernels > 1;
    }
    EXPECT_GT(ran, 100);
    EXPECT_GT(fast, 20);
}

}  // namespace
}  // namespace cuda_test

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

}  // namespace
}  // namespace cuda_test

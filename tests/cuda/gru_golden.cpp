// Golden integer runs of trained networks on the GPU, by every kernel that takes them.
#include "cuda/gru_harness.hpp"
#include "gru/golden.hpp"
#include "gru/network.hpp"

namespace cuda_test {
namespace {

using gru_test::read_i32;

std::vector<uint8_t> narrowed(const std::vector<int32_t> &codes, int32_t bytes) {
    std::vector<uint8_t> result(codes.size() * size_t(bytes));
    for (size_t i = 0; i < codes.size(); ++i) memcpy(&result[i * size_t(bytes)], &codes[i], bytes);
    return result;
}

class CudaGruGolden : public testing::TestWithParam<const char *> {};

TEST_P(CudaGruGolden, EveryCodeOfEveryStepIsTheExpectedOne) {
    QK_NEEDS_DEVICE();
    const std::string folder = gru_test::data_folder() + "/gru_vectors/" + GetParam();
    int t = 0, b = 0;
    const auto owned = gru_test::load_golden(folder, t, b);
    if (owned == nullptr) GTEST_SKIP() << "no golden vectors at " << folder;
    GruPair pair;
    ASSERT_TRUE(pair.create(owned->view()));
    const qk::gru::Cell &cell = pair.cuda_gru->cell;
    const std::vector<uint8_t> x = narrowed(read_i32(folder + "/qx.i32"), cell.x_bytes);
    const std::vector<uint8_t> expected =
        narrowed(read_i32(folder + "/qh_expected.i32"), cell.h_bytes);
    ASSERT_EQ(expected.size(), size_t(int64_t{t} * b * cell.hidden_size) * size_t(cell.h_bytes));
    EXPECT_GE(pair.check_codes({t, b}, x, expected), 1);
}

INSTANTIATE_TEST_SUITE_P(Networks, CudaGruGolden,
                         testing::Values("ulunas_enc3_H64_w8a8", "ulunas_enc3_H64_w8a16",
                                         "ulunas_enc3_H64_w16a16", "g2p_enc_H256_w8a16"));

}  // namespace
}  // namespace cuda_test

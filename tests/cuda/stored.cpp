// Products straight from the layouts of checkpoints by every kernel that takes a case: within the
// bound that its order of sums gives, the same bits in every run and every batch. The same tests
// run on simulated threads.
#include "cuda/stored_case.hpp"

namespace cuda_test {
namespace {

// Returns how many of the three kernels took the case.
int check(const qk_tensor_desc &desc, qk_format type, int64_t m, size_t offset, Rng &rng) {
    Problem p = make_problem(desc, type, m, rng);
    p.has_bias = rng() % 2 == 0;
    SCOPED_TRACE(std::string(p.w.shape.format->name) + " scale " + p.w.shape.scale_format->name +
                 " layout " + std::to_string(desc.layout) + " group " +
                 std::to_string(desc.group_size) + " n " + std::to_string(p.n()) + " k " +
                 std::to_string(p.k()) + " m " + std::to_string(m) + " type " +
                 std::to_string(type) + " offset " + std::to_string(offset));
    const OnDevice device(p, offset);
    int ran = 0;
    for (const auto *kernel : {&qk::cuda::kLinearWordsGemv, &qk::cuda::kLinearWords,
                               &qk::cuda::kLinearColumns, &qk::cuda::kLinearLanes}) {
        const auto y = run(*kernel, p, device, 0, m);
        if (y.empty()) continue;
        ++ran;
        expect_within_bound(p, y, kernel->name);
        const size_t row_bytes = y.size() / size_t(m);
        for (int64_t i = m - 1; i > 0; i -= 5) {
            const auto one = run(*kernel, p, device, i, 1);
            if (one.empty()) continue;  // this row of x lies at an address it does not take
            EXPECT_EQ(memcmp(one.data(), y.data() + size_t(i) * row_bytes, row_bytes), 0)
                << kernel->name << " row " << i;
        }
        for (int repeat = 0; repeat < (kSimulated ? 0 : 3); ++repeat) {
            EXPECT_EQ(run(*kernel, p, device, 0, m), y) << kernel->name;
        }
    }
    return ran;
}

const int64_t kBatches[] = {1, 3, 8, 9, 2, 16, 17, 4};

// Some shapes have two blocks of rows and more for each multiprocessor, some long rows.
void check_layouts(const std::vector<qk_layout> &layouts, const std::vector<qk_format> &formats,
                   const Shapes &shapes, int every) {
    Rng rng(41);
    int at = 0, cases = 0, ran = 0;
    for (const qk_layout layout : layouts) {
        for (const qk_format format : formats) {
            for (const qk_format scale : kScales) {
                for (const int32_t group : {32, 64, 96, 128, int(QK_GROUP_ROW)}) {
                    for (const auto &[n, k] : shapes) {
                        if (++at % every != 0) continue;
                        const bool affine = format == QK_FORMAT_U4_AFFINE;
                        qk_tensor_desc desc = weight_desc(format, scale, layout, group, n, k,
                                                          affine && cases % 3 == 0);
                        if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                        const qk_format type = kTypes[cases % 3];
                        ran += check(desc, type, kBatches[cases % 8], 0, rng);
                        ++cases;
                        if (::testing::Test::HasFailure()) return;
                    }
                }
            }
        }
    }
    EXPECT_GT(ran, cases / 2);
}

TEST(CudaDirect, RowsOfCodes) {
    QK_NEEDS_DEVICE();
    check_layouts({QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_WORD},
                  {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1},
                  kSimulated ? Shapes{{5, 64}, {33, 136}, {40, 272}, {300, 72}, {3, 8304}}
                             : Shapes{{1, 32},
                                      {5, 64},
                                      {33, 136},
                                      {64, 272},
                                      {40, 1040},
                                      {16, 4096},
                                      {70, 2048},
                                      {9000, 80},
                                      {20, 16432}},
                  kSimulated ? 37 : 1);
}

TEST(CudaDirect, GptqAndAwq) {
    QK_NEEDS_DEVICE();
    check_layouts({QK_LAYOUT_GPTQ, QK_LAYOUT_GPTQ_V1, QK_LAYOUT_AWQ_GEMM}, {QK_FORMAT_U4_AFFINE},
                  kSimulated ? Shapes{{8, 32}, {40, 136}, {72, 64}, {600, 72}, {8, 8304}}
                             : Shapes{{8, 32},
                                      {40, 136},
                                      {72, 64},
                                      {136, 1032},
                                      {64, 4096},
                                      {200, 2080},
                                      {17000, 72},
                                      {24, 16424}},
                  kSimulated ? 19 : 1);
}

// Sizes, groups and addresses that only the lanes take, or no kernel.
TEST(CudaDirect, OddSizesAndAddresses) {
    QK_NEEDS_DEVICE();
    Rng rng(42);
    int at = 0, ran = 0;
    for (const qk_layout layout : {QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMV,
                                   QK_LAYOUT_WORD, QK_LAYOUT_GPTQ, QK_LAYOUT_AWQ_GEMM}) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
            for (const auto &[n, k, group] : {std::tuple{3, 77, 16},
                                              {9, 333, 24},
                                              {17, 128, 16},
                                              {8, 64, 20},
                                              {7, 1000, 64},
                                              {12, 65, 32}}) {
                for (const size_t offset : {0, 1, 2, 4, 8}) {
                    if (kSimulated && ++at % 7 != 0) continue;
                    qk_tensor_desc desc = weight_desc(format, kScales[at % 4], layout, group, n, k);
                    if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                    ran += check(desc, kTypes[at % 3], kBatches[at % 8], offset, rng);
                    ++at;
                    if (HasFailure()) return;
                }
            }
        }
    }
    EXPECT_GT(ran, 10);
}

TEST(CudaDirect, EightBitsAndFlatGroups) {
    QK_NEEDS_DEVICE();
    Rng rng(43);
    int at = 0, ran = 0;
    for (const auto &[n, k, group] :
         {std::tuple{5, 77, 64}, {33, 512, 64}, {8, 4104, 24}, {20, 200, 128}, {3, 96, 256}}) {
        for (const qk_format scale : kScales) {
            for (const size_t offset : {0, 3}) {
                for (const bool flat : {false, true}) {
                    for (const qk_format format :
                         {QK_FORMAT_S8, QK_FORMAT_LUT8, QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
                        if (kSimulated && ++at % 11 != 0) continue;
                        const bool four = format == QK_FORMAT_U4_AFFINE || format == QK_FORMAT_NF4;
                        const qk_layout layout =
                            four && at % 2 == 0 ? QK_LAYOUT_ROW_HIGH : QK_LAYOUT_ROW;
                        qk_tensor_desc desc =
                            weight_desc(format, scale, layout, group, n, k, false, flat);
                        if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                        ran += check(desc, kTypes[at % 3], kBatches[at % 8], offset, rng);
                        ++at;
                        if (HasFailure()) return;
                    }
                }
            }
        }
    }
    EXPECT_GT(ran, 5);
}

// f32 x is not rounded: parts of bf16 add up to it; infinities and NaNs stay what they are.
TEST(CudaDirect, FloatsOfEverySize) {
    QK_NEEDS_DEVICE();
    Rng rng(44);
    const qk_tensor_desc desc =
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_GPTQ, 64, 8, 64);
    Problem p = make_problem(desc, QK_FORMAT_F32, 4, rng);
    std::vector<float> x(size_t(p.m * p.k()));
    memcpy(x.data(), p.x.data(), p.x.size());
    for (float &value : x) value = std::ldexp(value, int(rng() % 160) - 80);
    memcpy(p.x.data(), x.data(), p.x.size());
    for (const auto *kernel : {&qk::cuda::kLinearWords, &qk::cuda::kLinearGeneric}) {
        const auto y = run(*kernel, p, OnDevice(p, 0), 0, p.m);
        ASSERT_FALSE(y.empty());
        expect_within_bound(p, y, kernel->name);
    }
    const float awkward[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    for (int i = 0; i < 4; ++i) x[size_t(i * p.k() + 5)] = awkward[i];
    memcpy(p.x.data(), x.data(), p.x.size());
    for (int64_t r = 0; r < 8; ++r) {  // code 1, zero 0, scale 1: x itself is added
        p.w.planes[QK_PLANE_DATA][size_t(r * 4 + 2)] = 0x11;
    }
    std::fill(p.w.planes[QK_PLANE_ZERO].begin(), p.w.planes[QK_PLANE_ZERO].end(), 0);
    for (int64_t r = 0; r < 8; ++r) {
        const float one = 1;
        memcpy(p.w.planes[QK_PLANE_SCALE].data() + r * 4, &one, 4);
    }
    const auto y = run(qk::cuda::kLinearWords, p, OnDevice(p, 0), 0, p.m);
    for (int64_t r = 0; r < 8; ++r) {
        EXPECT_EQ(float_at(QK_FORMAT_F32, y, r), INFINITY);
        EXPECT_EQ(float_at(QK_FORMAT_F32, y, 8 + r), -INFINITY);
        EXPECT_TRUE(std::isnan(float_at(QK_FORMAT_F32, y, 16 + r)));
        EXPECT_GT(float_at(QK_FORMAT_F32, y, 24 + r), 3.3e38f);
    }
}

}  // namespace
}  // namespace cuda_test

// One row of x straight from words of checkpoints, by the kernels that are for one row: within the
// bound of their sums. The same tests run on simulated threads.
#include "cuda/stored_case.hpp"

namespace cuda_test {
namespace {

const qk_layout kLayouts[] = {QK_LAYOUT_ROW,  QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMV,
                              QK_LAYOUT_WORD, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1};
const qk_format kFormats[] = {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4};
const int32_t kGroups[] = {64, 128, 256, QK_GROUP_ROW};

// Whether the kernel took the case.
bool check(const qk::Kernel<qk::LinearArgs> &kernel, const qk_tensor_desc &desc, qk_format type,
           bool has_bias, Rng &rng) {
    Problem p = make_problem(desc, type, 1, rng);
    p.has_bias = has_bias;
    SCOPED_TRACE(std::string(p.w.shape.format->name) + " scale " + p.w.shape.scale_format->name +
                 " layout " + std::to_string(desc.layout) + " group " +
                 std::to_string(desc.group_size) + " n " + std::to_string(p.n()) + " k " +
                 std::to_string(p.k()));
    const auto y = run(kernel, p, OnDevice(p, 0), 0, 1);
    if (y.empty()) return false;
    expect_within_bound(p, y, kernel.name);
    return true;
}

// Units that end within a row, rows of tiles that end within 16, several of them a block.
TEST(CudaDirect, OneRow) {
    QK_NEEDS_DEVICE();
    const Shapes shapes = kSimulated ? Shapes{{32, 544}, {100, 1280}, {156, 8224}, {1184, 64}}
                                     : Shapes{{32, 32},     {100, 544},   {156, 8224},
                                              {1184, 1280}, {33824, 128}, {8480, 2176}};
    Rng rng(48);
    int at = 0, ran = 0;
    for (const qk_layout layout : kLayouts) {
        for (const qk_format format : kFormats) {
            for (const qk_format scale : kScales) {
                for (const auto &[n, k] : shapes) {
                    ++at;
                    if (kSimulated && at % 3 != 0) continue;
                    const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 5 == 0;
                    qk_tensor_desc desc =
                        weight_desc(format, scale, layout, kGroups[at % 4], n, k, symmetric);
                    if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                    ran +=
                        check(qk::cuda::kLinearWordsGemv, desc, kTypes[at % 2], at % 4 == 0, rng);
                    if (HasFailure()) return;
                }
            }
        }
    }
    EXPECT_GT(ran, at / (kSimulated ? 6 : 2));
}

// Strips that end within 256 rows, several of them a cluster; k that some warps have no part of,
// and that the blocks of a cluster divide where there are clusters.
TEST(CudaDirect, OneRowOfColumns) {
    QK_NEEDS_DEVICE();
    const Shapes shapes =
        kSimulated ? Shapes{{32, 544}, {96, 2184}, {576, 1024}, {2592, 256}, {288, 8}, {576, 200}}
                   : Shapes{{32, 8},      {96, 544},    {256, 8232},   {1184, 4096},
                            {4096, 4096}, {8480, 2184}, {16928, 1056}, {34016, 256},
                            {288, 8},     {1056, 8},    {576, 200}};
    const int32_t groups[] = {32, 64, 128, 1024, QK_GROUP_ROW};
    Rng rng(49);
    int at = 0, ran = 0;
    for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
        for (const auto &[n, k] : shapes) {
            const qk_tensor_desc desc = weight_desc(QK_FORMAT_U4_AFFINE, scale, QK_LAYOUT_AWQ_GEMM,
                                                    groups[at % 5], n, k, at % 4 == 0);
            ran += check(qk::cuda::kLinearColumnsGemv, desc, kTypes[at % 2], at % 3 == 0, rng);
            ++at;
            if (HasFailure()) return;
        }
    }
    EXPECT_EQ(ran, at);
}

}  // namespace
}  // namespace cuda_test

// Products with experts of any weight: the bits of the CPU's, whatever the routing and the extras.
// The same test runs on simulated threads.
#include "cuda/experts_case.hpp"

namespace cuda_test {
namespace {

constexpr Kind kKinds[] = {
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_AWQ_GEMM, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, true, false},
    {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 24, false, true},
    {QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, QK_LAYOUT_ROW_HIGH, 32, false, false},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_F32, QK_FORMAT_F32, QK_LAYOUT_ROW, 0, false, false},
    {QK_FORMAT_BF16, QK_FORMAT_F32, QK_LAYOUT_ROW, 0, false, false}};

// By the CPU from the weight's values in f32: integers that it adds up have another order.
std::vector<uint8_t> on_host(Case &c) {
    std::vector<uint8_t> y = c.y;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2;
    desc.shape[0] = c.w.shape.rows, desc.shape[1] = c.k();
    HostWeight dense = empty_weight(desc, QK_LAYOUT_PACKED, 0);
    const bool has_values = qk::is_dense(*c.w.shape.format);
    if (!has_values) dense.planes[QK_PLANE_DATA] = bytes_of(values_of(c.w));
    const Arguments a(c, has_values ? c.w.view() : dense.view(),
                      {c.x.data(), c.bias.data(), y.data(), c.expert.data(), c.weight.data()});
    const qk::LinearPlan plan =
        qk::kCpuBackend.plan_linear(a.args, {}, {0, size_t{1} << 24, 1}, nullptr);
    std::vector<uint8_t> workspace(size_t{1} << 24);
    qk::Launch launch = host_launch();
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace.size();
    EXPECT_EQ(plan.kernel->run(a.args, launch), QK_OK);
    return y;
}

TEST(CudaExperts, HasTheBitsOfTheCpu) {
    QK_NEEDS_DEVICE();
    Rng rng(41);
    const int64_t shapes[][3] = {{1, 8, 64}, {3, 24, 96}, {5, 8, 192}, {2, 40, 64}};
    constexpr qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    int at = 0;
    for (const Kind &kind : kKinds) {
        for (const auto &[count, rows, k] : shapes) {
            for (int turn = 0; turn < 3; ++turn, ++at) {
                Case c = make_case(desc_of(kind, count * rows, k), count, types[at % 3], at, rng);
                SCOPED_TRACE(c.title());
                const std::vector<uint8_t> expected = on_host(c);
                const DeviceWeight w(c.w);
                ASSERT_TRUE(
                    same_values(c.y_type, expected, on_device(c, w, qk::cuda::kLinearExperts)));
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

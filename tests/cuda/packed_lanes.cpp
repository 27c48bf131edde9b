// Packed weights on plain lanes: every kind of code, scale and group that kernels on tensor cores
// leave to them, within the bound of a sum of f32; with minima: records.cpp.
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

TEST(CudaPackedLanes, AreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(83);
    check_packed_kernel(qk::cuda::kLinearPackedLanes, {{1, 16}, {17, 80}, {33, 1040}, {130, 2064}},
                        {1, 3, 4, 5, 8, 1}, {16, 32, 64, QK_GROUP_ROW},
                        {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}, rng);
}

TEST(CudaPackedLanes, RowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(84);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 32, 40, 528),
                                 QK_FORMAT_F32, 8, rng);
        const DeviceWeight w = packed_weight(p.w);
        const auto all = run_on_device(qk::cuda::kLinearPackedLanes, p, w, 0, p.m);
        for (const int64_t batch : {1, 2, 4, 5}) {
            ASSERT_NO_FATAL_FAILURE(
                expect_batch_of(all, qk::cuda::kLinearPackedLanes, p, w, 3, batch));
        }
    }
}

}  // namespace
}  // namespace cuda_test

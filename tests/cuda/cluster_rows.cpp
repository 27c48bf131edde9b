// The kernel for 9 to 16 rows of x (linear/sm90/cluster_rows/cluster_rows.cu): its bound, whatever
// the cut, and that a row of y does not know its batch.
#include "cuda/linear_problem.hpp"

namespace {

using namespace cuda_test;

// Blocks with equal and unequal numbers of chunks; clusters with fewer rows than blocks, and with
// more than a ring has slots; rows past the end of w.
TEST(CudaClusterRows, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(30);
    check_packed_kernel(
        qk::cuda::kLinearSm90ClusterRows,
        {{1, 4096}, {17, 2304}, {130, 3328}, {16 * 66 + 21, 2560}, {16 * 66 * 6 + 5, 2304}},
        {9, 16, 2, 13}, {64, 128, 32, 16}, {QK_FORMAT_F16, QK_FORMAT_F16, QK_FORMAT_BF16}, rng);
}

TEST(CudaClusterRows, KnowsNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(31);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        const int32_t group = format == QK_FORMAT_NF4 ? 64 : 16;
        Problem p =
            make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, 200, 3840),
                         QK_FORMAT_F16, 16, rng);
        const DeviceWeight w = packed_weight(p.w);
        const auto all = run_on_device(qk::cuda::kLinearSm90ClusterRows, p, w, 0, p.m);
        for (const int64_t batch : {2, 9, 15}) {
            ASSERT_NO_FATAL_FAILURE(
                expect_batch_of(all, qk::cuda::kLinearSm90ClusterRows, p, w, 1, batch));
        }
    }
}

}  // namespace

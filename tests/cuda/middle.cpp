// Products of middle batches from packed tiles on mma.sync: within the bound of their sums, the
// same bits in every run and every batch. The same tests run on simulated threads.
#include "cuda/stored_case.hpp"

namespace cuda_test {
namespace {

Problem packed_problem(qk_tensor_desc desc, qk_format type, int64_t m, Rng &rng) {
    if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
    Problem p = make_problem(desc, type, m, rng);
    desc.layout = QK_LAYOUT_PACKED;
    p.packed = empty_weight(desc, qk::kCudaBackend.packed_layout(*p.w.shape.format), 0);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({p.w.view(), p.packed.view()}, host_launch()), QK_OK);
    return p;
}

// Rows [first, first + rows) of y, the whole, from a call of their own.
void expect_rows_of(const std::vector<uint8_t> &y, const qk::Kernel<qk::LinearArgs> &kernel,
                    const Problem &p, const OnDevice &device, int64_t first, int64_t rows,
                    Room room = Room::kAsked) {
    const auto some = run(kernel, p, device, first, rows, room);
    if (some.empty()) return;  // at an address that it does not take
    const size_t row_bytes = y.size() / size_t(p.m);
    EXPECT_EQ(memcmp(some.data(), y.data() + size_t(first) * row_bytes, some.size()), 0)
        << kernel.name << " rows from " << first;
}

// The matrix kernel of GPUs without wgmma, wherever it can run: with room for parts of k, without.
TEST(CudaDirect, MiddleBatchesFromPackedTiles) {
    QK_NEEDS_DEVICE();
    Rng rng(45);
    int at = 0;
    const Shapes shapes = kSimulated ? Shapes{{17, 80}, {70, 208}, {33, 528}}
                                     : Shapes{{1, 16},     {17, 80},     {130, 1040}, {256, 512},
                                              {4400, 192}, {1000, 4096}, {33000, 128}};
    const int64_t batches[] = {17, 66, 64, 100, 32, 129, 48, 300};
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
        for (const qk_format scale : kScales) {
            for (const auto &[n, k] : shapes) {
                ++at;
                if (kSimulated && at % 7 != 0) continue;
                const int32_t groups[] = {64, 128, 256, QK_GROUP_ROW};
                const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 3 == 0;
                const int64_t m = batches[kSimulated ? at / 7 % 2 : at % 8];
                const bool second = kSimulated ? format != QK_FORMAT_U4_AFFINE : at % 2 != 0;
                Problem p = packed_problem(
                    weight_desc(format, scale, QK_LAYOUT_ROW, groups[at % 4], n, k, symmetric),
                    kTypes[second], m, rng);
                SCOPED_TRACE(std::string(p.w.shape.format->name) + " scale " +
                             p.w.shape.scale_format->name + " n " + std::to_string(n) + " k " +
                             std::to_string(k) + " m " + std::to_string(p.m) + " group " +
                             std::to_string(groups[at % 4]));
                p.has_bias = at % 2 == 0;
                const OnDevice device(p, 0);
                const auto &kernel = qk::cuda::kLinearSm80Gemm;
                for (const Room room : {Room::kAsked, Room::kNone}) {
                    const auto y = run(kernel, p, device, 0, p.m, room);
                    expect_within_bound(p, y, kernel.name);
                    if (HasFailure()) return;
                    if (m <= 65 && m > 17) expect_rows_of(y, kernel, p, device, m - 17, 17, room);
                    for (int repeat = 0; repeat < (kSimulated ? 0 : 3); ++repeat) {
                        EXPECT_EQ(run(kernel, p, device, 0, p.m, room), y);
                    }
                }
            }
        }
    }
}

// Each number of rows to 64 gives a row the same bits: with parts of k and without.
TEST(CudaDirect, MiddleRowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    if (kSimulated) GTEST_SKIP() << "takes minutes on simulated threads";
    Rng rng(46);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        for (const int64_t n : {200, 17000}) {
            const Problem p =
                packed_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, n, 1040),
                               QK_FORMAT_F16, 64, rng);
            const OnDevice device(p, 0);
            const auto y = run(qk::cuda::kLinearSm80Gemm, p, device, 0, 64);
            for (int64_t rows = 17; rows<64; rows += n> 1000 ? 9 : 1) {
                expect_rows_of(y, qk::cuda::kLinearSm80Gemm, p, device, 0, rows);
                expect_rows_of(y, qk::cuda::kLinearSm80Gemm, p, device, 64 - rows, rows);
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

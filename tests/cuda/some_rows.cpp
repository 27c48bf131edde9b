// The kernel for small batches that adds k up in registers (linear/sm90/some_rows/some_rows.cu):
// groups, types of x, cuts of every kind.
#include "cuda/linear_problem.hpp"
#include "cuda/runtime.hpp"

namespace cuda_test {
namespace {

// Parts of a tile, of a chunk of 128 columns and of a stage at the end of k; groups of every kind.
TEST(CudaSomeRows, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(10);
    check_packed_kernel(
        qk::cuda::kLinearSm90SomeRows,
        {{1, 16}, {17, 80}, {130, 1280}, {16 * 132 + 21, 144}, {33, 4096}, {47, 2096}, {100, 8448}},
        {2, 8, 9, 16, 17, 3, 16, 33, 5}, {64, 128, 32, 256, QK_GROUP_ROW, 1024, 16},
        {QK_FORMAT_F16, QK_FORMAT_F16, QK_FORMAT_BF16}, rng);
}

// Clusters of 1 and 2 blocks, with 1 to 16 pairs of rows of tiles, and more than one wave; 7, 10
// and 14 pairs leave warps that share the work of others.
TEST(CudaSomeRows, EveryCut) {
    QK_NEEDS_DEVICE();
    Rng rng(13);
    const std::pair<int64_t, int64_t> shapes[] = {
        {132 * 16 * 2 - 7, 4112}, {132 * 16 * 3 + 5, 1104}, {132 * 16 * 8 - 3, 1024},
        {132 * 16 * 9 + 1, 400},  {132 * 16 * 14, 336},     {132 * 16 * 21 + 9, 208},
        {132 * 16 * 31 + 2, 144}, {132 * 16 * 33 + 7, 80},  {132 * 16 * 19 + 3, 144},
        {132 * 16 * 27 + 5, 208},
    };
    int at = 0;
    for (const auto &[n, k] : shapes) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
            const int32_t group = 16 << at % 4;
            Problem p = make_problem(
                weight_desc(format, format == QK_FORMAT_NF4 ? QK_FORMAT_LUT8 : QK_FORMAT_F16,
                            QK_LAYOUT_ROW, group, n, k),
                at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16, at % 4 < 2 ? 9 : 4, rng);
            ++at;
            SCOPED_TRACE(describe(p));
            const DeviceWeight w = packed_weight(p.w);
            const auto y = run_on_device(qk::cuda::kLinearSm90SomeRows, p, w, 0, p.m);
            expect_within_bound(p, y);
            for (int repeat = 0; repeat < 3; ++repeat) {
                ASSERT_EQ(run_on_device(qk::cuda::kLinearSm90SomeRows, p, w, 0, p.m), y);
            }
        }
    }
}

// 17 to 24 rows of x have a kernel of their own.
TEST(CudaSomeRows, ManyRowsAreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(18);
    check_packed_kernel(
        qk::cuda::kLinearSm90Rows24,
        {{1, 16}, {17, 80}, {130, 1280}, {16 * 132 + 21, 144}, {33, 4096}, {47, 2096}},
        {17, 24, 23, 18, 20}, {64, 128, 256, QK_GROUP_ROW, 1024},
        {QK_FORMAT_F16, QK_FORMAT_F16, QK_FORMAT_BF16}, rng);
}

TEST(CudaSomeRows, ManyRowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(19);
    const struct {
        qk_format format, type;
        int32_t group;
        int64_t n, k;
    } cases[] = {
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128, 144, 4368},
        {QK_FORMAT_NF4, QK_FORMAT_F16, 64, 132 * 16 * 9 + 9, 2304},
        {QK_FORMAT_NF4, QK_FORMAT_BF16, 128, 2120, 4096},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 64, 132 * 16 * 14, 400},
    };
    for (const auto &[format, type, group, n, k] : cases) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, n, k),
                                 type, 24, rng);
        SCOPED_TRACE(describe(p));
        const DeviceWeight w = packed_weight(p.w);
        const auto all = run_on_device(qk::cuda::kLinearSm90Rows24, p, w, 0, p.m);
        expect_within_bound(p, all, 1, group == 64 ? 1 : 2);
        for (const int64_t batch : {17, 18, 23}) {
            for (int64_t i = 0; i + batch <= p.m; ++i) {
                ASSERT_NO_FATAL_FAILURE(
                    expect_batch_of(all, qk::cuda::kLinearSm90Rows24, p, w, i, batch));
            }
        }
    }
}

// Which kernel takes 16, 17, 24 and 25 rows of x; large weights are only asked about.
TEST(CudaSomeRows, ManyRowsAreForLargeWeights) {
    QK_NEEDS_DEVICE();
    if (device_0().capability != 90) GTEST_SKIP() << "the matrix kernel needs sm_90a";
    Rng rng(20);
    const struct {
        qk_format format, scale;
        int64_t n, k;
        bool many;
    } cases[] = {
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 8192, 8192, true},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 4096, 14336, false},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 8192, 8192, false},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 28672, 4096, true},
        {QK_FORMAT_NF4, QK_FORMAT_LUT8, 6144, 4096, true},
        // more than the workspace holds of it when it is repacked
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128256, 4096, false},
    };
    for (const auto &[format, scale, n, k, many] : cases) {
        Problem p = make_problem(weight_desc(format, scale, QK_LAYOUT_ROW, 64, 64, 256),
                                 QK_FORMAT_F16, 1, rng);
        const DeviceWeight small = packed_weight(p.w);
        qk::Weight w = small.view();
        w.geometry.n = n;
        w.geometry.k = k;
        w.geometry.groups_per_row = k / 64;
        w.geometry.group_count = n * (k / 64);
        const DeviceBuffer x(p.x), y(p.x);
        const qk::Format *const type = qk::find_format(p.type);
        for (const int64_t m : {16, 17, 24, 25}) {
            SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(k) + ", " + std::to_string(m));
            const qk::LinearArgs args = {
                {type, m, k, x.data()}, w, nullptr, {type, m, n, y.data()}};
            const auto *const kernel =
                qk::kCudaBackend.plan_linear(args, device_0(), {0, SIZE_MAX}, nullptr).kernel;
            EXPECT_EQ(kernel == &qk::cuda::kLinearSm90Rows24, many && m > 16 && m < 25);
            EXPECT_EQ(kernel == &qk::cuda::kLinearSm90Gemm, m > 24 || (m > 16 && !many));
        }
    }
}

TEST(CudaSomeRows, F32IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(14);
    check_packed_kernel(
        qk::cuda::kLinearSm90SomeRows,
        {{1, 16}, {17, 80}, {130, 1280}, {16 * 132 + 21, 144}, {33, 4096}, {100, 2096}},
        {2, 8, 9, 16, 5, 3, 17, 1}, {64, 128, 32, 256, QK_GROUP_ROW, 16}, {QK_FORMAT_F32}, rng);
}

// What no other kernel takes comes here: narrow groups from one row of x on, f32 x up to where
// cuBLASLt is faster, which the generic kernel would take a hundred times as long for.
TEST(CudaSomeRows, TakesWhatOthersLeave) {
    QK_NEEDS_DEVICE();
    Rng rng(17);
    const struct {
        qk_format format, type;
        int32_t group;
        int64_t m;
        bool takes;
    } cases[] = {
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 256, 2, true},
        {QK_FORMAT_NF4, QK_FORMAT_BF16, 256, 16, true},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 16, 2, false},
        {QK_FORMAT_NF4, QK_FORMAT_BF16, 32, 16, false},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 32, 4, false},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 32, 5, true},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 32, 48, true},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 32, 49, false},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 64, 48, false},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 16, 3, true},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 32, 64, true},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 32, 65, false},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, 1, false},
    };
    for (const auto &[format, type, group, m, takes] : cases) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, 64, 256),
                                 type, m, rng);
        SCOPED_TRACE(describe(p));
        const DeviceWeight w = packed_weight(p.w);
        const DeviceBuffer x(p.x), y(std::vector<uint8_t>(p.y_bytes(), 0xff));
        const qk::Format *const of = qk::find_format(type);
        const qk::LinearArgs args = {
            {of, m, p.k(), x.data()}, w.view(), nullptr, {of, m, p.n(), y.data()}};
        const auto *const kernel =
            qk::kCudaBackend.plan_linear(args, device_0(), {0, SIZE_MAX}, nullptr).kernel;
        EXPECT_EQ(kernel == &qk::cuda::kLinearSm90SomeRows, takes) << kernel->name;
        EXPECT_NE(kernel, &qk::cuda::kLinearGeneric);
    }
}

// Infinite and undefined values of x stay in their row; y and the bias may have any address, x may
// not.
TEST(CudaSomeRows, OddPlacesAndOddValues) {
    QK_NEEDS_DEVICE();
    Rng rng(15);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
        Problem p = make_problem(
            weight_desc(QK_FORMAT_NF4, QK_FORMAT_F16, QK_LAYOUT_ROW, 32, 37, 592), type, 5, rng);
        const DeviceWeight w = packed_weight(p.w);
        const size_t bytes = type == QK_FORMAT_F32 ? 4 : 2, row = size_t(p.n()) * bytes;
        const auto expected = run_on_device(qk::cuda::kLinearSm90SomeRows, p, w, 0, p.m);
        for (size_t i = 0; i < bytes; ++i) p.x[size_t(2 * p.k()) * bytes + i] = 0xff;  // NaN
        const qk::Format *const format = qk::find_format(type);
        const DeviceBuffer x(p.x, 8), aligned_x(p.x), bias(p.bias, 1),
            y(std::vector<uint8_t>(expected.size(), 0xff), bytes);
        const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
        qk::LinearArgs args = {
            {format, p.m, p.k(), x.data()}, w.view(), &b, {format, p.m, p.n(), y.data()}};
        EXPECT_FALSE(qk::cuda::kLinearSm90SomeRows.can_run(args, device_0()));
        args.x.data = aligned_x.data();
        ASSERT_TRUE(qk::cuda::kLinearSm90SomeRows.can_run(args, device_0()));
        qk::ErrorText error = {};
        ASSERT_EQ(qk::cuda::kLinearSm90SomeRows.run(args, device_launch(&error)), QK_OK)
            << error.text;
        const auto actual = y.read();
        for (size_t i = 0; i < size_t(p.m); ++i) {
            if (i == 2) continue;
            EXPECT_EQ(memcmp(&actual[i * row], &expected[i * row], row), 0) << "row " << i;
        }
        for (int64_t c = 0; c < p.n(); ++c) {
            EXPECT_TRUE(std::isnan(float_at(type, actual, 2 * p.n() + c))) << "column " << c;
        }
    }
}

// Products queued one behind the other, y of one being x of the next: they overlap, and give the
// bits of products that wait.
TEST(CudaSomeRows, AChainKeepsItsBits) {
    QK_NEEDS_DEVICE();
    Rng rng(16);
    const int64_t n = 4112, m = 9;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 128, n, n),
                                 QK_FORMAT_BF16, m, rng);
        const DeviceWeight w = packed_weight(p.w);
        const DeviceBuffer first(p.x), second(p.x);
        void *const buffers[2] = {first.data(), second.data()};
        const qk::Format *const type = qk::find_format(p.type);
        qk::ErrorText error = {};
        const auto chain = [&](bool wait) {
            EXPECT_EQ(cudaMemcpy(buffers[0], p.x.data(), p.x.size(), cudaMemcpyHostToDevice),
                      cudaSuccess);
            for (int i = 0; i < 5; ++i) {
                const qk::LinearArgs args = {{type, m, n, buffers[i % 2]},
                                             w.view(),
                                             nullptr,
                                             {type, m, n, buffers[(i + 1) % 2]}};
                EXPECT_EQ(qk::cuda::kLinearSm90SomeRows.run(args, device_launch(&error)), QK_OK);
                if (wait) cudaDeviceSynchronize();
            }
            return second.read();
        };
        const auto expected = chain(true);
        for (int repeat = 0; repeat < 20; ++repeat) ASSERT_EQ(chain(false), expected);
    }
}

// A row of y does not depend on its batch: 8 rows of x and 16 have kernels of their own, more take
// passes.
TEST(CudaSomeRows, KnowsNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(11);
    const struct {
        qk_format format, type;
        int32_t group;
        int64_t n, k;
    } cases[] = {
        // clusters of blocks, and blocks alone
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 64, 144, 4368},
        {QK_FORMAT_NF4, QK_FORMAT_F16, 64, 132 * 16 * 9 + 9, 2304},
        {QK_FORMAT_NF4, QK_FORMAT_BF16, 32, 132 * 16 * 3 + 9, 1168},
        {QK_FORMAT_NF4, QK_FORMAT_BF16, 32, 2120, 4096},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 16, 132 * 16 * 2 + 9, 1168},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 128, 144, 2304},
    };
    for (const auto &[format, type, group, n, k] : cases) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, n, k),
                                 type, 35, rng);
        const DeviceWeight w = packed_weight(p.w);
        ASSERT_NO_FATAL_FAILURE(expect_rows_know_no_batch(qk::cuda::kLinearSm90SomeRows, p, w));
    }
}

}  // namespace
}  // namespace cuda_test

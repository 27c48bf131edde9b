// y = x . w from packed weights: within the bound of its roundings, with every extra that a product
// may have, and a row of y the same in every batch. The same tests run on simulated threads (of the
// matrix kernel, its host code).
#include <numeric>

#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

using qk::cuda::kLinearSm90GemmTransposed;
using qk::cuda::kLinearTransposed;
using qk::cuda::kLinearTransposedRows;
using Kernel = qk::Kernel<qk::LinearArgs>;

// A product with all that it may be besides.
struct Case {
    HostWeight w;
    qk_format type, y_type;
    int64_t m, x_stride, y_stride;
    bool accumulates;
    std::vector<uint8_t> x, bias, y, order;  // y: what it held

    int64_t n() const { return w.shape.rows; }
    int64_t k() const { return w.shape.columns; }
};

// What a kernel takes: any product; rows of x of whole 16 bytes; and y in x's type that is not
// added to.
enum class Takes { kAny, kWholeRows, kPlain };
Takes taken_by(const Kernel &kernel) {
    if (&kernel == &kLinearTransposed) return Takes::kAny;
    return &kernel == &kLinearTransposedRows ? Takes::kWholeRows : Takes::kPlain;
}

Case make_case(const qk_tensor_desc &desc, qk_format type, int64_t m, int at, Rng &rng,
               Takes takes) {
    const bool plain = takes == Takes::kPlain;
    Case c = {random_weight(desc, rng),
              type,
              !plain && at % 3 == 0 ? qk_format{QK_FORMAT_F32} : type,
              m,
              0,
              0,
              !plain && at % 4 == 1,
              {},
              {},
              {},
              {}};
    c.x_stride = takes == Takes::kAny ? c.n() + at % 2 * 6 : qk::round_up(c.n(), 8) + at % 2 * 8;
    c.y_stride = c.k() + at % 5;
    c.x = random_floats(type, m * c.x_stride, rng);
    c.bias = random_floats(QK_FORMAT_F32, c.k(), rng);
    c.y = random_floats(c.y_type, m * c.y_stride, rng);
    if (at % 5 == 2) {
        std::vector<int32_t> order(size_t(c.k()), 0);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rng);
        c.order.resize(order.size() * 4);
        memcpy(c.order.data(), order.data(), c.order.size());
    }
    return c;
}

int64_t bytes_of(qk_format type) { return type == QK_FORMAT_F32 ? 4 : 2; }

// Rows [first, first + rows) of x; what lies between rows of y stays as it was.
std::vector<uint8_t> run(const Kernel &kernel, const Case &c, const DeviceWeight &weight,
                         int64_t first, int64_t rows) {
    const size_t x_row = size_t(c.x_stride * 2), y_row = size_t(c.y_stride * bytes_of(c.y_type));
    const auto part = [&](const std::vector<uint8_t> &of, size_t row) {
        return std::vector<uint8_t>(of.begin() + long(size_t(first) * row),
                                    of.begin() + long(size_t(first + rows) * row));
    };
    const DeviceBuffer x(part(c.x, x_row)), bias(c.bias), y(part(c.y, y_row)), order(c.order);
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    const qk::Dense b = {f32, 1, c.k(), bias.data()};
    qk::LinearArgs args = {};
    args.x = {qk::find_format(c.type), rows, c.n(), x.data(), c.x_stride};
    args.w = weight.view();
    args.w.order = c.order.empty() ? nullptr : order.data();
    args.bias = &b;
    args.y = {qk::find_format(c.y_type), rows, c.k(), y.data(), c.y_stride};
    args.transposed = true;
    args.accumulate = c.accumulates;
    qk::ErrorText error = {};
    EXPECT_TRUE(kernel.can_run(args, device_0()));
    qk::Launch launch = device_launch(&error);
    const DeviceBuffer workspace =
        give_workspace(qk::workspace_of(kernel, args, launch.device), &launch);
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    return y.read();
}

// An entry (looked up), a scale and their product are rounded to x's type, in f16 by 2^-25 at
// least, of entries up to 15. Sums are f32: a product of 16 rows adds 17 terms and may truncate,
// then come those of the warps, the blocks, the bias and what y held.
// `step`: of how many columns one is looked at.
void expect_within(Case &c, const std::vector<uint8_t> &y, int64_t step = 1) {
    const std::vector<float> w = values_of(c.w);
    const double unit = rounding_of(c.type), y_unit = rounding_of(c.y_type);
    const double terms = 3.01 * unit + (double(c.n()) * 1.1 + 40) * 0x1p-23;
    const double least = c.type == QK_FORMAT_F16 ? 17 * 0x1p-25 : 0;
    for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t column = i % step; column < c.k(); column += step) {
            int32_t to = int32_t(column);
            if (!c.order.empty()) memcpy(&to, &c.order[size_t(column) * 4], 4);
            double exact = float_at(QK_FORMAT_F32, c.bias, to), size = std::fabs(exact), inputs = 0;
            for (int64_t r = 0; r < c.n(); ++r) {
                const double x = float_at(c.type, c.x, i * c.x_stride + r);
                exact += x * w[size_t(r * c.k() + column)];
                size += std::fabs(x * w[size_t(r * c.k() + column)]);
                inputs += std::fabs(x);
            }
            const int64_t at = i * c.y_stride + to;
            if (c.accumulates) {
                exact += float_at(c.y_type, c.y, at);
                size += std::fabs(float_at(c.y_type, c.y, at));
            }
            const double sum = size * terms + inputs * least;
            const double bound = sum + y_unit * (std::fabs(exact) + sum) +
                                 (c.y_type == QK_FORMAT_F16 ? 0x1p-25 : 0x1p-133);
            ASSERT_LE(std::fabs(float_at(c.y_type, y, at) - exact), bound) << i << " " << column;
        }
    }
}

void expect_gaps_kept(const Case &c, const std::vector<uint8_t> &y) {
    const int64_t bytes = bytes_of(c.y_type);
    for (int64_t i = 0; i < c.m; ++i) {
        const int64_t from = (i * c.y_stride + c.k()) * bytes;
        const size_t gap = size_t((c.y_stride - c.k()) * bytes);
        ASSERT_EQ(memcmp(&y[0] + from, &c.y[0] + from, gap), 0) << "behind row " << i;
    }
}

// Scales of rows that fill up the last tiles become NaNs.
void spoil_padding(HostWeight *packed) {
    const qk::Weight w = packed->view();
    const qk::Geometry &s = w.geometry;
    const int64_t bytes = w.scale.format->bits / 8;
    for (int64_t row = s.n; row < qk::round_up(s.n, 16); ++row) {
        for (int64_t group = 0; group < s.groups_per_row; ++group) {
            const int64_t at = w.layout->scale_at(s, {row, group}) * bytes;
            memset(&packed->planes[QK_PLANE_SCALE][size_t(at)], 0xff, size_t(bytes));
        }
    }
}

struct Kind {
    qk_format format, scale;
    int32_t group;
};
const Kind kKinds[] = {
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 64},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 16},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_GROUP_ROW},
    {QK_FORMAT_NF4, QK_FORMAT_F32, 64},
    {QK_FORMAT_NF4, QK_FORMAT_LUT8, 64},
    {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, 32},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16},
    {QK_FORMAT_NF4, QK_FORMAT_LUT8, 32},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_LUT8, 16},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 16},
};

struct Shape {
    int64_t n, k, m;
};

// Number `at` of a test's cases: of this kind and shape, with what the number says.
void expect_case_within(const Kernel &kernel, const Kind &kind, const Shape &s, int at, Rng &rng,
                        int64_t step = 1) {
    const bool symmetric = kind.format == QK_FORMAT_U4_AFFINE && at % 4 == 0;
    qk_tensor_desc desc =
        weight_desc(kind.format, kind.scale, QK_LAYOUT_ROW, kind.group, s.n, s.k, symmetric);
    if (kind.scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
    if (kind.scale == QK_FORMAT_E4M3 && at % 2 == 0) desc.flags |= QK_TENSOR_GLOBAL;
    Case c = make_case(desc, at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16, s.m, at, rng,
                       taken_by(kernel));
    SCOPED_TRACE("format " + std::to_string(kind.format) + " group " + std::to_string(kind.group) +
                 " n " + std::to_string(s.n) + " k " + std::to_string(s.k) + " m " +
                 std::to_string(c.m));
    HostWeight packed = packed_on_host(c.w);
    spoil_padding(&packed);
    const DeviceWeight w(packed);
    const std::vector<uint8_t> y = run(kernel, c, w, 0, c.m);
    ASSERT_NO_FATAL_FAILURE(expect_within(c, y, step));
    ASSERT_NO_FATAL_FAILURE(expect_gaps_kept(c, y));
}

// Rows and columns that end inside tiles, one block a strip and several, groups of every kind, rows
// of x in one pass and more.
TEST(CudaTransposed, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(31);
    const int64_t shapes[][2] = {{2, 16}, {18, 80}, {130, 64}, {300, 208}, {1040, 80}};
    const int64_t batches[] = {1, 3, 8, 9, 16, 21};
    int at = 0;
    for (const Kind &kind : kKinds) {
        for (const auto &[n, k] : shapes) {
            const Shape shape = {n, k, batches[at % 6]};
            ASSERT_NO_FATAL_FAILURE(expect_case_within(kLinearTransposed, kind, shape, at++, rng));
        }
    }
}

// The same of the kernel of up to 16 rows, with strips of one block and of several, and warps with
// no tiles, with some and (on simulated threads) with more than a ring has room for; an odd n.
TEST(CudaTransposed, FewRowsAreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    if (device_0().capability < 90) GTEST_SKIP() << "needs sm_90";
    Rng rng(37);
    const Kind kinds[] = {
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 64},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 128},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 64},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_GROUP_ROW},
        {QK_FORMAT_NF4, QK_FORMAT_LUT8, 64},
        {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, 128},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_E4M3, 256},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_GROUP_ROW},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_LUT8, 64},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 16},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_E4M3, 32},
        {QK_FORMAT_NF4, QK_FORMAT_F32, 32},
        {QK_FORMAT_FP4_BNB, QK_FORMAT_BF16, 16},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 16},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 32},
        {QK_FORMAT_U4_AFFINE, QK_FORMAT_E4M3, 16},
        {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, 32},
    };
    const int64_t shapes[][2] = {{2, 16}, {18, 80}, {131, 64}, {300, 208}, {1040, 400}};
    const int64_t batches[] = {1, 3, 8, 9, 16, 12};
    int at = 0;
    for (const Kind &kind : kinds) {
        for (const auto &[n, k] : shapes) {
            const Shape shape = {n, k, batches[at % 6]};
            ASSERT_NO_FATAL_FAILURE(
                expect_case_within(kLinearTransposedRows, kind, shape, at++, rng));
        }
    }
}

// The same of the matrix kernel, of every block of rows of x, and clusters that cut n.
TEST(CudaTransposed, MatrixKernelIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(34);
    const int64_t shapes[][2] = {{2, 16}, {18, 80}, {130, 64}, {300, 208}, {1040, 80}};
    const int64_t batches[] = {1, 33, 64, 65, 150, 300};
    int at = 0;
    for (const Kind &kind : kKinds) {
        for (const auto &[n, k] : shapes) {
            const Shape shape = {n, k, batches[at % 6]};
            ASSERT_NO_FATAL_FAILURE(
                expect_case_within(kLinearSm90GemmTransposed, kind, shape, at++, rng));
        }
    }
}

// More items than multiprocessors (where these are real): blocks go from one to the next, the last
// wave is cut.
TEST(CudaTransposed, MatrixKernelTakesItemAfterItem) {
    QK_NEEDS_DEVICE();
    Rng rng(35);
#if defined(QK_CUDA_SIMULATED)
    const int64_t blocks = 3;
#else
    const int64_t blocks = device_0().multiprocessors + 9;
#endif
    int at = 0;
    for (const Kind &kind : kKinds) {
        const Shape shape = {at % 3 == 0 ? 264 : 72, blocks * 128 - 48, 65 + at * 40};
        ASSERT_NO_FATAL_FAILURE(
            expect_case_within(kLinearSm90GemmTransposed, kind, shape, at++, rng, 97));
    }
}

// Of each kernel some rows of a batch, with another number of them.
TEST(CudaTransposed, RowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(32);
    const auto expect = [&](const Kernel &kernel, qk_format format, int32_t group, int64_t m,
                            std::initializer_list<int64_t> batches) {
        const Case c = make_case(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, 1100, 80),
                                 QK_FORMAT_F16, m, 1, rng, taken_by(kernel));
        HostWeight host = c.w;
        const DeviceWeight w(packed_on_host(host));
        const std::vector<uint8_t> all = run(kernel, c, w, 0, c.m);
        const size_t row = all.size() / size_t(c.m);
        for (const int64_t batch : batches) {
            const int64_t first = c.m - batch;
            const std::vector<uint8_t> some = run(kernel, c, w, first, batch);
            ASSERT_EQ(memcmp(some.data(), all.data() + size_t(first) * row, some.size()), 0)
                << batch;
        }
    };
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        expect(kLinearTransposed, format, 64, 19, {1, 8, 17});
        if (device_0().capability < 90) continue;
        for (const int32_t group : {64, 32, 16}) {
            expect(kLinearTransposedRows, format, group, 16, {1, 7, 8, 9});
        }
    }
}

// To 64 rows of x, and from 65 to 128: batches of different blocks of rows.
TEST(CudaTransposed, RowsOfTheMatrixKernelKnowNoBatchOfTheirClass) {
    QK_NEEDS_DEVICE();
    Rng rng(36);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        const Case c = make_case(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 1100, 80),
                                 QK_FORMAT_F16, 128, 1, rng, Takes::kPlain);
        HostWeight host = c.w;
        const DeviceWeight w(packed_on_host(host));
        for (const auto &[most, fewer] :
             {std::pair{64, 7}, std::pair{64, 32}, std::pair{128, 65}}) {
            const std::vector<uint8_t> all = run(kLinearSm90GemmTransposed, c, w, 0, most);
            const std::vector<uint8_t> some = run(kLinearSm90GemmTransposed, c, w, 0, fewer);
            ASSERT_EQ(memcmp(some.data(), all.data(), some.size()), 0) << fewer;
        }
    }
}

// What it does not take, and that the table takes it where it can.
TEST(CudaTransposed, IsChosen) {
    QK_NEEDS_DEVICE();
    Rng rng(33);
    HostWeight host =
        random_weight(weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 96, 128), rng);
    const DeviceWeight w(packed_on_host(host));
    const DeviceBuffer x(std::vector<uint8_t>(50 * 96 * 4, 0));
    const DeviceBuffer y(std::vector<uint8_t>(50 * 128 * 4, 0));
    const auto chosen = [&](qk_format type, int64_t m, bool transposed) {
        const qk::Format *const format = qk::find_format(type);
        qk::LinearArgs args = {};
        args.x = {format, m, transposed ? 96 : 128, x.data()};
        args.w = w.view();
        args.y = {format, m, transposed ? 128 : 96, y.data()};
        args.transposed = transposed;
        for (const Kernel *const kernel :
             {&kLinearTransposed, &kLinearTransposedRows, &kLinearSm90GemmTransposed}) {
            const bool few = m <= 16 || kernel != &kLinearTransposedRows;
            const bool can = transposed && type != QK_FORMAT_F32 && few;
            if (can && kernel != &kLinearTransposed && device_0().capability != 90) continue;
            EXPECT_EQ(kernel->can_run(args, device_0()), can);
        }
        return qk::kCudaBackend.plan_linear(args, device_0(), {0, SIZE_MAX}, nullptr).kernel;
    };
    const Kernel *const many =
        device_0().capability == 90 ? &kLinearSm90GemmTransposed : &kLinearTransposed;
    const Kernel *const few =
        device_0().capability == 90 ? &kLinearTransposedRows : &kLinearTransposed;
    EXPECT_EQ(chosen(QK_FORMAT_F16, 1, true), few);
    EXPECT_EQ(chosen(QK_FORMAT_F16, 8, true), few);
    EXPECT_EQ(chosen(QK_FORMAT_F16, 16, true), few);
    EXPECT_EQ(chosen(QK_FORMAT_F16, 17, true), many);
    EXPECT_EQ(chosen(QK_FORMAT_BF16, 48, true), many);
    EXPECT_NE(chosen(QK_FORMAT_F32, 1, true), &kLinearTransposed);
    EXPECT_NE(chosen(QK_FORMAT_F16, 1, false), &kLinearTransposed);
}

}  // namespace
}  // namespace cuda_test

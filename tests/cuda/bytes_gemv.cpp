// 8-bit codes straight from their rows for one row of x (linear/stored/bytes_gemv.cu): groups,
// tails, several rows of tiles a block, tables of any range, addresses. The same tests run on
// simulated threads.
#include "cuda/bytes_problem.hpp"

namespace cuda_test {
namespace {

const qk::Kernel<qk::LinearArgs> &kKernel = qk::cuda::kLinearBytesGemv;

// Products of 16-bit operands are exact in f32. A tile of 64 columns is added on tensor cores from
// zero (17 additions for 16 columns, for two terms of an entry 34) and folded with its scale (a
// product's and a sum's rounding); a lane adds up two tiles of each of a warp's units, four lanes
// and 16 partial sums are added, and the bias. Additions may truncate: 2^-23 of the sum of
// magnitudes each. Entries of a table are two terms of 16 bits, to 2^-17 of them; where they are
// not, lanes add every 32nd column up.
void expect_bytes_within_bound(Problem &p, const std::vector<uint8_t> &y) {
    const qk::Geometry &s = p.w.shape.geometry;
    const std::vector<float> w = values_of(p.w);
    const double unit = rounding_of(p.type);
    const bool table = p.w.shape.format->kind == qk::FormatKind::kLut8;
    const double tiles = 2 * std::ceil(double(s.k) / 8192);
    const double lanes = table ? double(s.k) / 32 + 8 : 0;
    const double additions = std::max(17.0 * 4 * (table ? 2 : 1) + 2 * tiles + 2 + 16 + 1, lanes);
    const int64_t step = 1 + s.n / 400;
    for (int64_t r = 0; r < s.n; r += step) {
        const auto [exact, magnitude] =
            exact_sum(p.type, p.x, 0, &w[size_t(r * s.k)], s.k, float_at(QK_FORMAT_F32, p.bias, r));
        // w itself was rounded to f32 once: 2^-24 of each term.
        const double sum = magnitude * (additions * 0x1p-23 + 0x1p-24 + (table ? 0x1p-17 : 0));
        const double least = p.type == QK_FORMAT_F16 ? 0x1p-25 : 0x1p-133;
        const double bound = sum + unit * (std::fabs(exact) + sum) + least;
        ASSERT_LE(std::fabs(float_at(p.type, y, r) - exact), bound) << "row " << r;
    }
}

void check(Problem &p) {
    SCOPED_TRACE(describe(p));
    const DeviceWeight w(p.w);
    const auto y = run_on_device(kKernel, p, w, 0, 1);
    expect_bytes_within_bound(p, y);
    for (int i = 0; i < (kSimulated ? 0 : 2); ++i) ASSERT_EQ(run_on_device(kKernel, p, w, 0, 1), y);
}

// Rows and columns around every edge: tiles of 16 rows and 64 columns, units of 512, rows of tiles
// that several warps, blocks and turns of blocks have.
TEST(CudaBytesGemv, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    using Shapes = std::vector<std::pair<int64_t, int64_t>>;
    const Shapes shapes = kSimulated ? Shapes{{1, 16}, {37, 592}, {300, 80}, {17, 8720}}
                                     : Shapes{{1, 16},
                                              {7, 128},
                                              {17, 144},
                                              {16, 2048},
                                              {40, 4096},
                                              {64, 1040},
                                              {5, 8720},
                                              {300, 272},
                                              {156, 16432},
                                              {16 * 132 * 5 + 3, 528},
                                              {16 * 132 * 33 + 16, 112}};
    const int32_t groups[] = {64, QK_GROUP_ROW, 128, 256, 1024};
    Rng rng(57);
    size_t at = 0;
    for (const qk_format scale : kByteScales) {
        for (const int32_t group : groups) {
            for (const auto &[n, k] : shapes) {
                for (const qk_format format : kByteFormats) {
                    ++at;
                    if ((kSimulated || n > 1000) && at % 4 != 0) continue;
                    const qk_format type = at % 3 == 0 ? QK_FORMAT_BF16 : QK_FORMAT_F16;
                    Problem p = bytes_problem(format, scale, group, n, k, type, 1, rng);
                    check(p);
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// Entries whose range two halves do not have: a row of small ones alone must come out right.
TEST(CudaBytesGemv, TablesOfAnyRange) {
    QK_NEEDS_DEVICE();
    Rng rng(58);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int span : {20, 40, 120}) {
            Problem p = wide_table_problem(type, 1, span, rng);
            SCOPED_TRACE("span " + std::to_string(span));
            check(p);
            if (HasFailure()) return;
        }
    }
}

TEST(CudaBytesGemv, TablesOfAnyValues) {
    QK_NEEDS_DEVICE();
    Rng rng(59);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int32_t group : {64, QK_GROUP_ROW}) {
            check_table_values(kKernel, group, type, 1, true, rng);
        }
    }
}

// Codes that are no numbers stay in their rows: where w ends, lanes may have such a code in their
// registers, as they begin with or of a row of tiles before.
void check_special_codes(qk_format format, qk_format type, int64_t n, int64_t k, Rng &rng) {
    Problem p = bytes_problem(format, QK_FORMAT_F32, QK_GROUP_ROW, n, k, type, 1, rng);
    SCOPED_TRACE(describe(p));
    const bool table = format == QK_FORMAT_LUT8;
    const uint8_t special[] = {uint8_t(table ? 0 : 127), 255};
    for (uint8_t &code : p.w.planes[QK_PLANE_DATA]) {
        if (code == special[0] || code == special[1]) code = 1;
    }
    if (table) set_table(p, 0, INFINITY), set_table(p, 255, NAN);
    const auto expected = run_on_device(kKernel, p, DeviceWeight(p.w), 0, 1);
    for (int64_t column = 0; column < k; ++column) {
        p.w.planes[QK_PLANE_DATA][size_t(4 * k + column)] = special[0];
        p.w.planes[QK_PLANE_DATA][size_t(20 * k + column)] = special[1];
    }
    const auto y = run_on_device(kKernel, p, DeviceWeight(p.w), 0, 1);
    for (int64_t r = 0; r < n; ++r) {
        const float value = float_at(type, y, r);
        if (r == 4 || r == 20) {
            EXPECT_FALSE(std::isfinite(value)) << r;
        } else {
            ASSERT_EQ(value, float_at(type, expected, r)) << r;
        }
    }
}

TEST(CudaBytesGemv, SpecialCodesStayInTheirRows) {
    QK_NEEDS_DEVICE();
    Rng rng(60);
    const int64_t several = 16 * 9 * device_0().multiprocessors + 5;
    for (const qk_format format : {QK_FORMAT_E4M3, QK_FORMAT_LUT8}) {
        for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
            check_special_codes(format, type, 37, 48, rng);
            check_special_codes(format, type, several, 1104, rng);
            if (HasFailure()) return;
        }
    }
}

// What the kernel does not take, and y and the bias at any address.
TEST(CudaBytesGemv, OddPlaces) {
    QK_NEEDS_DEVICE();
    Rng rng(61);
    Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, 64, 37, 592, QK_FORMAT_F16, 1, rng);
    const DeviceWeight w(p.w), odd(p.w, 8);
    const auto expected = run_on_device(kKernel, p, w, 0, 1);
    const qk::Format *const format = qk::find_format(p.type);
    const DeviceBuffer x(p.x), odd_x(p.x, 8), bias(p.bias, 1),
        y(std::vector<uint8_t>(expected.size(), 0xff), 2);
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
    qk::LinearArgs args = {
        {format, 1, p.k(), x.data()}, w.view(), &b, {format, 1, p.n(), y.data()}};
    ASSERT_TRUE(kKernel.can_run(args, device_0()));
    qk::ErrorText error = {};
    ASSERT_EQ(kKernel.run(args, device_launch(&error)), QK_OK) << error.text;
    EXPECT_EQ(y.read(), expected);
    args.w = odd.view();
    EXPECT_FALSE(kKernel.can_run(args, device_0()));
    args.w = w.view();
    args.x.data = odd_x.data();
    EXPECT_FALSE(kKernel.can_run(args, device_0()));
    args.x = {format, 2, p.k(), x.data()};
    EXPECT_FALSE(kKernel.can_run(args, device_0()));
    for (const int32_t group : {32, 192}) {
        Problem other =
            bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, group, 37, 592, QK_FORMAT_F16, 1, rng);
        const DeviceWeight of_other(other.w);
        args = {{format, 1, p.k(), x.data()}, of_other.view(), &b, {format, 1, p.n(), y.data()}};
        EXPECT_FALSE(kKernel.can_run(args, device_0())) << group;
    }
}

}  // namespace
}  // namespace cuda_test

// 8-bit codes in rows on the matrix kernels (linear/sm90/gemm/source_8bit.cuh): every cut, tails,
// groups, scales, bits that repeat and do not depend on the batch.
#include "cuda/bytes_problem.hpp"

namespace cuda_test {
namespace {

using qk::cuda::kLinearSm90Gemm8Bit;

constexpr char kNoGemm[] = "the matrix kernel needs sm_90 and a build for sm_90a";

bool runs(const Problem &p, const DeviceWeight &w) {
    const qk::Format *const type = qk::find_format(p.type);
    return kLinearSm90Gemm8Bit.can_run(
        {{type, p.m, p.k(), nullptr}, w.view(), nullptr, {type, p.m, p.n(), nullptr}}, device_0());
}

// To 64 rows of x 64 columns are summed from zero (68 additions) and folded with their scale (2 a
// tile); at most 8 sums of warpgroups are added, and the bias; entries of a table are rounded once.
// More: entry, scale and their product are rounded to x's type, in f16 to 2^-25 at least where they
// are small, of numbers up to 16; one sum runs through k. Additions may truncate.
void expect_gemm(Problem &p, const std::vector<uint8_t> &y) {
    const qk::Geometry &s = p.w.shape.geometry;
    const std::vector<float> w = values_of(p.w);
    const double unit = rounding_of(p.type), k = double(s.k);
    const bool table = p.w.shape.format->id == QK_FORMAT_LUT8, wide = p.m > 64;
    const bool f16 = p.type == QK_FORMAT_F16;
    const double relative = wide ? (table ? 3.01 : 2.01) * unit : table ? unit : 0;
    const double absolute = wide && f16 ? 17 * 0x1p-25 : 0;
    const double additions = wide ? k * 17 / 16 + 32 + 9 : 68 + 2 * (k / 64 + 1) + 9;
    const int64_t step = 1 + s.n / 60;
    for (int64_t i = 0; i < p.m; i += 1 + p.m / 8) {
        double inputs = 0;
        for (int64_t c = 0; c < s.k; ++c) inputs += std::fabs(float_at(p.type, p.x, i * s.k + c));
        for (int64_t r = i % step; r < s.n; r += step) {
            const auto [exact, magnitude] = exact_sum(p.type, p.x, i, &w[size_t(r * s.k)], s.k,
                                                      float_at(QK_FORMAT_F32, p.bias, r));
            const double sum =
                magnitude * (additions * 0x1p-23 + 0x1p-24 + relative) + inputs * absolute;
            const double bound = sum + unit * (std::fabs(exact) + sum) + (f16 ? 0x1p-25 : 0x1p-133);
            ASSERT_LE(std::fabs(float_at(p.type, y, i * s.n + r) - exact), bound)
                << "row " << i << " column " << r;
        }
    }
}

// Rows around blocks of 64, 128, 192 and 256, columns around tiles, stages and clusters.
TEST(CudaGemmBytes, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(60);
    const std::pair<int64_t, int64_t> shapes[] = {
        {1, 16},   {7, 128},  {65, 144},   {300, 2064},  {40, 4096},   {200, 1040},
        {129, 80}, {64, 528}, {8300, 272}, {12300, 144}, {28700, 272}, {17000, 80}};
    const int64_t batches[] = {17, 64, 33, 5, 31, 300, 32, 48, 16, 129, 20, 65, 128};
    const int32_t groups[] = {128, QK_GROUP_ROW, 64, 256, 192, 1024};
    size_t at = 0;
    for (const qk_format scale : kByteScales) {
        for (const int32_t group : groups) {
            for (const auto &[n, k] : shapes) {
                ++at;
                if (n > 3000 && at % 5 != 0) continue;
                const qk_format type = at / 2 % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
                for (const qk_format format : kByteFormats) {
                    Problem p = bytes_problem(format, scale, group, n, k, type,
                                              batches[at % std::size(batches)], rng);
                    SCOPED_TRACE(describe(p));
                    const DeviceWeight w(p.w);
                    if (!runs(p, w)) GTEST_SKIP() << kNoGemm;
                    const auto y = run_on_device(kLinearSm90Gemm8Bit, p, w, 0, p.m);
                    expect_gemm(p, y);
                    ASSERT_EQ(run_on_device(kLinearSm90Gemm8Bit, p, w, 0, p.m), y);
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// Every cut of more than 64 rows, alone and in clusters, and last waves that are cut.
TEST(CudaGemmBytes, EveryWideCutIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(64);
    const int64_t cases[][3] = {// m, n, k
                                {70, 8200, 1040},  {101, 6100, 1040}, {127, 50, 2064},
                                {129, 12300, 80},  {500, 8200, 80},   {300, 2050, 2064},
                                {100, 12300, 528}, {500, 2050, 2064}, {129, 16910, 656},
                                {500, 20010, 528}};
    for (const auto &[m, n, k] : cases) {
        for (const qk_format format : kByteFormats) {
            Problem p = bytes_problem(format, QK_FORMAT_F32, 64, n, k, QK_FORMAT_F16, m, rng);
            SCOPED_TRACE(describe(p));
            const DeviceWeight w(p.w);
            if (!runs(p, w)) GTEST_SKIP() << kNoGemm;
            expect_gemm(p, run_on_device(kLinearSm90Gemm8Bit, p, w, 0, p.m));
            if (HasFailure()) return;
        }
    }
}

// All widths of product and both heights of block give a row of y the same bits at every m.
TEST(CudaGemmBytes, RowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(61);
    for (const auto &[n, k] : {std::pair<int64_t, int64_t>{200, 4128}, {16900, 144}}) {
        for (const qk_format format : kByteFormats) {
            const qk_format type = k % 32 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
            Problem p = bytes_problem(format, QK_FORMAT_F32, 128, n, k, type, 64, rng);
            SCOPED_TRACE(describe(p));
            const DeviceWeight w(p.w);
            if (!runs(p, w)) GTEST_SKIP() << kNoGemm;
            const auto all = run_on_device(kLinearSm90Gemm8Bit, p, w, 0, 64);
            for (int64_t rows = 5; rows<64; rows += n> 1000 ? 7 : 1) {
                const int64_t first = rows % 2 == 0 ? 0 : 64 - rows;
                ASSERT_NO_FATAL_FAILURE(
                    expect_batch_of(all, kLinearSm90Gemm8Bit, p, w, first, rows));
            }
        }
    }
}

// Ends of k inside a box, many times, the ring going round.
TEST(CudaGemmBytes, RepeatsBitForBit) {
    QK_NEEDS_DEVICE();
    Rng rng(62);
    for (const int64_t m : {20, 64, 100}) {
        for (const int64_t n : {1025, 8193}) {
            const qk_format format = m == 64 ? QK_FORMAT_LUT8 : QK_FORMAT_S8;
            Problem p = bytes_problem(format, QK_FORMAT_F16, 64, n, 4112, QK_FORMAT_F16, m, rng);
            SCOPED_TRACE(describe(p));
            const DeviceWeight w(p.w);
            if (!runs(p, w)) GTEST_SKIP() << kNoGemm;
            const auto y = run_on_device(kLinearSm90Gemm8Bit, p, w, 0, m);
            expect_gemm(p, y);
            for (int repeat = 0; repeat < 20; ++repeat) {
                ASSERT_EQ(run_on_device(kLinearSm90Gemm8Bit, p, w, 0, m), y);
            }
        }
    }
}

// NaN stays in its row of x; what the kernel does not take.
TEST(CudaGemmBytes, OddPlacesAndOddValues) {
    QK_NEEDS_DEVICE();
    Rng rng(63);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        const Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, 64, 37, 592, type, 19, rng);
        if (!runs(p, DeviceWeight(p.w))) GTEST_SKIP() << kNoGemm;
        ASSERT_NO_FATAL_FAILURE(check_odd_places(kLinearSm90Gemm8Bit, 64, type, 19, 5, rng));
    }
    for (const auto &[k, group] : {std::pair{600, 64}, {592, 48}}) {
        Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, group, 8, k, QK_FORMAT_F16, 20, rng);
        EXPECT_FALSE(runs(p, DeviceWeight(p.w)));
    }
}

// Entries whose range an f16 number does not have.
TEST(CudaGemmBytes, TablesOfAnyRange) {
    QK_NEEDS_DEVICE();
    Rng rng(65);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int64_t m : {17, 60}) {
            for (const int span : {20, 40, 120}) {
                Problem p = wide_table_problem(type, m, span, rng);
                SCOPED_TRACE("span " + std::to_string(span));
                const DeviceWeight w(p.w);
                if (!runs(p, w)) GTEST_SKIP() << kNoGemm;
                expect_gemm(p, run_on_device(kLinearSm90Gemm8Bit, p, w, 0, p.m));
                if (HasFailure()) return;
            }
        }
    }
}

TEST(CudaGemmBytes, TablesOfAnyValues) {
    QK_NEEDS_DEVICE();
    Rng rng(66);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int64_t m : {20, 50, 130}) {
            check_table_values(kLinearSm90Gemm8Bit, 64, type, m, false, rng);
        }
    }
}

}  // namespace
}  // namespace cuda_test

// 8-bit codes straight from their rows (linear/stored/bytes.cu): groups, tails, cuts, addresses,
// bits that repeat and do not depend on the batch.
#include "cuda/bytes_problem.hpp"
#include "cuda/linear/stored/bytes_plan.hpp"

namespace cuda_test {
namespace {

// Products of 16-bit operands are exact in f32. 128 columns are added on tensor cores (17 additions
// for 16 of them) from zero and folded with their scale (a product's and a sum's rounding), in
// slices; then at most 16 warps are added, and the bias. Additions may truncate: 2^-23 of the sum
// of magnitudes each. Entries of a table are two terms of 16 bits, to 2^-17 of them; where they are
// not, lanes add every 32nd column up.
void expect_bytes_within_bound(Problem &p, const std::vector<uint8_t> &y) {
    const qk::Geometry &s = p.w.shape.geometry;
    const std::vector<float> w = values_of(p.w);
    const double unit = rounding_of(p.type);
    const bool table = p.w.shape.format->id == QK_FORMAT_LUT8;
    const int64_t parts = s.group_size % 128 == 0 || s.groups_per_row == 1 ? 128 : 16;
    const double chain = 17 * double(std::min<int64_t>(parts, s.k)) / 16;
    const double folds = 2 * (double(s.k) / double(parts) + 1) + 16 + 1;
    const double lanes = table ? double(s.k) / 32 + 8 : 0;
    const double additions = std::max(chain * (table ? 2 : 1) + folds, lanes);
    const int64_t step = 1 + s.n / 400;
    for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t r = i % step; r < s.n; r += step) {
            const auto [exact, magnitude] = exact_sum(p.type, p.x, i, &w[size_t(r * s.k)], s.k,
                                                      float_at(QK_FORMAT_F32, p.bias, r));
            // w itself was rounded to f32 once: 2^-24 of each term.
            const double sum = magnitude * (additions * 0x1p-23 + 0x1p-24 + (table ? 0x1p-17 : 0));
            const double least = p.type == QK_FORMAT_F16 ? 0x1p-25 : 0x1p-133;
            const double bound = sum + unit * (std::fabs(exact) + sum) + least;
            ASSERT_LE(std::fabs(float_at(p.type, y, i * s.n + r) - exact), bound)
                << "row " << i << " column " << r;
        }
    }
}

void check(Problem &p, int repeats) {
    SCOPED_TRACE(describe(p));
    const DeviceWeight w(p.w);
    const auto y = run_on_device(qk::cuda::kLinearBytes, p, w, 0, p.m);
    expect_bytes_within_bound(p, y);
    for (int i = 0; i < repeats; ++i) {
        ASSERT_EQ(run_on_device(qk::cuda::kLinearBytes, p, w, 0, p.m), y);
    }
}

// Rows and columns around every edge: tiles of 16 rows, parts of 16 columns, slices of 128, warps
// that divide k or rows, panels.
TEST(CudaBytes, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(50);
    const std::pair<int64_t, int64_t> shapes[] = {{1, 16},
                                                  {7, 128},
                                                  {17, 144},
                                                  {16, 2048},
                                                  {33, 400},
                                                  {40, 4096},
                                                  {64, 1040},
                                                  {5, 8720},
                                                  {300, 272},
                                                  {16 * 132 * 5 + 3, 528},
                                                  {16 * 132 * 9 + 16, 112}};
    const int64_t batches[] = {1, 2, 8, 16, 3, 9, 17, 1, 40};
    const int32_t groups[] = {128, QK_GROUP_ROW, 64, 256, 32, 16, 48, 1024, 384, 176};
    size_t at = 0;
    for (const qk_format scale : kByteScales) {
        for (const int32_t group : groups) {
            for (const auto &[n, k] : shapes) {
                ++at;
                if (n > 1000 && at % 3 != 0) continue;
                const qk_format type = at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
                for (const qk_format format : kByteFormats) {
                    Problem p = bytes_problem(format, scale, group, n, k, type,
                                              batches[at % std::size(batches)], rng);
                    check(p, 2);
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// A row of y does not depend on its batch: 8 rows of x and 16 have kernels of their own, more take
// passes.
TEST(CudaBytes, RowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(51);
    const struct {
        qk_format format, type;
        int32_t group;
        int64_t n, k;
    } cases[] = {{QK_FORMAT_S8, QK_FORMAT_F16, 128, 144, 4368},
                 {QK_FORMAT_LUT8, QK_FORMAT_F16, 256, 144, 4352},
                 {QK_FORMAT_LUT8, QK_FORMAT_BF16, 32, 2120, 544},
                 {QK_FORMAT_S8, QK_FORMAT_BF16, 64, 300, 528},
                 {QK_FORMAT_E4M3, QK_FORMAT_F16, 128, 144, 4368},
                 {QK_FORMAT_E4M3, QK_FORMAT_BF16, QK_GROUP_ROW, 2120, 544},
                 {QK_FORMAT_S8, QK_FORMAT_F16, QK_GROUP_ROW, 16 * 132 * 5 + 9, 400}};
    for (const auto &[format, type, group, n, k] : cases) {
        Problem p = bytes_problem(format, QK_FORMAT_F32, group, n, k, type, 35, rng);
        SCOPED_TRACE(describe(p));
        const DeviceWeight w(p.w);
        ASSERT_NO_FATAL_FAILURE(expect_rows_know_no_batch(qk::cuda::kLinearBytes, p, w));
        const auto all = run_on_device(qk::cuda::kLinearBytes, p, w, 0, p.m);
        for (int64_t i = 0; i < p.m; i += 3) {
            ASSERT_NO_FATAL_FAILURE(expect_batch_of(all, qk::cuda::kLinearBytes, p, w, i, 1));
        }
    }
}

// Sums of several panels: of few rows of x they meet once for up to eight, of 9 and more each time.
TEST(CudaBytes, PanelsMeetTogether) {
    QK_NEEDS_DEVICE();
    Rng rng(56);
    const int64_t processors = device_0().multiprocessors;
    for (const qk_format format : kByteFormats) {
        for (const int64_t m : {1, 4}) {
            Problem p = bytes_problem(format, QK_FORMAT_F16, 128, 16 * processors * 5 + 24, 2064,
                                      QK_FORMAT_F16, m, rng);
            check(p, 1);
            if (HasFailure()) return;
        }
    }
    // 33 or 34 tiles a block: nine panels.
    Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, QK_GROUP_ROW, 16 * processors * 33 + 40,
                              2048, QK_FORMAT_BF16, 9, rng);
    ASSERT_EQ(qk::cuda::plan_bytes(p.n(), p.k(), int32_t(processors)).panels, 9);
    const DeviceWeight w(p.w);
    const auto all = run_on_device(qk::cuda::kLinearBytes, p, w, 0, p.m);
    for (const int64_t m : {1, 2, 3, 5, 8}) {
        ASSERT_NO_FATAL_FAILURE(expect_batch_of(all, qk::cuda::kLinearBytes, p, w, 9 - m, m));
    }
}

// NaN stays in its row of x, and nothing is read past k's end; what the kernel does not take.
TEST(CudaBytes, OddPlacesAndOddValues) {
    QK_NEEDS_DEVICE();
    Rng rng(52);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        ASSERT_NO_FATAL_FAILURE(check_odd_places(qk::cuda::kLinearBytes, 48, type, 5, 1, rng));
    }
    for (const auto &[k, group] : {std::pair{600, 40}, {584, 128}}) {
        Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, group, 8, k, QK_FORMAT_F16, 1, rng);
        const DeviceWeight w(p.w);
        const DeviceBuffer x(p.x), y(std::vector<uint8_t>(16));
        const qk::Format *const format = qk::find_format(p.type);
        const qk::LinearArgs args = {
            {format, 1, k, x.data()}, w.view(), nullptr, {format, 1, 8, y.data()}};
        EXPECT_FALSE(qk::cuda::kLinearBytes.can_run(args, device_0()));
        EXPECT_TRUE(qk::cuda::kLinearLanes.can_run(args, device_0()));
    }
}

// Ends of k inside a box, many times: a copy of zeros may not overtake the loads before it.
TEST(CudaBytes, EndsOfRowsAreZeros) {
    QK_NEEDS_DEVICE();
    Rng rng(53);
    for (const int64_t m : {3, 11}) {
        for (const qk_format format : kByteFormats) {
            Problem p =
                bytes_problem(format, QK_FORMAT_F16, 128, 2113, 8208, QK_FORMAT_F16, m, rng);
            check(p, 20);
        }
    }
}

// Entries whose range two halves do not have: a row of small ones alone must come out right.
TEST(CudaBytes, TablesOfAnyRange) {
    QK_NEEDS_DEVICE();
    Rng rng(54);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int64_t m : {1, 11}) {
            for (const int span : {20, 40, 120}) {
                Problem p = wide_table_problem(type, m, span, rng);
                SCOPED_TRACE("span " + std::to_string(span));
                check(p, 2);
                if (HasFailure()) return;
            }
        }
    }
}

TEST(CudaBytes, TablesOfAnyValues) {
    QK_NEEDS_DEVICE();
    Rng rng(55);
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int64_t m : {2, 9}) {
            for (const int32_t group : {48, QK_GROUP_ROW}) {
                check_table_values(qk::cuda::kLinearBytes, group, type, m, true, rng);
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

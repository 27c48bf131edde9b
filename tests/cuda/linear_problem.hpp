// A product from a packed weight in the tests of the CUDA kernels: the problem, its run on the
// device, the exact result and its bound.
#pragma once
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

struct Problem {
    HostWeight w;    // layout ROW
    qk_format type;  // of x and y
    int64_t m;
    std::vector<uint8_t> x, bias;

    int64_t n() const { return w.shape.rows; }
    int64_t k() const { return w.shape.columns; }
    size_t y_bytes() const { return size_t(m * n() * (type == QK_FORMAT_F32 ? 4 : 2)); }
};

inline Problem make_problem(const qk_tensor_desc &desc, qk_format type, int64_t m, Rng &rng) {
    Problem p = {random_weight(desc, rng), type, m, {}, {}};
    p.x = random_floats(type, m * p.k(), rng);
    p.bias = random_floats(QK_FORMAT_F32, p.n(), rng);
    return p;
}

inline DeviceWeight packed_weight(HostWeight &w) { return DeviceWeight(packed_on_host(w)); }

// Rows [first, first + rows) of x.
inline std::vector<uint8_t> run_on_device(const qk::Kernel<qk::LinearArgs> &kernel,
                                          const Problem &p, const DeviceWeight &w, int64_t first,
                                          int64_t rows) {
    const size_t row_bytes = p.x.size() / size_t(p.m);
    const DeviceBuffer x({p.x.begin() + long(size_t(first) * row_bytes),
                          p.x.begin() + long(size_t(first + rows) * row_bytes)});
    const DeviceBuffer bias(p.bias),
        y(std::vector<uint8_t>(p.y_bytes() / size_t(p.m) * size_t(rows), 0xff));
    const qk::Format *const type = qk::find_format(p.type);
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
    const qk::LinearArgs args = {
        {type, rows, p.k(), x.data()}, w.view(), &b, {type, rows, p.n(), y.data()}};
    qk::ErrorText error = {};
    EXPECT_TRUE(kernel.can_run(args, device_0()));
    EXPECT_EQ(kernel.run(args, device_launch(&error)), QK_OK) << error.text;
    return y.read();
}

// Rows [first, first + rows) of `all`, the y of all rows of x, as a batch of their own gives them.
inline void expect_batch_of(const std::vector<uint8_t> &all,
                            const qk::Kernel<qk::LinearArgs> &kernel, const Problem &p,
                            const DeviceWeight &w, int64_t first, int64_t rows) {
    const size_t row_bytes = all.size() / size_t(p.m);
    const auto some = run_on_device(kernel, p, w, first, rows);
    ASSERT_EQ(memcmp(some.data(), all.data() + size_t(first) * row_bytes, size_t(rows) * row_bytes),
              0)
        << kernel.name << ": " << rows << " rows from row " << first;
}

// Rows of y have the same bits whatever batch they come in.
inline void expect_rows_know_no_batch(const qk::Kernel<qk::LinearArgs> &kernel, const Problem &p,
                                      const DeviceWeight &w) {
    const auto all = run_on_device(kernel, p, w, 0, p.m);
    for (const int64_t batch : {2, 3, 8, 9, 16, 25}) {
        for (int64_t i = 0; i + batch <= p.m; ++i) {
            ASSERT_NO_FATAL_FAILURE(expect_batch_of(all, kernel, p, w, i, batch));
        }
    }
}

// Row by row: the CPU's order for one row of x is the generic kernel's for any number.
inline std::vector<uint8_t> run_on_host(Problem &p) {
    std::vector<uint8_t> y(p.y_bytes(), 0xff);
    const qk::Format *const type = qk::find_format(p.type);
    const qk::Dense bias = {qk::find_format(QK_FORMAT_F32), 1, p.n(), p.bias.data()};
    const size_t x_bytes = p.x.size() / size_t(p.m), y_bytes = y.size() / size_t(p.m);
    for (size_t i = 0; i < size_t(p.m); ++i) {
        const qk::LinearArgs args = {{type, 1, p.k(), p.x.data() + i * x_bytes},
                                     p.w.view(),
                                     &bias,
                                     {type, 1, p.n(), y.data() + i * y_bytes}};
        EXPECT_EQ(qk::cpu::kLinearGeneric.run(args, host_launch()), QK_OK);
    }
    return y;
}

inline std::string describe(const Problem &p) {
    const qk::Shape &s = p.w.shape;
    return std::string(s.format->name) + " scale " + s.scale_format->name + " group " +
           std::to_string(s.geometry.group_size) + " n " + std::to_string(p.n()) + " k " +
           std::to_string(p.k()) + " m " + std::to_string(p.m) + " type " + std::to_string(p.type);
}

// The bound of the small-batch kernel (linear/sm80/gemv/gemv.cu). Products of 16-bit operands are
// exact in f32. A tensor-core product adds 17 terms; its additions may truncate, so each of the 68
// of a tile costs at most 2^-23 of the sum of magnitudes; so does each fold (a product's and a
// sum's rounding count as two), each slice and the bias. Table entries are first rounded to x's
// type: 2^-11 (f16) or 2^-8 (bf16) of each term. The result is rounded once to y's type, the same
// 2^-11 or 2^-8. f32 (linear/sm90/gemv/f32.cuh): x is two halves, to 2^-23 of it, and so is an
// entry of NF4; what they add up to is put together by 8 operations (one more for FP4's twelfths).
// x whose magnitudes span more than 28 powers of two takes several `rounds`; so do kernels with
// three bfloat16 terms of a value, of which up to six products stand for one. `chain`: tiles of a
// group that one set of sums takes before it is folded. From two rows on 16-bit weights in groups
// of 16 and 32 are multiplied by their scales: an entry, a scale and their product are rounded to
// x's type, in f16 by 2^-25 at least, of entries up to 15; two tiles are one set of sums.
inline void expect_within_bound(Problem &p, const std::vector<uint8_t> &y, int rounds = 1,
                                int chain = 1) {
    const qk::Geometry &s = p.w.shape.geometry;
    const std::vector<float> w = values_of(p.w);
    const double unit = rounding_of(p.type);
    const bool table = p.w.shape.format->kind == qk::FormatKind::kLut4;
    const bool wide = p.type == QK_FORMAT_F32;
    const bool small = s.groups_per_row > 1 && s.group_size < 64,
               scaled = small && !wide && p.m > 1;
    const double rounded = scaled ? 2.01 * unit : 0, least_weight = scaled ? 17 * 0x1p-25 : 0;
    const double terms = (wide ? 0x1p-23 : 0) + (table ? (wide ? 0x1p-23 : unit) : 0) + rounded;
    const int64_t fold = small ? s.group_size : 64;  // columns
    if (scaled) chain = 2;
    const double folds = 2 * double((s.k + fold - 1) / fold) + 8 + (wide ? 9 : 0);
    const double additions = rounds * (68 * chain + folds) + 1;
    for (int64_t i = 0; i < p.m; ++i) {
        double inputs = 0;
        for (int64_t c = 0; c < s.k; ++c) inputs += std::fabs(float_at(p.type, p.x, i * s.k + c));
        for (int64_t r = 0; r < s.n; ++r) {
            const auto [exact, magnitude] = exact_sum(p.type, p.x, i, &w[size_t(r * s.k)], s.k,
                                                      float_at(QK_FORMAT_F32, p.bias, r));
            // w itself was rounded to f32 once: 2^-24 of each term.
            const double sum = magnitude * (additions * 0x1p-23 + 0x1p-24 + terms) +
                               (p.type == QK_FORMAT_F16 ? least_weight * inputs : 0);
            const double least = p.type == QK_FORMAT_F16 ? 0x1p-25 : 0x1p-133;
            const double bound = sum + unit * (std::fabs(exact) + sum) + least;
            const double actual = float_at(p.type, y, i * s.n + r);
            ASSERT_LE(std::fabs(actual - exact), bound) << "row " << i << " column " << r;
        }
    }
}

// A kernel from packed weights at shapes and batches: every scale format, groups of some widths.
inline void check_packed_kernel(const qk::Kernel<qk::LinearArgs> &kernel,
                                const std::vector<std::pair<int64_t, int64_t>> &shapes,
                                const std::vector<int64_t> &batches,
                                const std::vector<int32_t> &groups,
                                const std::vector<qk_format> &types, Rng &rng) {
    size_t at = 0;
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
        for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8,
                                      QK_FORMAT_E8M0, QK_FORMAT_E4M3}) {
            const bool small = scale == QK_FORMAT_E8M0 || scale == QK_FORMAT_E4M3;
            if (small != (format == QK_FORMAT_FP4_E2M1)) continue;
            for (const int32_t group : groups) {
                for (const auto &[n, k] : shapes) {
                    const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 3 == 0;
                    qk_tensor_desc desc =
                        weight_desc(format, scale, QK_LAYOUT_ROW, group, n, k, symmetric);
                    if (scale == QK_FORMAT_LUT8) desc.scale_group_size = at % 2 == 0 ? 256 : 16;
                    if (scale == QK_FORMAT_E4M3 && at % 2 == 0) desc.flags |= QK_TENSOR_GLOBAL;
                    const int64_t m = batches[at % batches.size()];
                    Problem p = make_problem(desc, types[at % types.size()], m, rng);
                    ++at;
                    SCOPED_TRACE(describe(p));
                    const DeviceWeight w = packed_weight(p.w);
                    const auto y = run_on_device(kernel, p, w, 0, m);
                    const bool halves = &kernel == &qk::cuda::kLinearSm90Gemv ||
                                        &kernel == &qk::cuda::kLinearSm90FewRows;
                    const bool many = &kernel == &qk::cuda::kLinearSm90Rows24 && group != 64;
                    expect_within_bound(p, y, p.type == QK_FORMAT_F32 && !halves ? 6 : 1,
                                        many ? 2 : 1);
                    for (int repeat = 0; repeat < 3; ++repeat) {
                        ASSERT_EQ(run_on_device(kernel, p, w, 0, m), y);
                    }
                    if (::testing::Test::HasFailure()) return;
                }
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

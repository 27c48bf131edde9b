// Problems with 8-bit codes for the tests of the kernels that take them.
#pragma once
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

constexpr qk_format kByteFormats[] = {QK_FORMAT_S8, QK_FORMAT_LUT8, QK_FORMAT_E4M3};
constexpr qk_format kByteScales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_LUT8, QK_FORMAT_BF16};

// Of E4M3 codes that are numbers: seven bits of ones are none.
inline Problem bytes_problem(qk_format format, qk_format scale, int32_t group, int64_t n, int64_t k,
                             qk_format type, int64_t m, Rng &rng) {
    qk_tensor_desc desc = weight_desc(format, scale, QK_LAYOUT_ROW, group, n, k);
    if (scale == QK_FORMAT_LUT8) desc.scale_group_size = n % 2 == 0 ? 16 : 256;
    Problem p = make_problem(desc, type, m, rng);
    if (format == QK_FORMAT_E4M3) {
        for (uint8_t &code : p.w.planes[QK_PLANE_DATA]) code ^= (code & 127) == 127;
    }
    return p;
}

inline void set_table(Problem &p, int code, float value) {
    memcpy(&p.w.planes[QK_PLANE_TABLE][size_t(code) * 4], &value, 4);
}

// A table that spans 2^span, and every fourth row of small entries alone.
inline Problem wide_table_problem(qk_format type, int64_t m, int span, Rng &rng) {
    Problem p = bytes_problem(QK_FORMAT_LUT8, QK_FORMAT_F32, QK_GROUP_ROW, 37, 272, type, m, rng);
    for (int code = 0; code < 256; ++code) {
        const float digits = 1 + float(rng() % 65536) / 65536;
        set_table(p, code,
                  std::ldexp(code % 2 == 0 ? digits : -digits, -span * (255 - code) / 255));
    }
    const float large = std::ldexp(1.0f, span - 4), small = 0.125f;
    for (int64_t r = 0; r < p.n(); ++r) {
        const bool of_small = r % 4 == 1;
        memcpy(&p.w.planes[QK_PLANE_SCALE][size_t(r) * 4], of_small ? &large : &small, 4);
        for (int64_t c = 0; of_small && c < p.k(); ++c) {
            p.w.planes[QK_PLANE_DATA][size_t(r * p.k() + c)] &= 7;
        }
    }
    return p;
}

// NaN stays in its row of x; what a kernel of 8-bit codes does not take: addresses that are no
// multiples of 16, and less than `fewest_rows`.
inline void check_odd_places(const qk::Kernel<qk::LinearArgs> &kernel, int32_t group,
                             qk_format type, int64_t m, int64_t fewest_rows, Rng &rng) {
    Problem p = bytes_problem(QK_FORMAT_S8, QK_FORMAT_F32, group, 37, 592, type, m, rng);
    const DeviceWeight w(p.w);
    const size_t row = size_t(p.n()) * 2;
    const auto expected = run_on_device(kernel, p, w, 0, p.m);
    for (size_t i = 0; i < 2; ++i) p.x[size_t(2 * p.k()) * 2 + i] = 0xff;
    const auto actual = run_on_device(kernel, p, w, 0, p.m);
    for (size_t i = 0; i < size_t(p.m); ++i) {
        if (i == 2) continue;
        EXPECT_EQ(memcmp(&actual[i * row], &expected[i * row], row), 0) << "row " << i;
    }
    for (int64_t c = 0; c < p.n(); ++c) {
        EXPECT_TRUE(std::isnan(float_at(type, actual, 2 * p.n() + c))) << "column " << c;
    }
    const qk::Format *const format = qk::find_format(type);
    const DeviceBuffer x(p.x), odd_x(p.x, 8), bias(p.bias, 1),
        y(std::vector<uint8_t>(expected.size(), 0xff), 2);
    const DeviceWeight odd(p.w, 8);
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
    qk::LinearArgs args = {
        {format, p.m, p.k(), x.data()}, w.view(), &b, {format, p.m, p.n(), y.data()}};
    ASSERT_TRUE(kernel.can_run(args, device_0()));
    qk::ErrorText error = {};
    ASSERT_EQ(kernel.run(args, device_launch(&error)), QK_OK) << error.text;
    EXPECT_TRUE(same_values(type, actual, y.read()));
    args.w = odd.view();
    EXPECT_FALSE(kernel.can_run(args, device_0()));
    args.w = w.view();
    args.x.data = odd_x.data();
    EXPECT_FALSE(kernel.can_run(args, device_0()));
    if (fewest_rows > 1) {
        args.x = {format, fewest_rows - 1, p.k(), x.data()};
        EXPECT_FALSE(kernel.can_run(args, device_0()));
    }
}

// Entries that are not finite stay in the rows that have them, also where the codes behind k's end
// are those of such an entry. `exact`: the other rows keep their bits.
inline void check_table_values(const qk::Kernel<qk::LinearArgs> &kernel, int32_t group,
                               qk_format type, int64_t m, bool exact, Rng &rng) {
    Problem p = bytes_problem(QK_FORMAT_LUT8, QK_FORMAT_F32, group, 37, 400, type, m, rng);
    const size_t groups = size_t(p.w.shape.geometry.groups_per_row);
    for (uint8_t &code : p.w.planes[QK_PLANE_DATA]) code = uint8_t(3 + code % 250);
    const DeviceWeight finite(p.w);
    const auto expected = run_on_device(kernel, p, finite, 0, m);
    set_table(p, 0, INFINITY);
    set_table(p, 1, NAN);
    set_table(p, 2, -INFINITY);
    const float one = 1;
    for (const int64_t r : {4, 5}) {
        p.w.planes[QK_PLANE_DATA][size_t(r * p.k() + 100)] = uint8_t(r - 4);
        for (size_t g = 0; g < groups; ++g) {
            memcpy(&p.w.planes[QK_PLANE_SCALE][(size_t(r) * groups + g) * 4], &one, 4);
        }
    }
    const DeviceWeight w(p.w);
    const auto y = run_on_device(kernel, p, w, 0, m);
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t r = 0; r < p.n(); ++r) {
            const float value = float_at(type, y, i * p.n() + r);
            if (r == 4) {
                EXPECT_TRUE(std::isinf(value) || std::isnan(value));
            } else if (r == 5) {
                EXPECT_TRUE(std::isnan(value));
            } else if (exact) {
                EXPECT_EQ(value, float_at(type, expected, i * p.n() + r)) << r;
            } else {
                EXPECT_TRUE(std::isfinite(value)) << r;
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

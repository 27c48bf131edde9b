// A product from a weight as it is stored, or packed, in the tests of the CUDA kernels: the
// problem, its run on the device, and the bound that a kernel's order of sums gives.
#pragma once
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

struct Problem {
    HostWeight w;
    qk_format type;  // of x and y
    int64_t m;
    std::vector<uint8_t> x, bias;
    bool has_bias = true;
    HostWeight packed = {};  // w again, where a kernel wants it packed

    int64_t n() const { return w.shape.rows; }
    int64_t k() const { return w.shape.columns; }
    int64_t size() const { return type == QK_FORMAT_F32 ? 4 : 2; }
};

inline Problem make_problem(const qk_tensor_desc &desc, qk_format type, int64_t m, Rng &rng) {
    Problem p = {random_weight(desc, rng), type, m, {}, {}};
    p.x = random_floats(type, m * p.k(), rng);
    p.bias = random_floats(QK_FORMAT_F32, p.n(), rng);
    return p;
}

// What the device sees, `offset` bytes past aligned addresses.
struct OnDevice {
    DeviceWeight w;
    DeviceBuffer x, bias;

    OnDevice(const Problem &p, size_t offset)
        : w(p.packed.shape.rows > 0 ? p.packed : p.w, offset), x(p.x, offset), bias(p.bias) {}
    void *row_of_x(const Problem &p, int64_t row) const {
        return static_cast<uint8_t *>(x.data()) + row * p.k() * p.size();
    }
};

enum class Room { kAsked, kNone };  // of the workspace

// Rows [first, first + rows) of y; empty where the kernel does not take the case.
inline std::vector<uint8_t> run(const qk::Kernel<qk::LinearArgs> &kernel, const Problem &p,
                                const OnDevice &device, int64_t first, int64_t rows,
                                Room given = Room::kAsked) {
    const DeviceBuffer y(std::vector<uint8_t>(size_t(rows * p.n() * p.size()), 0xff));
    const qk::Format *const type = qk::find_format(p.type);
    const qk::Dense bias = {qk::find_format(QK_FORMAT_F32), 1, p.n(), device.bias.data()};
    const qk::LinearArgs args = {{type, rows, p.k(), device.row_of_x(p, first)},
                                 device.w.view(),
                                 p.has_bias ? &bias : nullptr,
                                 {type, rows, p.n(), y.data()}};
    if (!kernel.can_run(args, device_0())) return {};
    qk::ErrorText error = {};
    qk::Launch launch = device_launch(&error);
    const size_t asked = qk::workspace_of(kernel, args, launch.device);
    const DeviceBuffer workspace = give_workspace(given == Room::kAsked ? asked : 0, &launch);
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    workspace.read();  // its canaries
    return y.read();
}

// Additions of f32, each of which may truncate (2^-23 of the sum of magnitudes). words and columns:
// one warp of 8 or 16 sums a group, or its share of k, on the tensor cores (17 additions a product
// of 16), folds it with the scale (2 a group), then warps are added; parts of an f32 x are sums of
// their own: 3 more. lanes: 8 products, a fold, and so on through every 32nd unit, then 5 halvings.
// middle: 64 columns on the tensor cores, a fold, and so on; up to 16 parts of k.
inline double additions_of(const Problem &p) {
    const qk::Geometry &s = p.w.shape.geometry;
    const double share = 64.0 * double((s.k + 511) / 512), group = double(s.group_size);
    const double chain = std::min(share, group) * 17 / 16 + 17;
    const double tensor = chain + 2 * (share / group + 2) + 16 + 3;
    const double lanes = 8 + 2 * (double(s.k) / 256 + 1) + 5;
    const double middle = 68 + 2 * (double(s.k) / 64 + 1) + 16;
    if (p.packed.shape.rows > 0) return middle + 1;
    return std::max(tensor, lanes) + 1;
}

// Products of 16-bit operands are exact in f32. Entries of tables are rounded to x's type (f32: not
// at all), y once to its own, w itself was rounded to f32 in the reference.
inline void expect_within_bound(Problem &p, const std::vector<uint8_t> &y, const char *kernel) {
    const qk::Geometry &s = p.w.shape.geometry;
    const std::vector<float> w = values_of(p.w);
    const double unit = rounding_of(p.type);
    const bool table = p.w.shape.format->kind == qk::FormatKind::kLut4;
    const double tiny = p.type == QK_FORMAT_F16 ? 0x1p-25 : 0;
    const bool large = double(p.m) * double(s.n) * double(s.k) > 3e7;  // then samples of y
    for (int64_t i = 0; i < p.m; i += large ? 1 + p.m / 7 : 1) {
        for (int64_t r = 0; r < s.n; r += large ? 1 + s.n / 60 : 1) {
            const double bias = p.has_bias ? float_at(QK_FORMAT_F32, p.bias, r) : 0.0;
            const auto [exact, magnitude] =
                exact_sum(p.type, p.x, i, &w[size_t(r * s.k)], s.k, bias);
            const double sum =
                magnitude * (additions_of(p) * 0x1p-23 + 0x1p-24 + (table ? unit : 0));
            const double bound = sum + unit * (std::fabs(exact) + sum) + tiny;
            ASSERT_LE(std::fabs(double(float_at(p.type, y, i * s.n + r)) - exact), bound)
                << kernel << ": row " << i << " column " << r;
        }
    }
}

const qk_format kTypes[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
const qk_format kScales[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8};

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

}  // namespace
}  // namespace cuda_test

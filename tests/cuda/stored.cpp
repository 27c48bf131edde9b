// Products straight from the layouts of checkpoints, and of middle batches on mma.sync, by every
// kernel that takes a case: within the bound that its order of sums gives, the same bits in every
// run and every batch. The same tests run on simulated threads.
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

#if defined(QK_CUDA_SIMULATED)
constexpr bool kSimulated = true;
#else
constexpr bool kSimulated = false;
#endif

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

Problem make_problem(const qk_tensor_desc &desc, qk_format type, int64_t m, Rng &rng) {
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

// Rows [first, first + rows) of y; empty where the kernel does not take the case. The workspace it
// asks for held NaNs.
std::vector<uint8_t> run(const qk::Kernel<qk::LinearArgs> &kernel, const Problem &p,
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
    const size_t asked = qk::workspace_of(kernel, args, device_0());
    const size_t room = given == Room::kAsked ? asked : 0;
    const DeviceBuffer workspace(std::vector<uint8_t>(room, 0xff));
    qk::Launch launch = device_launch(&error);
    launch.workspace = workspace.data();
    launch.workspace_bytes = room;
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    workspace.read();  // its canaries
    return y.read();
}

// Additions of f32, each of which may truncate (2^-23 of the sum of magnitudes). words and columns:
// one warp of 8 or 16 sums a group, or its share of k, on the tensor cores (17 additions a product
// of 16), folds it with the scale (2 a group), then warps are added; parts of an f32 x are sums of
// their own: 3 more. lanes: 8 products, a fold, and so on through every 32nd unit, then 5 halvings.
// middle: 64 columns on the tensor cores, a fold, and so on; up to 16 parts of k.
double additions_of(const Problem &p) {
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
void expect_within_bound(Problem &p, const std::vector<uint8_t> &y, const char *kernel) {
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

// Returns how many of the three kernels took the case.
int check(const qk_tensor_desc &desc, qk_format type, int64_t m, size_t offset, Rng &rng) {
    Problem p = make_problem(desc, type, m, rng);
    p.has_bias = rng() % 2 == 0;
    SCOPED_TRACE(std::string(p.w.shape.format->name) + " scale " + p.w.shape.scale_format->name +
                 " layout " + std::to_string(desc.layout) + " group " +
                 std::to_string(desc.group_size) + " n " + std::to_string(p.n()) + " k " +
                 std::to_string(p.k()) + " m " + std::to_string(m) + " type " +
                 std::to_string(type) + " offset " + std::to_string(offset));
    const OnDevice device(p, offset);
    int ran = 0;
    for (const auto *kernel :
         {&qk::cuda::kLinearWords, &qk::cuda::kLinearColumns, &qk::cuda::kLinearLanes}) {
        const auto y = run(*kernel, p, device, 0, m);
        if (y.empty()) continue;
        ++ran;
        expect_within_bound(p, y, kernel->name);
        const size_t row_bytes = y.size() / size_t(m);
        for (int64_t i = m - 1; i > 0; i -= 5) {
            const auto one = run(*kernel, p, device, i, 1);
            if (one.empty()) continue;  // this row of x lies at an address it does not take
            EXPECT_EQ(memcmp(one.data(), y.data() + size_t(i) * row_bytes, row_bytes), 0)
                << kernel->name << " row " << i;
        }
        for (int repeat = 0; repeat < (kSimulated ? 0 : 3); ++repeat) {
            EXPECT_EQ(run(*kernel, p, device, 0, m), y) << kernel->name;
        }
    }
    return ran;
}

const qk_format kTypes[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
const qk_format kScales[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8};
const int64_t kBatches[] = {1, 3, 8, 9, 2, 16, 17, 4};

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

// Some shapes have two blocks of rows and more for each multiprocessor, some long rows.
void check_layouts(const std::vector<qk_layout> &layouts, const std::vector<qk_format> &formats,
                   const Shapes &shapes, int every) {
    Rng rng(41);
    int at = 0, cases = 0, ran = 0;
    for (const qk_layout layout : layouts) {
        for (const qk_format format : formats) {
            for (const qk_format scale : kScales) {
                for (const int32_t group : {32, 64, 96, 128, int(QK_GROUP_ROW)}) {
                    for (const auto &[n, k] : shapes) {
                        if (++at % every != 0) continue;
                        const bool affine = format == QK_FORMAT_U4_AFFINE;
                        qk_tensor_desc desc = weight_desc(format, scale, layout, group, n, k,
                                                          affine && cases % 3 == 0);
                        if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                        const qk_format type = kTypes[cases % 3];
                        ran += check(desc, type, kBatches[cases % 8], 0, rng);
                        ++cases;
                        if (::testing::Test::HasFailure()) return;
                    }
                }
            }
        }
    }
    EXPECT_GT(ran, cases / 2);
}

TEST(CudaDirect, RowsOfCodes) {
    QK_NEEDS_DEVICE();
    check_layouts({QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_WORD},
                  {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1},
                  kSimulated ? Shapes{{5, 64}, {33, 136}, {40, 272}, {300, 72}, {3, 8304}}
                             : Shapes{{1, 32},
                                      {5, 64},
                                      {33, 136},
                                      {64, 272},
                                      {40, 1040},
                                      {16, 4096},
                                      {70, 2048},
                                      {9000, 80},
                                      {20, 16432}},
                  kSimulated ? 37 : 1);
}

TEST(CudaDirect, GptqAndAwq) {
    QK_NEEDS_DEVICE();
    check_layouts({QK_LAYOUT_GPTQ, QK_LAYOUT_GPTQ_V1, QK_LAYOUT_AWQ_GEMM}, {QK_FORMAT_U4_AFFINE},
                  kSimulated ? Shapes{{8, 32}, {40, 136}, {72, 64}, {600, 72}, {8, 8304}}
                             : Shapes{{8, 32},
                                      {40, 136},
                                      {72, 64},
                                      {136, 1032},
                                      {64, 4096},
                                      {200, 2080},
                                      {17000, 72},
                                      {24, 16424}},
                  kSimulated ? 19 : 1);
}

// Sizes, groups and addresses that only the lanes take, or no kernel.
TEST(CudaDirect, OddSizesAndAddresses) {
    QK_NEEDS_DEVICE();
    Rng rng(42);
    int at = 0, ran = 0;
    for (const qk_layout layout : {QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMV,
                                   QK_LAYOUT_WORD, QK_LAYOUT_GPTQ, QK_LAYOUT_AWQ_GEMM}) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
            for (const auto &[n, k, group] : {std::tuple{3, 77, 16},
                                              {9, 333, 24},
                                              {17, 128, 16},
                                              {8, 64, 20},
                                              {7, 1000, 64},
                                              {12, 65, 32}}) {
                for (const size_t offset : {0, 1, 2, 4, 8}) {
                    if (kSimulated && ++at % 7 != 0) continue;
                    qk_tensor_desc desc = weight_desc(format, kScales[at % 4], layout, group, n, k);
                    if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                    ran += check(desc, kTypes[at % 3], kBatches[at % 8], offset, rng);
                    ++at;
                    if (HasFailure()) return;
                }
            }
        }
    }
    EXPECT_GT(ran, 10);
}

TEST(CudaDirect, EightBitsAndFlatGroups) {
    QK_NEEDS_DEVICE();
    Rng rng(43);
    int at = 0, ran = 0;
    for (const auto &[n, k, group] :
         {std::tuple{5, 77, 64}, {33, 512, 64}, {8, 4104, 24}, {20, 200, 128}, {3, 96, 256}}) {
        for (const qk_format scale : kScales) {
            for (const size_t offset : {0, 3}) {
                for (const bool flat : {false, true}) {
                    for (const qk_format format :
                         {QK_FORMAT_S8, QK_FORMAT_LUT8, QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
                        if (kSimulated && ++at % 11 != 0) continue;
                        const bool four = format == QK_FORMAT_U4_AFFINE || format == QK_FORMAT_NF4;
                        const qk_layout layout =
                            four && at % 2 == 0 ? QK_LAYOUT_ROW_HIGH : QK_LAYOUT_ROW;
                        qk_tensor_desc desc =
                            weight_desc(format, scale, layout, group, n, k, false, flat);
                        if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                        ran += check(desc, kTypes[at % 3], kBatches[at % 8], offset, rng);
                        ++at;
                        if (HasFailure()) return;
                    }
                }
            }
        }
    }
    EXPECT_GT(ran, 5);
}

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

// f32 x is not rounded: parts of bf16 add up to it; infinities and NaNs stay what they are.
TEST(CudaDirect, FloatsOfEverySize) {
    QK_NEEDS_DEVICE();
    Rng rng(44);
    const qk_tensor_desc desc =
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_GPTQ, 64, 8, 64);
    Problem p = make_problem(desc, QK_FORMAT_F32, 4, rng);
    std::vector<float> x(size_t(p.m * p.k()));
    memcpy(x.data(), p.x.data(), p.x.size());
    for (float &value : x) value = std::ldexp(value, int(rng() % 160) - 80);
    memcpy(p.x.data(), x.data(), p.x.size());
    for (const auto *kernel : {&qk::cuda::kLinearWords, &qk::cuda::kLinearGeneric}) {
        const auto y = run(*kernel, p, OnDevice(p, 0), 0, p.m);
        ASSERT_FALSE(y.empty());
        expect_within_bound(p, y, kernel->name);
    }
    const float awkward[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    for (int i = 0; i < 4; ++i) x[size_t(i * p.k() + 5)] = awkward[i];
    memcpy(p.x.data(), x.data(), p.x.size());
    for (int64_t r = 0; r < 8; ++r) {  // code 1, zero 0, scale 1: x itself is added
        p.w.planes[QK_PLANE_DATA][size_t(r * 4 + 2)] = 0x11;
    }
    std::fill(p.w.planes[QK_PLANE_ZERO].begin(), p.w.planes[QK_PLANE_ZERO].end(), 0);
    for (int64_t r = 0; r < 8; ++r) {
        const float one = 1;
        memcpy(p.w.planes[QK_PLANE_SCALE].data() + r * 4, &one, 4);
    }
    const auto y = run(qk::cuda::kLinearWords, p, OnDevice(p, 0), 0, p.m);
    for (int64_t r = 0; r < 8; ++r) {
        EXPECT_EQ(float_at(QK_FORMAT_F32, y, r), INFINITY);
        EXPECT_EQ(float_at(QK_FORMAT_F32, y, 8 + r), -INFINITY);
        EXPECT_TRUE(std::isnan(float_at(QK_FORMAT_F32, y, 16 + r)));
        EXPECT_GT(float_at(QK_FORMAT_F32, y, 24 + r), 3.3e38f);
    }
}

}  // namespace
}  // namespace cuda_test

// Products of middle and large batches on the GPU: the matrix kernel and prefill against the exact
// result within the bounds that their roundings give; bits that repeat and do not depend on the
// batch.
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"
#include "qk.h"

namespace cuda_test {
namespace {

// A weight in layout ROW, x, a bias, and the same on the device; y through one kernel.
struct Case {
    HostWeight w;
    qk_format type;
    int64_t m;
    std::vector<uint8_t> x, bias;

    int64_t n() const { return w.shape.rows; }
    int64_t k() const { return w.shape.columns; }
    int64_t size() const { return type == QK_FORMAT_F32 ? 4 : 2; }
};

Case make_case(const qk_tensor_desc &desc, qk_format type, int64_t m, Rng &rng) {
    Case c = {random_weight(desc, rng), type, m, {}, {}};
    c.x = random_floats(type, m * c.k(), rng);
    c.bias = random_floats(QK_FORMAT_F32, c.n(), rng);
    return c;
}

std::vector<uint8_t> run(const qk::Kernel<qk::LinearArgs> &kernel, const Case &c,
                         const DeviceWeight &w, int64_t rows, void *session = nullptr) {
    const DeviceBuffer x({c.x.begin(), c.x.begin() + long(rows * c.k() * c.size())}), bias(c.bias),
        y(std::vector<uint8_t>(size_t(rows * c.n() * c.size()), 0xff));
    const qk::Format *const type = qk::find_format(c.type);
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, c.n(), bias.data()};
    const qk::LinearArgs args = {
        {type, rows, c.k(), x.data()}, w.view(), &b, {type, rows, c.n(), y.data()}};
    qk::ErrorText error = {};
    EXPECT_TRUE(kernel.can_run(args, device_0()));
    qk::Launch launch = device_launch(&error);
    const DeviceBuffer workspace =
        give_workspace(qk::workspace_of(kernel, args, launch.device), &launch);
    launch.session = session;
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    workspace.read();  // its canaries
    return y.read();
}

// Roundings of a term, as shares of it (`relative`) and of |x| (`absolute`), and how many additions
// of f32 a sum takes, each of which may truncate: 2^-23 of the sum of magnitudes.
struct Roundings {
    double relative, absolute, additions, bias;
};

void expect_within(Case &c, const std::vector<uint8_t> &y, int64_t rows, const Roundings &r) {
    const qk::Geometry &s = c.w.shape.geometry;
    const std::vector<float> w = values_of(c.w);
    const double unit = rounding_of(c.type);
    std::vector<double> x(size_t(s.k));
    for (int64_t i = 0; i < rows; i += 1 + rows / 24) {
        for (int64_t j = 0; j < s.k; ++j) x[size_t(j)] = float_at(c.type, c.x, i * s.k + j);
        for (int64_t row = 0; row < s.n; row += 1 + s.n / 150) {
            const double b = float_at(QK_FORMAT_F32, c.bias, row);
            double exact = b, terms = 0, inputs = 0;
            for (int64_t j = 0; j < s.k; ++j) {
                const double term = x[size_t(j)] * double(w[size_t(row * s.k + j)]);
                exact += term;
                terms += std::fabs(term);
                inputs += std::fabs(x[size_t(j)]);
            }
            const double sum = terms * (r.relative + 0x1p-24) + inputs * r.absolute +
                               r.bias * std::fabs(b) +
                               (terms + std::fabs(b)) * r.additions * 0x1p-23;
            const double bound = sum + unit * (std::fabs(exact) + sum) + 0x1p-25;
            ASSERT_LE(std::fabs(float_at(c.type, y, i * s.n + row) - exact), bound)
                << "row " << i << " column " << row;
        }
    }
}

// Up to 64 rows: tiles of 64 columns are summed from zero (68 additions) and folded with the scale
// in f32 (2 a tile); at most 8 blocks of 4 warpgroups add up; look-up entries are rounded once.
// More rows, and groups of 16 and 32: the scale, the entry and their product are rounded to x's
// type, and one sum runs through k. Below 2^-14 f16 loses relative precision: half of 2^-24 a
// rounding, entries up to 15.
Roundings of_gemm(const Case &c, int64_t rows) {
    const double unit = c.type == QK_FORMAT_F16 ? 0x1p-11 : 0x1p-8;
    const bool table = c.w.shape.format->kind == qk::FormatKind::kLut4;
    const double k = double(c.k()), merged = 32 + 1;
    const qk::Geometry &s = c.w.shape.geometry;
    const bool small = s.groups_per_row > 1 && s.group_size < 64;
    if (rows <= 64 && !small) return {table ? unit : 0, 0, 68 + 2 * (k / 64 + 1) + merged, 0};
    return {unit * (table ? 3.01 : 2.01), c.type == QK_FORMAT_F16 ? 17 * 0x1p-25 : 0,
            k * 17 / 16 + 32 + merged, 0};
}

TEST(CudaBatch, TheMatrixKernelIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(21);
    const int64_t shapes[][2] = {{1, 16}, {40, 80}, {130, 1040}, {256, 512}, {1000, 4096}};
    const int64_t batches[] = {17, 64, 65, 100, 128, 129, 300};
    int at = 0, ran = 0;
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
        for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8,
                                      QK_FORMAT_E8M0, QK_FORMAT_E4M3}) {
            const bool small = scale == QK_FORMAT_E8M0 || scale == QK_FORMAT_E4M3;
            if (small && format != QK_FORMAT_FP4_E2M1) continue;
            for (const auto &[n, k] : shapes) {
                const int32_t groups[] = {64, 32, 128, 16, 256, QK_GROUP_ROW};
                const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 3 == 0;
                qk_tensor_desc desc =
                    weight_desc(format, scale, QK_LAYOUT_ROW, groups[at / 5 % 6], n, k, symmetric);
                if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                Case c = make_case(desc, at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16,
                                   batches[at % 7], rng);
                ++at;
                SCOPED_TRACE(std::string(c.w.shape.format->name) + " case " + std::to_string(at));
                const DeviceWeight w(packed_on_host(c.w));
                const qk::Format *const type = qk::find_format(c.type);
                if (!qk::cuda::kLinearSm90Gemm.can_run(
                        {{type, c.m, k, nullptr}, w.view(), nullptr, {type, c.m, n, nullptr}},
                        device_0())) {
                    continue;
                }
                ++ran;
                expect_within(c, run(qk::cuda::kLinearSm90Gemm, c, w, c.m), c.m, of_gemm(c, c.m));
                if (HasFailure()) return;
            }
        }
    }
    if (ran == 0) GTEST_SKIP() << "the matrix kernel needs sm_90 and a build for sm_90a";
    EXPECT_EQ(ran, at);
}

constexpr char kNoGemm[] = "the matrix kernel needs sm_90 and a build for sm_90a";

bool gemm_runs(const Case &c, const DeviceWeight &w) {
    const qk::Format *const type = qk::find_format(c.type);
    return qk::cuda::kLinearSm90Gemm.can_run(
        {{type, c.m, c.k(), nullptr}, w.view(), nullptr, {type, c.m, c.n(), nullptr}}, device_0());
}

// Between them these take every cut of linear/sm90/gemm/plan.hpp on an H200, alone and in clusters,
// and last waves that are cut; every size has a rest.
TEST(CudaBatch, EveryCutIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(25);
    const int64_t cases[][3] = {// m, n, k
                                {17, 12300, 144},  {32, 28700, 272},   {33, 12300, 16},
                                {61, 12300, 528},  {70, 8200, 1040},   {101, 6100, 1040},
                                {127, 50, 2064},   {129, 12300, 80},   {500, 8200, 80},
                                {300, 2050, 2064}, {100, 12300, 1040}, {500, 2050, 2064},
                                {129, 16910, 656}, {500, 20010, 528}};
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        for (const auto &[m, n, k] : cases) {
            Case c = make_case(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, n, k),
                               QK_FORMAT_F16, m, rng);
            SCOPED_TRACE(std::to_string(m) + ": " + std::to_string(n) + " x " + std::to_string(k));
            const DeviceWeight w(packed_on_host(c.w));
            if (!gemm_runs(c, w)) GTEST_SKIP() << kNoGemm;
            expect_within(c, run(qk::cuda::kLinearSm90Gemm, c, w, m), m, of_gemm(c, m));
            if (HasFailure()) return;
        }
    }
}

// Each number of rows has copies of its own height.
TEST(CudaBatch, EveryBatchTo64IsWithinItsBoundAndOfOneMind) {
    QK_NEEDS_DEVICE();
    Rng rng(26);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Case c = make_case(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 200, 1040),
                           QK_FORMAT_BF16, 64, rng);
        const DeviceWeight w(packed_on_host(c.w));
        if (!gemm_runs(c, w)) GTEST_SKIP() << kNoGemm;
        const auto all = run(qk::cuda::kLinearSm90Gemm, c, w, 64);
        for (int64_t rows = 17; rows <= 64; ++rows) {
            SCOPED_TRACE(rows);
            const auto y = run(qk::cuda::kLinearSm90Gemm, c, w, rows);
            expect_within(c, y, rows, of_gemm(c, rows));
            ASSERT_TRUE(std::equal(y.begin(), y.end(), all.begin()));
            if (HasFailure()) return;
        }
    }
}

TEST(CudaBatch, TheMatrixKernelRepeatsBitForBit) {
    QK_NEEDS_DEVICE();
    Rng rng(22);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Case c = make_case(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 1024, 4096),
                           QK_FORMAT_F16, 200, rng);
        const DeviceWeight w(packed_on_host(c.w));
        if (!gemm_runs(c, w)) GTEST_SKIP() << kNoGemm;
        for (const int64_t rows : {20, 40, 128, 200}) {
            const auto first = run(qk::cuda::kLinearSm90Gemm, c, w, rows);
            for (int repeat = 0; repeat < 20; ++repeat) {
                ASSERT_EQ(run(qk::cuda::kLinearSm90Gemm, c, w, rows), first) << rows;
            }
        }
    }
}

TEST(CudaBatch, PrefillIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    qk::Device device = device_0();
    void *const session = qk::kCudaBackend.session.open(&device, size_t{1} << 30);
    if (session == nullptr) GTEST_SKIP() << "no cuBLASLt on this machine";
    Rng rng(23);
    const qk_tensor_desc weights[] = {
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128, 256, 512),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 64, 200, 320),
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64, 264, 512, false, true),
        weight_desc(QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 264, 512),
        weight_desc(QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, 264, 512),
        // f32: 1024 columns fit 16384 rows in a slab, so this is cut into two.
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_ROW, 128, 16640, 1024)};
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
        for (qk_tensor_desc desc : weights) {
            if (desc.shape[0] > 10000 && type != QK_FORMAT_F32) continue;
            if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
            // 8-bit codes with 16-bit x go to the matrix kernel before.
            const bool bytes = desc.format == QK_FORMAT_LUT8 || desc.format == QK_FORMAT_S8;
            Case c = make_case(desc, type, bytes && type != QK_FORMAT_F32 ? 4100 : 136, rng);
            SCOPED_TRACE(std::string(c.w.shape.format->name) + " type " + std::to_string(type));
            const double unit = type == QK_FORMAT_F16    ? 0x1p-11
                                : type == QK_FORMAT_BF16 ? 0x1p-8
                                                         : 0;
            const double smallest = type == QK_FORMAT_F16 ? 0x1p-25 : 0;
            const Roundings r = {unit, smallest, double(c.k()) * 2, unit};
            const DeviceWeight w(c.w);
            expect_within(c, run(qk::cuda::kLinearDense, c, w, c.m, session), c.m, r);
            if (HasFailure()) break;
        }
    }
    qk::kCudaBackend.session.close(0, session);
}

// Captured and replayed: the matrix kernels (m = 40 and 300) and prefill (unpacked weights).
TEST(CudaBatch, LargeBatchesCanBeCaptured) {
    QK_NEEDS_DEVICE();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    options.stream = stream;
    options.workspace_bytes = size_t{64} << 20;  // cuBLASLt and a slab
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    poison_workspace(*context);
    Rng rng(24);
    qk_tensor_desc desc =
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64, 512, 1024);
    const HostWeight host = random_weight(desc, rng);
    qk_tensor *w = nullptr, *packed = nullptr;
    ASSERT_EQ(qk_tensor_create(context, &desc, &w), QK_OK);
    for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE}) {
        const std::vector<uint8_t> &bytes = host.planes[plane];
        ASSERT_EQ(qk_tensor_upload(context, w, plane, bytes.data(), bytes.size()), QK_OK);
    }
    desc.layout = QK_LAYOUT_PACKED;
    ASSERT_EQ(qk_tensor_create(context, &desc, &packed), QK_OK);
    ASSERT_EQ(qk_repack(context, w, packed), QK_OK);
    for (const int64_t m : {40, 300, 2000}) {
        const qk_tensor *const weight = m == 2000 ? w : packed;
        qk_tensor_desc dense = QK_TENSOR_DESC_INIT;
        dense.format = QK_FORMAT_F16;
        dense.rank = 2;
        dense.shape[0] = m;
        dense.shape[1] = 1024;
        qk_tensor *x = nullptr, *y = nullptr;
        ASSERT_EQ(qk_tensor_create(context, &dense, &x), QK_OK);
        dense.shape[1] = 512;
        ASSERT_EQ(qk_tensor_create(context, &dense, &y), QK_OK);
        const auto values = random_floats(QK_FORMAT_F16, m * 1024, rng);
        ASSERT_EQ(qk_tensor_upload(context, x, QK_PLANE_DATA, values.data(), values.size()), QK_OK);
        ASSERT_EQ(qk_linear(context, x, weight, nullptr, y), QK_OK) << qk_context_error(context);
        const size_t bytes = size_t(m) * 512 * 2;
        std::vector<uint8_t> first(bytes), again(bytes, 0xff);
        ASSERT_EQ(qk_tensor_download(context, y, QK_PLANE_DATA, first.data(), bytes), QK_OK);
        ASSERT_EQ(qk_tensor_upload(context, y, QK_PLANE_DATA, again.data(), bytes), QK_OK);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(qk_linear(context, x, weight, nullptr, y), QK_OK) << qk_context_error(context);
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
        ASSERT_EQ(qk_tensor_download(context, y, QK_PLANE_DATA, again.data(), bytes), QK_OK);
        EXPECT_EQ(first, again) << m;
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
        qk_tensor_destroy(x);
        qk_tensor_destroy(y);
    }
    qk_tensor_destroy(w);
    qk_tensor_destroy(packed);
    qk_context_destroy(context);
    cudaStreamDestroy(stream);
}

// 2^31 + 2^21 codes: 65600 rows of 32768 columns. Row sums of x = 1 are counted on the host.
TEST(CudaBatch, IndexesPastTwoToThe31) {
    QK_NEEDS_DEVICE();
    constexpr int64_t n = 65600, k = 32768;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = QK_FORMAT_U4_AFFINE;
    desc.scale_format = QK_FORMAT_F16;
    desc.group_size = 128;
    desc.flags = QK_TENSOR_SYMMETRIC;
    desc.rank = 2;
    desc.shape[0] = n;
    desc.shape[1] = k;
    qk_tensor *w = nullptr, *packed = nullptr, *x = nullptr, *y = nullptr;
    ASSERT_EQ(qk_tensor_create(context, &desc, &w), QK_OK) << qk_context_error(context);
    desc.layout = QK_LAYOUT_PACKED;
    ASSERT_EQ(qk_tensor_create(context, &desc, &packed), QK_OK) << qk_context_error(context);
    // Row r holds the code r % 13 in its first r % 97 + 1 columns, 8 (nothing) in the others.
    std::vector<uint8_t> codes(size_t(n * k / 2), 0x88);
    for (int64_t r = 0; r < n; ++r) {
        for (int64_t c = 0; c <= r % 97; ++c) {
            uint8_t &byte = codes[size_t((r * k + c) / 2)];
            byte = uint8_t(c % 2 == 0 ? (byte & 0xf0) | r % 13 : (byte & 15) | r % 13 << 4);
        }
    }
    const std::vector<uint16_t> ones(size_t(n * k / 128), 0x3c00);
    ASSERT_EQ(qk_tensor_upload(context, w, QK_PLANE_DATA, codes.data(), codes.size()), QK_OK);
    ASSERT_EQ(qk_tensor_upload(context, w, QK_PLANE_SCALE, ones.data(), ones.size() * 2), QK_OK);
    ASSERT_EQ(qk_repack(context, w, packed), QK_OK) << qk_context_error(context);
    for (const int64_t m : {1, 40, 100}) {
        qk_tensor_desc dense = QK_TENSOR_DESC_INIT;
        dense.format = QK_FORMAT_F16;
        dense.rank = 2;
        dense.shape[0] = m;
        dense.shape[1] = k;
        ASSERT_EQ(qk_tensor_create(context, &dense, &x), QK_OK);
        dense.shape[1] = n;
        ASSERT_EQ(qk_tensor_create(context, &dense, &y), QK_OK);
        const size_t x_bytes = size_t(m * k) * 2, y_bytes = size_t(m * n) * 2;
        ASSERT_EQ(qk_tensor_upload(context, x, QK_PLANE_DATA, ones.data(), x_bytes), QK_OK);
        ASSERT_EQ(qk_linear(context, x, packed, nullptr, y), QK_OK) << qk_context_error(context);
        std::vector<uint16_t> sums(size_t(m * n));
        ASSERT_EQ(qk_tensor_download(context, y, QK_PLANE_DATA, sums.data(), y_bytes), QK_OK);
        for (int64_t i = 0; i < m; i += 39) {
            for (int64_t r = 0; r < n; ++r) {
                const float expected = float((r % 13 - 8) * (r % 97 + 1));
                ASSERT_EQ(qk::f32_from_f16(sums[size_t(i * n + r)]), expected)
                    << "m " << m << " row " << i << " column " << r;
            }
        }
        qk_tensor_destroy(x);
        qk_tensor_destroy(y);
    }
    qk_tensor_destroy(w);
    qk_tensor_destroy(packed);
    qk_context_destroy(context);
}

}  // namespace
}  // namespace cuda_test

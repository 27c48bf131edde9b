// Linear on the GPU: the generic kernel against the CPU's bits, the fast ones against the exact
// result within the bound that their order of sums gives, and every kernel against itself: repeated
// runs and other batches must not change a bit.
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

TEST(CudaLinear, GenericEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    Rng rng(5);
    const qk_format types[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
    int at = 0;
    for (const qk_layout layout : {QK_LAYOUT_ROW, QK_LAYOUT_AWQ_GEMM, QK_LAYOUT_AWQ_GEMV,
                                   QK_LAYOUT_GPTQ_V1, QK_LAYOUT_WORD}) {
        for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_LUT8}) {
            for (const int64_t k : {1, 15, 77, 300}) {
                const int64_t m = 1 + at % 11, n = 1 + at % 23;
                Problem p = make_problem(weight_desc(QK_FORMAT_U4_AFFINE, scale, layout, 40, n, k),
                                         types[at++ % 3], m, rng);
                SCOPED_TRACE(describe(p));
                const DeviceWeight w(p.w);
                EXPECT_TRUE(same_values(p.type, run_on_host(p),
                                        run_on_device(qk::cuda::kLinearGeneric, p, w, 0, m)));
            }
        }
    }
    const qk_tensor_desc others[] = {
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64, 9, 77, false, true),
        weight_desc(QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 9, 200),
        weight_desc(QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, 9, 200)};
    for (const qk_tensor_desc &desc : others) {
        Problem p = make_problem(desc, QK_FORMAT_F32, 3, rng);
        SCOPED_TRACE(describe(p));
        const DeviceWeight w(p.w);
        EXPECT_TRUE(same_values(p.type, run_on_host(p),
                                run_on_device(qk::cuda::kLinearGeneric, p, w, 0, p.m)));
    }
}

TEST(CudaLinear, MatvecIsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(6);
    const int64_t shapes[][2] = {{1, 16},   {15, 64},    {16, 80},  {17, 128},
                                 {64, 512}, {130, 1040}, {33, 4096}};
    const int64_t batches[] = {1, 2, 7, 8, 9, 16, 17, 33};
    int at = 0;
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
        for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8,
                                      QK_FORMAT_E8M0, QK_FORMAT_E4M3}) {
            const bool small = scale == QK_FORMAT_E8M0 || scale == QK_FORMAT_E4M3;
            if (small && format != QK_FORMAT_FP4_E2M1) continue;
            for (const int32_t group : {64, 128, 256, QK_GROUP_ROW}) {
                for (const auto &[n, k] : shapes) {
                    const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 3 == 0;
                    qk_tensor_desc desc =
                        weight_desc(format, scale, QK_LAYOUT_ROW, group, n, k, symmetric);
                    if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                    Problem p = make_problem(desc, at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16,
                                             batches[at % 8], rng);
                    ++at;
                    SCOPED_TRACE(describe(p));
                    const DeviceWeight w = packed_weight(p.w);
                    const auto y = run_on_device(qk::cuda::kLinearSm80Gemv, p, w, 0, p.m);
                    expect_within_bound(p, y);
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// One row of tiles a stage and more, odd numbers of chunks (their zeros end inside 16 bytes), one
// pass over k and more, blocks whose last stage is not full.
TEST(CudaLinear, RowsAreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(10);
    check_packed_kernel(qk::cuda::kLinearSm90FewRows,
                        {{1, 256},
                         {17, 768},
                         {130, 1280},
                         {16 * 132 + 21, 512},
                         {33, 4096},
                         {47, 5120},
                         {100, 8448}},
                        {2, 8, 9, 16, 17, 3, 16, 33, 5}, {64, 128, 32, 16},
                        {QK_FORMAT_F16, QK_FORMAT_F16, QK_FORMAT_BF16}, rng);
}

// f32 x as halves: by 8 rows, one batch and more.
TEST(CudaLinear, RowsOfF32AreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(14);
    check_packed_kernel(
        qk::cuda::kLinearSm90FewRows,
        {{1, 256}, {17, 768}, {130, 1280}, {16 * 132 + 21, 512}, {33, 4096}, {100, 8448}},
        {2, 8, 9, 16, 17, 3, 5}, {64, 128}, {QK_FORMAT_F32}, rng);
    // Groups of 32 and 16: to 4 rows, by one pass and two.
    check_packed_kernel(
        qk::cuda::kLinearSm90FewRows,
        {{1, 256}, {17, 768}, {130, 1280}, {16 * 132 + 21, 512}, {33, 4096}, {100, 8448}},
        {2, 3, 4, 2, 4, 3, 4}, {32, 16}, {QK_FORMAT_F32}, rng);
}

// f32 x whose magnitudes span more than one round holds, in some rows of x and some columns.
TEST(CudaLinear, RowsOfF32KeepSmallValuesBesideLargeOnes) {
    QK_NEEDS_DEVICE();
    Rng rng(15);
    int at = 0;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB}) {
        for (const int spread : {20, 60, 240}) {
            const int32_t group = 16 << (at + at / 3) % 3;
            const int64_t k = 2304, m = group == 64 ? 10 : 4;
            ++at;
            const auto desc = weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, group, 37, k);
            Problem p = make_problem(desc, QK_FORMAT_F32, m, rng);
            const int zero_code = format == QK_FORMAT_NF4         ? 7
                                  : format == QK_FORMAT_U4_AFFINE ? 5
                                                                  : 0;
            for (uint8_t &byte : p.w.planes[QK_PLANE_ZERO]) byte = 0x55;
            for (int64_t c = 0; c < k; ++c) {
                const bool large = c % 2 == 0;
                for (int64_t i = 0; i < m; i += 3) {
                    const int exponent =
                        int(rng() % uint64_t(spread / 2)) - (large ? 0 : spread / 2);
                    const float x =
                        std::ldexp(float_at(QK_FORMAT_F32, p.x, i * k + c), exponent - spread / 24);
                    memcpy(p.x.data() + (i * k + c) * 4, &x, 4);
                }
                for (int64_t r = 0; large && r < p.n(); ++r) {  // large x meets weights of 0
                    uint8_t &byte = p.w.planes[QK_PLANE_DATA][size_t((r * k + c) / 2)];
                    if (r % 4 != 3) byte = uint8_t((byte & 0xf0) | zero_code);
                }
            }
            std::fill(p.bias.begin(), p.bias.end(), uint8_t{0});
            SCOPED_TRACE(describe(p) + " spread " + std::to_string(spread));
            const DeviceWeight w = packed_weight(p.w);
            const auto y = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, m);
            expect_within_bound(p, y, 1 + spread / 28);
            ASSERT_NO_FATAL_FAILURE(
                expect_batch_of(y, qk::cuda::kLinearSm90FewRows, p, w, 1, m / 2));
        }
    }
}

// Infinite and undefined values of f32 x stay in their row.
TEST(CudaLinear, RowsOfF32KeepSpecialValues) {
    QK_NEEDS_DEVICE();
    Rng rng(16);
    for (const float special : {INFINITY, -INFINITY, NAN, 1e34f, 1e-45f}) {
        Problem p =
            make_problem(weight_desc(QK_FORMAT_NF4, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 37, 512),
                         QK_FORMAT_F32, 9, rng);
        for (uint8_t &byte : p.w.planes[QK_PLANE_DATA]) byte |= 0x88;  // positive
        const uint16_t one = 0x3c00;
        for (size_t i = 0; i < p.w.planes[QK_PLANE_SCALE].size(); i += 2) {
            memcpy(&p.w.planes[QK_PLANE_SCALE][i], &one, 2);
        }
        const DeviceWeight w = packed_weight(p.w);
        const auto before = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        memcpy(p.x.data() + (2 * p.k() + 100) * 4, &special, 4);
        SCOPED_TRACE(special);
        const auto y = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        for (int64_t i = 0; i < p.m; ++i) {
            if (i == 2) continue;
            const size_t at = size_t(i * p.n()) * 4, bytes = size_t(p.n()) * 4;
            EXPECT_EQ(memcmp(y.data() + at, before.data() + at, bytes), 0) << "row " << i;
        }
        if (std::isfinite(special)) {
            expect_within_bound(p, y, 2);
            continue;
        }
        for (int64_t c = 0; c < p.n(); ++c) {
            const float actual = float_at(QK_FORMAT_F32, y, 2 * p.n() + c);
            EXPECT_TRUE(std::isnan(special) ? std::isnan(actual) : actual == special) << actual;
        }
    }
}

// A row of y does not depend on its batch: 8 rows of x and 16 have kernels of their own, more take
// passes.
TEST(CudaLinear, RowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(11);
    // Blocks of one panel, and of more for the larger batches only.
    for (const auto &[format, n] : {std::pair<qk_format, int64_t>{QK_FORMAT_U4_AFFINE, 144},
                                    {QK_FORMAT_NF4, 132 * 16 * 8 + 9}}) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, n, 2304),
                                 QK_FORMAT_F16, 35, rng);
        const DeviceWeight w = packed_weight(p.w);
        ASSERT_NO_FATAL_FAILURE(expect_rows_know_no_batch(qk::cuda::kLinearSm90FewRows, p, w));
        p.type = QK_FORMAT_F32;
        p.x = random_floats(QK_FORMAT_F32, p.m * p.k(), rng);
        ASSERT_NO_FATAL_FAILURE(expect_rows_know_no_batch(qk::cuda::kLinearSm90FewRows, p, w));
    }
}

// f32 x of one row takes two rounds; a row beside it keeps its infinity of an infinite scale.
TEST(CudaLinear, RoundsOfF32LeaveOtherRowsAlone) {
    QK_NEEDS_DEVICE();
    Rng rng(17);
    for (const int32_t group : {64, 32, 16}) {
        Problem p = make_problem(
            weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, group, 37, 512),
            QK_FORMAT_F32, 2, rng);
        const uint16_t infinity = 0x7c00;
        memcpy(p.w.planes[QK_PLANE_SCALE].data(), &infinity, 2);
        const DeviceWeight w = packed_weight(p.w);
        const auto before = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        const float small = std::ldexp(1.0f, -40), one = 1;
        memcpy(p.x.data() + (p.k() + 1) * 4, &one, 4);
        memcpy(p.x.data() + (p.k() + 2) * 4, &small, 4);
        const auto y = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        EXPECT_EQ(memcmp(y.data(), before.data(), size_t(p.n()) * 4), 0) << group;
    }
}

// The same in a few launches: racecheck takes seconds for each.
TEST(CudaLinear, FewRowsKnowNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(13);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        const int32_t group = format == QK_FORMAT_NF4 ? 64 : 16;
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, 40, 512),
                                 QK_FORMAT_F16, 17, rng);
        const DeviceWeight w = packed_weight(p.w);
        const auto all = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        for (const int64_t batch : {2, 8, 9, 16}) {
            ASSERT_NO_FATAL_FAILURE(
                expect_batch_of(all, qk::cuda::kLinearSm90FewRows, p, w, 1, batch));
        }
        p.type = QK_FORMAT_F32, p.m = 4;  // the most of groups of 16
        p.x = random_floats(QK_FORMAT_F32, p.m * p.k(), rng);
        const float small = std::ldexp(1.0f, -60);  // of one row, for a second round
        memcpy(p.x.data() + (3 * p.k() + 7) * 4, &small, 4);
        const auto of_f32 = run_on_device(qk::cuda::kLinearSm90FewRows, p, w, 0, p.m);
        ASSERT_NO_FATAL_FAILURE(expect_batch_of(of_f32, qk::cuda::kLinearSm90FewRows, p, w, 1, 3));
    }
}

// A weight whose blocks have several panels, as its parts of one panel give it, bit for bit.
TEST(CudaLinear, RowsInPanels) {
    QK_NEEDS_DEVICE();
    Rng rng(12);
    const int64_t part = 132 * 16 * 4, parts = 3, k = 3840, m = 16;
    const auto weight = [&](int64_t n) {
        return empty_weight(weight_desc(QK_FORMAT_NF4, QK_FORMAT_F16, QK_LAYOUT_PACKED, 128, n, k),
                            qk::kCudaBackend.packed_layout(*qk::find_format(QK_FORMAT_NF4)), 0);
    };
    HostWeight whole = weight(part * parts), some = weight(part);
    std::vector<uint8_t> &codes = whole.planes[QK_PLANE_DATA];
    std::vector<uint8_t> &scale = whole.planes[QK_PLANE_SCALE];
    for (size_t i = 0; i + 8 <= codes.size(); i += 8) {
        const uint64_t word = rng();
        memcpy(&codes[i], &word, 8);
    }
    for (size_t i = 0; i < scale.size(); ++i) scale[i] = i % 2 == 0 ? uint8_t(rng()) : 0x20;
    const DeviceBuffer x(random_floats(QK_FORMAT_F16, m * k, rng));
    const qk::Format *const type = qk::find_format(QK_FORMAT_F16);
    const auto run = [&](const HostWeight &host) {
        const DeviceWeight w(host);
        const int64_t n = host.shape.rows;
        const DeviceBuffer y(std::vector<uint8_t>(size_t(m * n * 2), 0xff));
        const qk::LinearArgs args = {
            {type, m, k, x.data()}, w.view(), nullptr, {type, m, n, y.data()}};
        qk::ErrorText error = {};
        EXPECT_TRUE(qk::cuda::kLinearSm90FewRows.can_run(args, device_0()));
        EXPECT_EQ(qk::cuda::kLinearSm90FewRows.run(args, device_launch(&error)), QK_OK)
            << error.text;
        return y.read();
    };
    const std::vector<uint8_t> all = run(whole);
    for (int64_t i = 0; i < parts; ++i) {
        for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE}) {
            const long bytes = long(some.planes[plane].size());
            const auto from = whole.planes[plane].begin() + long(i) * bytes;
            some.planes[plane].assign(from, from + bytes);
        }
        const std::vector<uint8_t> y = run(some);
        for (int64_t row = 0; row < m; ++row) {
            ASSERT_EQ(memcmp(y.data() + row * part * 2, all.data() + (row * parts + i) * part * 2,
                             size_t(part * 2)),
                      0)
                << "row of x " << row << ", part " << i;
        }
    }
}

TEST(CudaLinear, GenericTakesThePackedLayoutToo) {
    QK_NEEDS_DEVICE();
    Rng rng(7);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 40, 19, 100),
                                 QK_FORMAT_F32, 5, rng);
        const DeviceWeight w = packed_weight(p.w);
        EXPECT_TRUE(same_values(p.type, run_on_host(p),
                                run_on_device(qk::cuda::kLinearGeneric, p, w, 0, p.m)));
    }
}

TEST(CudaLinear, RepeatsBitForBitAndKnowsNoBatch) {
    QK_NEEDS_DEVICE();
    Rng rng(8);
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 144, 2048),
                                 QK_FORMAT_F16, 33, rng);
        const DeviceWeight packed = packed_weight(p.w), row(p.w);
        for (const auto *kernel : {&qk::cuda::kLinearSm80Gemv, &qk::cuda::kLinearGeneric}) {
            const DeviceWeight &w = kernel == &qk::cuda::kLinearSm80Gemv ? packed : row;
            const auto all = run_on_device(*kernel, p, w, 0, p.m);
            for (int repeat = 0; repeat < 20; ++repeat) {
                ASSERT_EQ(run_on_device(*kernel, p, w, 0, p.m), all) << kernel->name;
            }
            for (int64_t i = 0; i < p.m; ++i) {
                ASSERT_NO_FATAL_FAILURE(expect_batch_of(all, *kernel, p, w, i, 1));
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test

// One row of x on the kernel for it (linear/sm90/gemv/warp.cuh).
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

// Rows and columns around every edge: 16 rows, tiles of 64 columns, units of 512, 16 units a block.
TEST(CudaGemv, IsWithinItsBound) {
    QK_NEEDS_DEVICE();
    Rng rng(9);
    check_packed_kernel(qk::cuda::kLinearSm90Gemv,
                        {{1, 256},
                         {7, 384},
                         {8, 16},
                         {9, 192},
                         {15, 512},
                         {17, 528},
                         {16, 640},
                         {33, 80},
                         {2, 4096},
                         {5, 8720},
                         {40, 1040}},
                        {1}, {64, 128, 256, 1024, QK_GROUP_ROW},
                        {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}, rng);
}

// Groups that end inside a tile of 64 columns, the last one alone in its tile or not.
TEST(CudaGemv, SmallGroupsAreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(16);
    check_packed_kernel(qk::cuda::kLinearSm90Gemv,
                        {{1, 64},
                         {9, 96},
                         {17, 48},
                         {16, 16},
                         {33, 528},
                         {7, 1040},
                         {40, 4096},
                         {5, 8736},
                         {16 * 132 * 2 + 3, 160}},
                        {1}, {32, 16}, {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}, rng);
}

// Not finite, very large and very small f32 values of x: its terms must not make them worse.
TEST(CudaGemv, F32TermsKeepSpecialValues) {
    QK_NEEDS_DEVICE();
    Rng rng(13);
    const float specials[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e-38f};
    for (const auto &[format, group] : {std::pair<qk_format, int32_t>{QK_FORMAT_U4_AFFINE, 64},
                                        {QK_FORMAT_NF4, 64},
                                        {QK_FORMAT_U4_AFFINE, 32},
                                        {QK_FORMAT_NF4, 16}}) {
        for (const float special : specials) {
            const auto desc = weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, group, 1, 64);
            Problem p = make_problem(desc, QK_FORMAT_F32, 1, rng);
            for (uint8_t &byte : p.w.planes[QK_PLANE_DATA]) byte = 0xff;  // 15, or 1.0
            for (uint8_t &byte : p.w.planes[QK_PLANE_ZERO]) byte = 0xee;
            const float one = 1;
            for (size_t i = 0; i < p.w.planes[QK_PLANE_SCALE].size(); i += 4) {
                memcpy(&p.w.planes[QK_PLANE_SCALE][i], &one, 4);
            }
            std::fill(p.x.begin(), p.x.end(), uint8_t{0});
            std::fill(p.bias.begin(), p.bias.end(), uint8_t{0});
            memcpy(p.x.data() + 20, &special, 4);
            SCOPED_TRACE(describe(p) + " x " + std::to_string(special));
            const DeviceWeight w = packed_weight(p.w);
            const auto y = run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1);
            const float actual = float_at(QK_FORMAT_F32, y, 0);
            if (std::isfinite(special)) {
                EXPECT_LE(std::fabs(actual - special), std::fabs(special) * 0x1p-22f + 1e-40f);
            } else {
                EXPECT_EQ(std::isnan(actual), std::isnan(special));
                if (!std::isnan(special)) {
                    EXPECT_EQ(actual, special);
                }
            }
        }
    }
}

// f32 x whose magnitudes span all that f32 has, where large ones meet weights of 0: small ones must
// count as if they were alone.
TEST(CudaGemv, F32KeepsSmallValuesBesideLargeOnes) {
    QK_NEEDS_DEVICE();
    Rng rng(15);
    int at = 0;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB}) {
        for (const int64_t k : {64, 528, 4096, 8720}) {
            for (const int spread : {20, 60, 240}) {
                const int32_t group = 16 << at++ % 3;
                const auto desc = weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, group, 37, k);
                Problem p = make_problem(desc, QK_FORMAT_F32, 1, rng);
                const int zero_code = format == QK_FORMAT_NF4         ? 7
                                      : format == QK_FORMAT_U4_AFFINE ? 5
                                                                      : 0;
                for (uint8_t &byte : p.w.planes[QK_PLANE_ZERO]) byte = 0x55;
                for (int64_t c = 0; c < k; ++c) {
                    // 2^-130 to 2^110: subnormal ones among them
                    const int exponent = int(rng() % uint64_t(spread)) - spread * 13 / 24;
                    const float x = std::ldexp(float_at(QK_FORMAT_F32, p.x, c), exponent);
                    memcpy(p.x.data() + c * 4, &x, 4);
                    // Weights of columns of large x: 0 in three rows of four.
                    for (int64_t r = 0; exponent > -spread / 3 && r < p.n(); ++r) {
                        uint8_t &byte = p.w.planes[QK_PLANE_DATA][size_t((r * k + c) / 2)];
                        if (r % 4 == 3) continue;
                        byte = uint8_t(c % 2 == 0 ? (byte & 0xf0) | zero_code
                                                  : (byte & 0x0f) | zero_code << 4);
                    }
                }
                std::fill(p.bias.begin(), p.bias.end(), uint8_t{0});
                SCOPED_TRACE(describe(p) + " spread " + std::to_string(spread));
                const DeviceWeight w = packed_weight(p.w);
                const auto y = run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1);
                expect_within_bound(p, y, 1 + spread / 28);
                EXPECT_EQ(run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1), y);
            }
        }
    }
}

// f32 x of blocks with several rows of tiles, whose units of x are kept in shared memory, and of
// tiles that are multiplied twice and more, whose units are not.
TEST(CudaGemv, F32KeepsUnitsOfX) {
    QK_NEEDS_DEVICE();
    Rng rng(17);
    int at = 0;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB}) {
        for (const int64_t k : {1040, 2576}) {
            for (const int spread : {1, 60}) {
                const int64_t n = 16 * 132 * 2 + 5;
                const int32_t group = 16 << at++ % 3;
                const auto desc = weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, n, k);
                Problem p = make_problem(desc, QK_FORMAT_F32, 1, rng);
                for (int64_t c = 0; c < 512; ++c) {  // the first unit's; the others have one round
                    const int exponent = int(rng() % uint64_t(spread));
                    const float x = std::ldexp(float_at(QK_FORMAT_F32, p.x, c), -exponent);
                    memcpy(p.x.data() + c * 4, &x, 4);
                }
                SCOPED_TRACE(describe(p) + " spread " + std::to_string(spread));
                const DeviceWeight w = packed_weight(p.w);
                const auto y = run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1);
                expect_within_bound(p, y, 1 + spread / 28);
                for (int repeat = 0; repeat < 5; ++repeat) {
                    ASSERT_EQ(run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1), y);
                }
            }
        }
    }
}

// More rows of tiles than one round of blocks takes, and many a block.
TEST(CudaGemv, TakesManyRows) {
    QK_NEEDS_DEVICE();
    Rng rng(10);
    const int64_t shapes[][2] = {{16 * 132 * 9 + 5, 256}, {16 * 132 * 32 + 17, 64}};
    for (const auto &[n, k] : shapes) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
            Problem p = make_problem(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, n, k),
                                     QK_FORMAT_F16, 1, rng);
            SCOPED_TRACE(describe(p));
            const DeviceWeight w = packed_weight(p.w);
            expect_within_bound(p, run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1));
        }
    }
}

// x, y and the bias at odd places: y anywhere, x where the kernel says that it can.
TEST(CudaGemv, AsksForAlignedX) {
    QK_NEEDS_DEVICE();
    Rng rng(11);
    Problem p = make_problem(weight_desc(QK_FORMAT_NF4, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, 37, 576),
                             QK_FORMAT_F16, 1, rng);
    const DeviceWeight w = packed_weight(p.w);
    const auto expected = run_on_device(qk::cuda::kLinearSm90Gemv, p, w, 0, 1);
    const qk::Format *const type = qk::find_format(p.type);
    for (const size_t offset : {1, 2, 8}) {
        const DeviceBuffer x(p.x, offset), aligned_x(p.x), bias(p.bias, offset),
            y(std::vector<uint8_t>(expected.size(), 0xff), offset);
        const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
        qk::LinearArgs args = {
            {type, 1, p.k(), x.data()}, w.view(), &b, {type, 1, p.n(), y.data()}};
        EXPECT_FALSE(qk::cuda::kLinearSm90Gemv.can_run(args, device_0()));
        args.x.data = aligned_x.data();
        ASSERT_TRUE(qk::cuda::kLinearSm90Gemv.can_run(args, device_0()));
        qk::ErrorText error = {};
        ASSERT_EQ(qk::cuda::kLinearSm90Gemv.run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_EQ(y.read(), expected);
    }
}

// A captured chain of products, y of one being x of the next: launches overlap, bits are those of
// launches that wait.
TEST(CudaGemv, AChainKeepsItsBits) {
    QK_NEEDS_DEVICE();
    Rng rng(12);
    constexpr int kLength = 9;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
        for (const int64_t n : {512, 2112}) {
            std::vector<DeviceWeight> weights;
            Problem p = make_problem(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, n, n),
                                     QK_FORMAT_BF16, 1, rng);
            for (int i = 0; i < kLength; ++i) {
                p.w =
                    random_weight(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, n, n), rng);
                weights.push_back(packed_weight(p.w));
            }
            const qk::Format *const type = qk::find_format(p.type);
            const DeviceBuffer first(p.x), second(p.x);
            void *const buffers[2] = {first.data(), second.data()};
            cudaStream_t stream = nullptr;
            ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
            qk::ErrorText error = {};
            qk::Launch launch = device_launch(&error);
            launch.stream = stream;
            const auto multiply = [&](int i) {
                const qk::LinearArgs args = {{type, 1, n, buffers[i % 2]},
                                             weights[size_t(i)].view(),
                                             nullptr,
                                             {type, 1, n, buffers[(i + 1) % 2]}};
                return qk::cuda::kLinearSm90Gemv.run(args, launch);
            };
            for (int i = 0; i < kLength; ++i) {
                ASSERT_EQ(multiply(i), QK_OK) << error.text;
                ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            }
            const auto expected = second.read();
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t executable = nullptr;
            ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
            for (int i = 0; i < kLength; ++i) ASSERT_EQ(multiply(i), QK_OK) << error.text;
            ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
            for (int repeat = 0; repeat < 20; ++repeat) {
                ASSERT_EQ(cudaMemcpy(buffers[0], p.x.data(), p.x.size(), cudaMemcpyHostToDevice),
                          cudaSuccess);
                ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
                ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
                ASSERT_EQ(second.read(), expected);
            }
            cudaGraphExecDestroy(executable);
            cudaGraphDestroy(graph);
            cudaStreamDestroy(stream);
        }
    }
}

}  // namespace
}  // namespace cuda_test

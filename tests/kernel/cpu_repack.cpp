// Every repack kernel of the CPU against the generic one, byte for byte, padding included.
#include <gtest/gtest.h>

#include <vector>

#include "kernel/weights.hpp"

namespace {

constexpr qk_layout kLayouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                  QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                                  QK_LAYOUT_WORD,     qk::kLayoutRows8};

std::vector<uint8_t> run(const qk::Kernel<qk::RepackArgs> &kernel, const TestWeight &from,
                         const WeightCase &c, int32_t threads, const qk::Device &device) {
    const TestWeight to(c, 5);
    EXPECT_EQ(kernel.run({from.view(), to.view()}, test_launch(threads, device)), QK_OK);
    return to.contents();
}

class CpuRepack : public Specialised {
  protected:
    CpuRepack() : Specialised(qk::kCpuBackend.repack.count) {}
    void compare(WeightCase c, qk_layout to) {
        const auto &list = qk::kCpuBackend.repack;
        const qk::Device device = qk::device_at(qk::kCpuBackend, 0);
        c.grouping = QK_GROUPING_ALONG_K;
        const TestWeight source(c, uint32_t(c.k * 31 + c.n));
        const qk_layout from = c.layout;
        c.layout = to;
        const TestWeight shape(c, 1);
        if (!source.valid() || !shape.valid()) return;
        const qk::RepackArgs args = {source.view(), shape.view()};
        const auto expected = run(*list.kernels[list.count - 1], source, c, 1, device);
        for (int32_t i = 0; i < list.count - 1; ++i) {
            if (!sweep::takes(*list.kernels[i], args, device)) continue;
            ++taken_;
            for (const int32_t threads : {1, 3}) {
                ASSERT_EQ(run(*list.kernels[i], source, c, threads, device), expected)
                    << list.kernels[i]->name << " from layout " << from << ": " << describe(c);
            }
        }
    }
};

TEST_F(CpuRepack, EqualsGeneric) {
    const int64_t sizes[][2] = {{1, 1},   {7, 17},   {8, 128},  {9, 130},   {13, 95},
                                {16, 64}, {33, 257}, {40, 512}, {130, 515}, {145, 1043}};
    const qk_format scales[] = {QK_FORMAT_F16, QK_FORMAT_F32, QK_FORMAT_LUT8};
    int turn = 0;
    for (const qk_layout from : kLayouts) {
        for (const qk_layout to : kLayouts) {
            for (const auto &[n, k] : sizes) {
                if (left_out()) continue;
                const qk_format format = ++turn % 3 == 0 ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE;
                compare({format, scales[turn % 5 % 3], from, n, k, turn % 2 == 0 ? 32 : 16}, to);
            }
        }
    }
}

#if defined(__x86_64__)  // elsewhere nothing is different
// Large enough for the stores that go past the caches.
TEST_F(CpuRepack, Streamed) {
    const qk_layout packed = qk::kLayoutRows8;
    for (const qk_layout layout : {QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM}) {
        compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, layout, 2065, 4224, 128}, packed);
        compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, packed, 2065, 4224, 128}, layout);
    }
}
#endif

TEST(CpuRepackGeneric, BytesAreCopied) {
    const WeightCase c = {QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 33, 101, 50};
    const TestWeight source(c, 3);
    const auto &list = qk::kCpuBackend.repack;
    EXPECT_EQ(run(*list.kernels[list.count - 1], source, c, 3, {}), source.contents());
}

}  // namespace

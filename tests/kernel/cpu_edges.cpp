// The borders of what CPU kernels share, one by one: sweeps meet them too rarely to count on.
#include <cmath>

#include "cpu/access.hpp"
#include "cpu/linear/row_of_x.hpp"
#include "cpu/zero_words.hpp"
#include "kernel/weights.hpp"

namespace {

using qk::f32_bits;

// docs/formats.md, "Order of sums": integers where the largest |x| of a block lies in
// [2^-64, 2^64), or all are 0.
TEST(CpuEdges, WhichBlocksAreIntegers) {
    EXPECT_TRUE(qk::cpu::fits_integers(f32_bits(0.0f)));
    EXPECT_TRUE(qk::cpu::fits_integers(f32_bits(0x1p-64f)));
    EXPECT_FALSE(qk::cpu::fits_integers(f32_bits(std::nextafter(0x1p-64f, 0.0f))));
    EXPECT_TRUE(qk::cpu::fits_integers(f32_bits(std::nextafter(0x1p64f, 0.0f))));
    EXPECT_FALSE(qk::cpu::fits_integers(f32_bits(0x1p64f)));
    EXPECT_FALSE(qk::cpu::fits_integers(f32_bits(INFINITY)));
}

// Every x of a block is less than 2^23 - 2^16 + 1 units, which three signed bytes hold, and as many
// as a power of two allows.
TEST(CpuEdges, TheGridOfABlock) {
    for (const float largest :
         {1.0f, 0x1.8p0f, 0x1.fbfffep0f, 0x1.fcp0f, 0x1.fdfffep0f, 0x1.fep0f, 0x1.fffffep0f}) {
        const qk::cpu::Grid grid = qk::cpu::grid_of(f32_bits(largest));
        EXPECT_EQ(grid.unit * grid.inverse, 1.0f);
        const double units = std::nearbyint(double(largest) / double(grid.unit));
        EXPECT_LE(units, 0x1p23 - 0x1p16) << largest;
        EXPECT_GE(2 * units, 0x1p23 - 0x1p16) << largest;
    }
}

TEST(CpuEdges, ZerosOfRowsPastTheLastReadAsNothing) {
    for (const qk_layout layout :
         {qk_layout{QK_LAYOUT_WORD}, qk_layout{QK_LAYOUT_GPTQ}, qk_layout{QK_LAYOUT_GPTQ_V1},
          qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW}}) {
        const TestWeight w({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, layout, 13, 128, 32}, 9);
        const qk::Weight view = w.view();
        const qk::cpu::ZeroWords zeros(view);
        for (int64_t group = 0; group < 4; ++group) {
            EXPECT_EQ(zeros.read(1, group) >> 20, 0u) << "layout " << layout;
            for (int64_t row = 0; row < 13; ++row) {
                const int zero = qk::cpu::zero_of(view, {row, group});
                EXPECT_EQ(zeros.read(row / 8, group) >> row % 8 * 4 & 15, uint32_t(zero));
                EXPECT_LE(zero, 15) << "layout " << layout;
            }
        }
    }
}

// Stored minus one: 15 stands for 0.
TEST(CpuEdges, ZerosThatAreStoredMinusOneWrap) {
    const TestWeight w({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ_V1, 8, 128, 32}, 9);
    const qk::Weight view = w.view();
    memset(view.zero, 0xff, 16);
    EXPECT_EQ(qk::cpu::zero_of(view, {3, 2}), 0);
    memset(view.zero, 0x00, 16);
    EXPECT_EQ(qk::cpu::zero_of(view, {3, 2}), 1);
}

// Two runs of bytes that share one, that touch, and that are empty.
TEST(CpuEdges, OneSharedByteIsAnOverlap) {
    const char bytes[8] = {};
    EXPECT_TRUE(qk::overlap(bytes, 4, bytes + 3, 4));
    EXPECT_TRUE(qk::overlap(bytes + 3, 4, bytes, 4));
    EXPECT_FALSE(qk::overlap(bytes, 4, bytes + 4, 4));
    EXPECT_FALSE(qk::overlap(bytes + 4, 4, bytes, 4));
    EXPECT_TRUE(qk::overlap(bytes, 1, bytes, 8));
    EXPECT_FALSE(qk::overlap(bytes, 0, bytes, 8));
}

class CpuEdgesOfVectors : public Specialised {};

// Stores that bypass the caches need whole vectors, whatever the output's address.
TEST_F(CpuEdgesOfVectors, LargeOutputsAtAnyAddress) {
    const auto &list = qk::kCpuBackend.dequantize;
    const WeightCase c = {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 1024, 2080, 32};
    const TestWeight w(c, 5);
    const size_t bytes = 1024 * 2080 * 4;
    Guarded memory(bytes + 128), expected(bytes);
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    const qk::Device here = qk::device_at(qk::kCpuBackend, 0);
    const qk::DequantizeArgs plain = {w.view(), {f32, c.n, c.k, expected.data()}};
    ASSERT_EQ(list.kernels[list.count - 1]->run(plain, test_launch(1, here)), QK_OK);
    for (const size_t offset : {size_t{0}, size_t{4}, size_t{16}, size_t{32}, size_t{60}}) {
        const uintptr_t start = reinterpret_cast<uintptr_t>(memory.data());
        uint8_t *const base = memory.data() + (64 - start % 64) % 64;
        const qk::DequantizeArgs args = {w.view(), {f32, c.n, c.k, base + offset}};
        for (int32_t i = 0; i < list.count - 1; ++i) {
            if (!sweep::takes(*list.kernels[i], args, here)) continue;
            ++taken_;
            ASSERT_EQ(list.kernels[i]->run(args, test_launch(3, here)), QK_OK);
            EXPECT_EQ(memcmp(base + offset, expected.data(), bytes), 0)
                << list.kernels[i]->name << " at " << offset;
        }
    }
}

}  // namespace

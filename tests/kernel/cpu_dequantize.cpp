// Every dequantize kernel of the CPU against the generic one, byte for byte.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernel/weights.hpp"

namespace {

std::vector<uint8_t> run(const qk::Kernel<qk::DequantizeArgs> &kernel, const TestWeight &w,
                         qk_format to, int64_t n, int64_t k, int32_t threads,
                         const qk::Device &device) {
    const TestDense dense(to, n, k, 99);
    EXPECT_EQ(kernel.run({w.view(), dense.view()}, test_launch(threads, device)), QK_OK);
    return std::vector<uint8_t>(dense.data(), dense.data() + dense.bytes());
}

class CpuDequantize : public Specialised {
  protected:
    void compare(const WeightCase &c) { compare(c, TestWeight(c, uint32_t(c.k * 31 + c.n))); }
    void compare(const WeightCase &c, const TestWeight &w) {
        const auto &list = qk::kCpuBackend.dequantize;
        if (!w.valid()) return;
        for (const qk_format to : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
            const TestDense dense(to, 1, 1, 0);
            const qk::DequantizeArgs args = {w.view(), dense.view()};
            const auto expected = run(*list.kernels[list.count - 1], w, to, c.n, c.k, 1, {});
            for (const qk::Device &device : test_devices(c)) {
                for (int32_t i = 0; i < list.count - 1; ++i) {
                    if (!sweep::takes(*list.kernels[i], args, device)) continue;
                    ++taken_;
                    for (const int32_t threads : {1, 3}) {
                        ASSERT_EQ(run(*list.kernels[i], w, to, c.n, c.k, threads, device), expected)
                            << list.kernels[i]->name << " to " << dense.view().format->name << ": "
                            << describe(c) << " sets " << device.instruction_sets;
                    }
                }
            }
        }
    }
};

constexpr qk_layout kLayouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                  QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                                  QK_LAYOUT_WORD,     qk::kLayoutRows8};

constexpr qk_layout kPacked = qk::kLayoutRows8;
constexpr qk_layout kRunsAndPacked[] = {QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, kPacked};

TEST_F(CpuDequantize, EqualsGeneric) {
    for (const qk_layout layout : kLayouts) {
        for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1, QK_FORMAT_U4_AFFINE}) {
            for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_LUT8}) {
                for (const int32_t group : {16, 32, 50, 64, 128, QK_GROUP_ROW}) {
                    for (const int64_t k : {1, 17, 64, 95, 128, 320, 513}) {
                        if (left_out()) continue;
                        compare({format, scale, layout, 1 + k % 11, k, group});
                    }
                }
            }
        }
    }
}

TEST_F(CpuDequantize, FlatGroupsThatStraddleRows) {
    for (const qk_layout layout : kRunsAndPacked) {
        for (const int64_t k : {33, 100, 191}) {
            for (const qk_format scale : {QK_FORMAT_BF16, QK_FORMAT_LUT8}) {
                compare({QK_FORMAT_NF4, scale, layout, 13, k, 64, false, QK_GROUPING_FLAT, 0});
                compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, layout, 7, k, 32, false,
                         QK_GROUPING_FLAT, 0});
            }
        }
    }
}

// More rows and columns than a tile of the layouts that store columns, and tails of both.
TEST_F(CpuDequantize, LayoutsThatStoreColumns) {
    for (const qk_layout layout : {QK_LAYOUT_AWQ_GEMM, QK_LAYOUT_GPTQ, QK_LAYOUT_GPTQ_V1}) {
        compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, layout, 130, 1043, 128});
        compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, layout, 289, 31, 16});
        compare({QK_FORMAT_NF4, QK_FORMAT_F32, layout, 161, 530, 20});
    }
}

TEST_F(CpuDequantize, EightBits) {
    for (const qk_format format : {QK_FORMAT_LUT8, QK_FORMAT_S8}) {
        for (const int64_t k : {1, 15, 64, 255, 256, 700}) {
            for (const int32_t group : {16, 50, 256, QK_GROUP_ROW}) {
                if (left_out()) continue;
                compare({format, QK_FORMAT_F32, QK_LAYOUT_ROW, 5, k, group});
                compare({format, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 5, k, group});
            }
            for (const int32_t group : {1, 3, 15, 70000}) {
                if (format == QK_FORMAT_S8 || left_out()) continue;
                compare({format, QK_FORMAT_F32, QK_LAYOUT_ROW, 7, k, group});
                compare({format, QK_FORMAT_BF16, QK_LAYOUT_ROW, 7, k, group, false,
                         QK_GROUPING_ALONG_K});
            }
        }
    }
}

// Rows of more groups than are looked up at once, of which the last one is cut.
TEST_F(CpuDequantize, EightBitsInManyGroups) {
    for (const qk_format format : {QK_FORMAT_LUT8, QK_FORMAT_E4M3}) {
        for (const int32_t group : {64, 128, 192}) {
            const int64_t k = 256 * int64_t{group} + 64;
            compare({format, QK_FORMAT_F32, QK_LAYOUT_ROW, 2, k, group});
            compare(
                {format, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 3, k, group, false, QK_GROUPING_FLAT, 0});
        }
    }
}

// Scales that some code below 128 brings halfway between two bf16 numbers, exactly or once the
// product is rounded to f32, above an even and an odd one; and the next f32, most of which no code
// does. Rows have codes of their own: code(row, column).
class CpuHalfwayProducts : public CpuDequantize {
  protected:
    template <class Code>
    void compare_rows(qk_format format, int32_t group, const Code &code) {
        const int64_t groups = 1024 / (group == QK_GROUP_ROW ? 1024 : group);
        const std::vector<float> scales = halfway_scales();
        ASSERT_GT(scales.size(), 500u);
        const WeightCase c = {format, QK_FORMAT_F32, QK_LAYOUT_ROW, int64_t(scales.size()) / groups,
                              1024,   group};
        const TestWeight w(c, 1);
        const qk::Weight view = w.view();
        memcpy(const_cast<void *>(view.scale.data), scales.data(), size_t(c.n * groups) * 4);
        uint8_t *const codes = static_cast<uint8_t *>(const_cast<void *>(view.data));
        for (int64_t i = 0; i < c.n * c.k; ++i) codes[i] = code(i / c.k, i % c.k);
        compare(c, w);
    }

  private:
    static std::vector<float> halfway_scales() {
        std::vector<float> scales;
        for (int code = 1; code < 128; code += 2) {
            for (int halfway = 257 + code % 16; halfway < 512; halfway += 30) {
                const float scale = float(halfway | 1) / float(code);
                if (scale * float(code) != float(halfway | 1)) continue;
                scales.push_back(code % 4 == 1 ? scale : -scale);
                scales.push_back(std::nextafter(scale, 1000.0f));
            }
        }
        return scales;
    }
};

TEST_F(CpuHalfwayProducts, OfS8) {
    for (const int32_t group : {int32_t{QK_GROUP_ROW}, 128}) {
        compare_rows(QK_FORMAT_S8, group,
                     [](int64_t row, int64_t column) { return uint8_t(column + row % 2 * 128); });
    }
}

// Nearly all without a NaN, which vectors ask for; every eighth row has one.
TEST_F(CpuHalfwayProducts, OfE4m3) {
    for (const int32_t group : {int32_t{QK_GROUP_ROW}, 256, 128, 64}) {
        compare_rows(QK_FORMAT_E4M3, group, [](int64_t row, int64_t column) {
            if (row % 8 == 3 && column == row % 1024) return uint8_t(row % 16 == 3 ? 0x7f : 0xff);
            return uint8_t(column % 127 + (row + column / 127) % 2 * 128);
        });
    }
}

#if defined(__x86_64__)  // elsewhere they are stores like others
// Large enough for the stores that go past the caches.
TEST_F(CpuDequantize, Streamed) {
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_ROW_HIGH}, kPacked}) {
        compare({QK_FORMAT_FP4_BNB, QK_FORMAT_F32, layout, 1011, 2080, 32});
    }
    compare({QK_FORMAT_NF4, QK_FORMAT_BF16, QK_LAYOUT_AWQ_GEMM, 1032, 1056, 32});
    compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 1040, 2080, 96});
    compare({QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 1024, 2112, 64});
    compare({QK_FORMAT_LUT8, QK_FORMAT_F16, QK_LAYOUT_ROW, 1024, 2112, 192});
}
#endif

}  // namespace

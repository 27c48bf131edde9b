// Formats, layouts, lengths and rows of x of the CPU's linear kernels (cpu_linear.hpp).
#include "kernel/cpu_linear.hpp"

namespace {

TEST_F(CpuLinear, PackedEqualsGeneric) {
    for (const qk_format format : kFormats4) {
        for (const qk_format scale : kScales) {
            for (const int32_t group : {16, 32, 48, 64, 128, 256, QK_GROUP_ROW}) {
                for (const int64_t k : {1, 15, 64, 100, 127, 128, 129, 200, 384, 2177}) {
                    if (left_out()) continue;
                    const qk_format x = kDense[(k + group) % 3];
                    const WeightCase c = {format, scale, qk::kLayoutRows8, 1 + k % 19, k, group};
                    compare(c, x, 1 + (k + group / 16) % 2, k % 2 == 0);
                }
            }
        }
    }
}

TEST_F(CpuLinear, PackedSymmetricAndNestedSizes) {
    for (const int64_t k : {96, 640, 1000, 4096}) {
        compare({QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, qk::kLayoutRows8, 9, k, 32, true},
                QK_FORMAT_F32, 2, true);
        for (const int32_t second : {16, 17, 64, 256, 1000}) {
            compare({QK_FORMAT_NF4, QK_FORMAT_LUT8, qk::kLayoutRows8, 21, k, 64, false,
                     QK_GROUPING_ALONG_K, second},
                    QK_FORMAT_F32, 1, false);
        }
    }
}

// Rows longer than one panel of scales and of widened x.
TEST_F(CpuLinear, PackedLongRows) {
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_U4_AFFINE}) {
        for (const int32_t group : {32, 64, 128, 384, QK_GROUP_ROW}) {
            for (const qk_format scale : kScales) {
                const qk_format x = kDense[(group + scale) & 1];
                for (const int64_t m : {1, 2}) {
                    compare({format, scale, qk::kLayoutRows8, 9, 16384 + 130, group}, x, m, true);
                }
            }
        }
    }
}

// Sums of x over the groups are kept for all rows of w, or worked out a run at a time for each.
TEST_F(CpuLinear, MinimaOfLongRows) {
    for (const int32_t group : {16, 32}) {
        for (const int64_t groups : {287, 301, 1151, 1152, 2303, 2305}) {
            for (const qk_layout layout : {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW}}) {
                WeightCase c = {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, layout, 9,
                                groups * group,      group};
                c.minimum = true;
                for (const int64_t m : {1, 2}) compare(c, QK_FORMAT_F32, m, true);
            }
        }
    }
}

// Minima, and scales that are widened a run of groups at a time.
TEST_F(CpuLinear, FewRowsOfX) {
    constexpr qk_layout layouts[] = {qk::kLayoutRows8, QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH,
                                     QK_LAYOUT_WORD};
    for (const int64_t m : {2, 3, 4, 5, 6}) {
        for (const qk_layout layout : layouts) {
            for (const int32_t group : {16, 32, 48, 128, 144}) {
                WeightCase c = {QK_FORMAT_U4_AFFINE,
                                kScales[(m + group / 16) % 4],
                                layout,
                                21 + m,
                                group * 34 + 10,
                                group};
                compare(c, kDense[m % 3], m, true);
                c.minimum = true;
                compare(c, QK_FORMAT_F32, m, true);
                c.format = QK_FORMAT_NF4, c.minimum = false;
                compare(c, QK_FORMAT_F32, m, true);
            }
        }
    }
}

TEST_F(CpuLinear, ManyRowsOfX) {
    for (const int64_t m : {2, 3, 4, 5, 7, 8, 16, 17, 33}) {
        for (const qk_format format : kFormats4) {
            for (const int32_t group : {32, 64, 128, QK_GROUP_ROW}) {
                const int64_t k = 300 + 7 * m, n = 5 + m;
                compare({format, kScales[m % 4], qk::kLayoutRows8, n, k, group}, kDense[m % 3], m,
                        true);
            }
        }
    }
}

TEST_F(CpuLinear, CheckpointLayouts) {
    for (const qk_layout layout :
         {qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH}, qk_layout{QK_LAYOUT_AWQ_GEMM},
          qk_layout{QK_LAYOUT_AWQ_GEMV}, qk_layout{QK_LAYOUT_GPTQ}, qk_layout{QK_LAYOUT_GPTQ_V1},
          qk_layout{QK_LAYOUT_WORD}}) {
        for (const qk_format format : kFormats4) {
            for (const int64_t k : {1, 9, 64, 129, 520, 1100}) {
                for (const int32_t group : {16, 48, 128, QK_GROUP_ROW}) {
                    if (left_out()) continue;
                    const int64_t m = k % 3 == 2 ? 9 : 1 + k % 3, n = 1 + (k + group) % 21;
                    const qk_format scale = kScales[(k + group) % 4];
                    compare({format, scale, layout, n, k, group}, kDense[k % 3], m, true);
                }
            }
        }
    }
}

// Rows as files store them, longer than what kernels gather at once.
TEST_F(CpuLinear, LongRowsOfFiles) {
    int turn = 0;
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH},
                                   qk_layout{QK_LAYOUT_AWQ_GEMV}, qk_layout{QK_LAYOUT_WORD}}) {
        for (const qk_format format : kFormats4) {
            for (const int64_t k : {2176, 4098}) {
                for (const int32_t group : {16, 32, 64, 128, 384}) {
                    if (left_out()) continue;
                    const int64_t m = 1 + turn++ / 2 % 3;
                    compare({format, kScales[turn % 4], layout, 8 + turn % 9, k, group},
                            kDense[turn % 3], m, true);
                }
            }
        }
    }
}

// Layouts that store columns: tiles and strips that end anywhere, groups and blocks that are cut.
TEST_F(CpuLinear, ColumnsOfCodes) {
    constexpr int64_t n_of[] = {7, 16, 31, 120, 128, 129, 250, 264, 1024, 1031, 2050};
    constexpr int64_t k_of[] = {8, 100, 128, 130, 256, 385, 640, 144};
    int64_t turn = 0;
    for (const qk_layout layout :
         {qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{QK_LAYOUT_GPTQ}, qk_layout{QK_LAYOUT_GPTQ_V1}}) {
        for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4}) {
            for (const int32_t group : {16, 32, 48, 64, 128, 256, 128, QK_GROUP_ROW}) {
                for (int64_t i = 0; i < 4; ++i, ++turn) {
                    if (left_out()) continue;
                    const int64_t n = n_of[turn % 11], k = k_of[turn % 8];
                    const int64_t m = turn % 3 == 0 && n < 300 ? 2 + turn % 10 : 1 + turn % 2;
                    const WeightCase c = {format, kScales[turn % 4], layout, n, k,
                                          group,  turn % 5 == 0};
                    compare(c, kDense[turn % 4 % 3], m, turn % 2 == 0);
                    compare_in(int8_, c, kDense[turn % 4 % 3], m, turn % 2 == 0);
                }
            }
        }
    }
}

// The same of tables of integers in small groups, with scales that are codes too.
TEST_F(CpuLinear, ColumnsOfIntegerTables) {
    constexpr int64_t n_of[] = {7, 16, 120, 250, 1031}, k_of[] = {8, 130, 256, 644, 16500};
    int64_t turn = 0;
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{QK_LAYOUT_GPTQ}}) {
        for (const int32_t group : {16, 32, 64}) {
            for (const qk_format scale :
                 {QK_FORMAT_E8M0, QK_FORMAT_E4M3, QK_FORMAT_LUT8, QK_FORMAT_F16}) {
                for (const int64_t n : n_of) {
                    if (left_out()) continue;
                    const int64_t k = k_of[turn++ % (n < 200 ? 5 : 4)];
                    const qk_format format = turn % 3 == 0 ? QK_FORMAT_FP4_BNB : QK_FORMAT_FP4_E2M1;
                    compare({QK_FORMAT_FP4_E2M1, scale, layout, n, k, group}, QK_FORMAT_F32,
                            1 + turn % 2, turn % 4 < 2);
                    compare_in(int8_, {format, scale, layout, n, k, group}, QK_FORMAT_F32,
                               1 + turn % 6, turn % 4 < 2);
                }
            }
        }
    }
}

// Codes with minima that store columns: strips and blocks that end anywhere, scales and minima that
// are codes with second scales of some groups.
TEST_F(CpuLinear, ColumnsWithMinima) {
    constexpr int64_t n_of[] = {7, 16, 120, 250, 1031, 2056}, k_of[] = {8, 130, 256, 644, 1032};
    int64_t turn = 0;
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{QK_LAYOUT_GPTQ}}) {
        for (const int32_t group : {16, 32, 64, 128}) {
            for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_I8, QK_FORMAT_F32}) {
                for (const int64_t n : n_of) {
                    if (left_out()) continue;
                    WeightCase c = {QK_FORMAT_U4_AFFINE, scale, layout, n, k_of[turn++ % 5], group};
                    c.minimum = true;
                    c.scale_group_size = scale == QK_FORMAT_I8 ? 8 : 0;
                    const float too_large = 0x1p64f;  // for integers
                    const bool odd = turn % 7 == 0;
                    compare(c, odd ? QK_FORMAT_F32 : kDense[turn % 3], 1 + turn % 2, turn % 4 < 2,
                            odd ? &too_large : nullptr);
                    compare_in(int8_, c, kDense[turn % 3], 1 + turn % 2, turn % 4 < 2);
                }
            }
        }
    }
}

// Rows of x on codes that are summed as integers, and one that is not.
TEST_F(CpuLinear, IntegersAndWhatDoesNotFit) {
    const float nan = __builtin_nanf(""), infinity = __builtin_inff();
    const float odd[] = {0.0f,           -0.0f, 0x1p-64f, 0x1p-65f,  0x1.fffffep63f, 0x1p64f,
                         1e-40f,         nan,   infinity, -infinity, 0x1.fc0000p1f,  0x1.fbfffep1f,
                         -0x1.fffffep3f, 1e30f};
    for (const qk_layout layout : {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW},
                                   qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{QK_LAYOUT_GPTQ}}) {
        for (const int64_t k : {1, 128, 300, 1024}) {
            for (const float value : odd) {
                for (const bool symmetric : {false, true}) {
                    if (left_out()) continue;
                    const WeightCase c = {
                        QK_FORMAT_U4_AFFINE, kScales[k % 4], layout, 11, k, 128, symmetric};
                    compare(c, QK_FORMAT_F32, symmetric ? 2 : 1, true, &value);
                }
            }
        }
    }
}

// The largest sums of integers: every code at one end and every zero at the other, x as far as the
// grid goes (0x1.fbfffep1 rounds to 2^23 - 2^16 units) and one step further.
TEST_F(CpuLinear, IntegersAtTheirLargest) {
    const qk::Device device = qk::device_at(qk::kCpuBackend, 0);
    for (const qk_layout layout :
         {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_AWQ_GEMM}, qk_layout{QK_LAYOUT_GPTQ}}) {
        const TestWeight w({QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, layout, 8, 256, 128}, 1);
        const qk::Weight view = w.view();
        for (const float value :
             {0x1.fbfffep1f, -0x1.fbfffep1f, 0x1.fcp1f, -0x1.fcp1f, 0x1.fdfffep1f}) {
            const TestDense x(QK_FORMAT_F32, 1, 256, 5);
            for (size_t i = 0; i < x.bytes(); i += 4) memcpy(x.data() + i, &value, 4);
            for (const int code : {0, 15}) {
                memset(const_cast<void *>(view.data), 17 * code, 8 * 256 / 2);
                memset(const_cast<void *>(view.zero), 255 - 17 * code, 8);
                const std::vector<uint8_t> expected =
                    run(*list_.kernels[list_.count - 1], x, w, nullptr, 8, 1, device);
                for (int32_t i = 0; i < list_.count - 1; ++i) {
                    const TestDense y(QK_FORMAT_F32, 1, 8, 7);
                    const qk::LinearArgs args = {x.view(), view, nullptr, y.view()};
                    if (!sweep::takes(*list_.kernels[i], args, device)) continue;
                    ++taken_;
                    EXPECT_EQ(run(*list_.kernels[i], x, w, nullptr, 8, 1, device), expected)
                        << list_.kernels[i]->name << " x " << value << " codes " << code
                        << " layout " << layout;
                }
            }
        }
    }
}

// More columns than a task keeps of x at once.
TEST_F(CpuLinear, IntegersOfLongRows) {
    for (const int64_t k : {16384, 16384 + 128, 40000}) {
        for (const int32_t group : {128, 256, 3968, 4096}) {
            const qk_format scale = kScales[group % 3];
            for (const qk_layout layout :
                 {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_AWQ_GEMM},
                  qk_layout{QK_LAYOUT_GPTQ}}) {
                for (const int64_t m : {1, 2}) {
                    compare({QK_FORMAT_U4_AFFINE, scale, layout, 9, k, group}, kDense[k % 3], m,
                            false);
                }
            }
        }
    }
}

TEST_F(CpuLinear, BytesOfCodes) {
    for (const qk_format format : {QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        const bool minima = format == QK_FORMAT_S8;
        for (const int64_t k : {1, 32, 63, 256, 1002, 1024}) {
            for (const int32_t group : {16, 50, 64, 192, 256, QK_GROUP_ROW}) {
                const int64_t m = 1 + k % 3 * 3, n = 1 + (k + group) % 21;
                compare({format, kScales[k % 3], QK_LAYOUT_ROW, n, k, group}, kDense[k % 3], m,
                        true);
                // Several rows of x: slabs of 16 rows of w, and what is left of them.
                compare({format, kScales[(k + m) % 4], QK_LAYOUT_ROW, n + 24, k, group, false,
                         QK_GROUPING_ALONG_K, 0, minima && k % 2 == 0},
                        kDense[k % 3], 2 + k % 4, false);
            }
        }
        for (const int32_t group : {1, 2, 5, 16, 23, 5000}) {
            if (format == QK_FORMAT_S8 && (group < 16 || group > 4096)) continue;
            for (const qk_grouping grouping : {QK_GROUPING_ALONG_K, QK_GROUPING_FLAT}) {
                for (const int64_t k : {1, 40, 131, 300}) {
                    compare({format, kScales[(k + group) % 4], QK_LAYOUT_ROW, 35, k, group, false,
                             grouping, 0, minima && k % 2 == 0},
                            kDense[k % 3], 1 + k % 4, false);
                }
            }
        }
    }
}

}  // namespace

// Groups of the CPU's linear kernels: straddling rows, with scales of second groups.
#include "cpu/shared/nested.hpp"
#include "kernel/cpu_linear.hpp"

namespace {

// i8 scales of second groups, whole or cut, of which rows have 1 to 35 each: several panels, and
// padding rows whose second scales are past the plane. Exact and in int8 mode.
TEST_F(CpuLinear, IntegerScalesOfLongRows) {
    int turn = 0;
    for (const int32_t group : {16, 32, 64, 128}) {
        for (const int32_t second : {8, 16, 64}) {
            for (const int64_t seconds : {1, 3, 4, 17, 35}) {
                for (const int64_t n : {8, 9, 24, 31}) {
                    const int64_t k = group * second * seconds;
                    if (k > 20000 || left_out()) continue;
                    const bool bytes = ++turn % 2 == 0;
                    WeightCase c = {bytes ? QK_FORMAT_S8 : QK_FORMAT_U4_AFFINE,
                                    QK_FORMAT_I8,
                                    bytes || turn % 4 == 3 ? qk_layout{QK_LAYOUT_ROW}
                                                           : qk_layout{qk::kLayoutRows8},
                                    n,
                                    k - (turn % 3 == 0 ? group : 0),
                                    group};
                    c.scale_group_size = second;
                    c.minimum = turn % 8 < 4;
                    c.symmetric = !c.minimum && !bytes;
                    compare(c, kDense[turn % 3], 1 + turn % 5 / 3, true);
                    compare_in(qk::kCpuBackend.linear_int8, c, kDense[turn % 3], 1, false);
                }
            }
        }
    }
}

// Bits of a case's number that hardly depend on the loops' lengths.
uint32_t dice_of(int64_t turn) { return (uint32_t(turn) * 2654435761u) >> 7; }

// Rows of nibbles as files store them, in int8 mode: scales that are numbers or codes of every
// kind, read 8 whole rows at a time, and rows and groups that are left over.
TEST_F(CpuLinear, ScalesOfRowsOfFilesInInt8Mode) {
    constexpr qk_format scales[] = {QK_FORMAT_F32,  QK_FORMAT_F16,  QK_FORMAT_BF16, QK_FORMAT_E8M0,
                                    QK_FORMAT_E4M3, QK_FORMAT_LUT8, QK_FORMAT_I8};
    int64_t turn = 0;
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH},
                                   qk_layout{QK_LAYOUT_AWQ_GEMV}, qk_layout{QK_LAYOUT_WORD}}) {
        for (const int32_t group : {16, 32, 64, 128}) {
            for (const qk_format scale : scales) {
                for (const int64_t k : {1024, 4096, 1040}) {
                    if (left_out()) continue;
                    const bool integers = scale == QK_FORMAT_I8;
                    const uint32_t dice = dice_of(++turn);
                    WeightCase c = {integers ? QK_FORMAT_U4_AFFINE : kFormats4[dice % 4],
                                    scale,
                                    layout,
                                    16 + dice / 4 % 2 * 5,
                                    k,
                                    group};
                    c.minimum = integers;
                    if (integers) c.scale_group_size = 8;
                    compare_in(int8_, c, kDense[dice / 8 % 3], 1 + dice / 24 % 3,
                               dice / 72 % 2 == 0);
                }
            }
        }
    }
}

// Rows of signed bytes, which kernels take by lines of 64 columns where groups let them: groups
// that end with a line, within one and across two, rows of several runs and with a rest after the
// lines.
TEST_F(CpuLinear, SignedBytesByLines) {
    int turn = 0;
    for (const int32_t group : {16, 32, 48, 64, 96, 128, 192, 320, 8192}) {
        for (const int64_t k : {63, 64, 200, 1000, 4096, 4172, 8320}) {
            for (const bool minimum : {false, true}) {
                if (left_out()) continue;
                const WeightCase c = {QK_FORMAT_S8,
                                      kScales[++turn % 4],
                                      QK_LAYOUT_ROW,
                                      8 + turn % 11,
                                      k,
                                      group,
                                      false,
                                      QK_GROUPING_ALONG_K,
                                      0,
                                      minimum};
                compare(c, kDense[turn % 3], 1 + turn % 2, true);
                compare_in(qk::kCpuBackend.linear_int8, c, QK_FORMAT_F32, 1 + turn % 5 / 3, false);
            }
        }
    }
}

// E4M3 scales that one number divides, which kernels may divide themselves instead of looking
// quotients up. Some of the codes are NaNs.
TEST_F(CpuLinear, DividedScales) {
    int turn = 0;
    for (const int64_t k : {16, 48, 128, 400}) {
        for (const qk_layout layout : {qk::kLayoutRows8, qk_layout(QK_LAYOUT_ROW)}) {
            for (const int64_t n : {5, 8, 40}) {
                if (left_out()) continue;
                WeightCase c = {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, layout, n, k, 16};
                c.divided = true;
                const TestWeight weight(c, 1);
                const qk::Weight w = weight.view();
                qk::cpu::NestedCode code;
                qk::cpu::load_nested_code(w, w.scale, &code);
                float divisor;
                memcpy(&divisor, w.global, sizeof(divisor));
                EXPECT_EQ(code.divisor, divisor);
                compare(c, kDense[turn % 3], 1 + turn % 4, true);
                compare_in(qk::kCpuBackend.linear_int8, c, QK_FORMAT_F32, 1 + turn++ % 3, false);
            }
        }
    }
}

// Rows of nibbles, which kernels take by lines of 128 columns where groups let them: scales in
// place and widened, with minima and zeros, 64 scales that share a second one and fewer, rows of
// several runs and with a rest after the lines.
TEST_F(CpuLinear, NibblesByLines) {
    int turn = 0;
    for (const qk_layout layout : {qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH},
                                   qk_layout{QK_LAYOUT_AWQ_GEMV}, qk_layout{QK_LAYOUT_WORD}}) {
        for (const qk_format format :
             {QK_FORMAT_NF4, QK_FORMAT_U4_AFFINE, QK_FORMAT_IQ4_NL, QK_FORMAT_U4_AFFINE}) {
            for (const int32_t group : {16, 32, 48, 64, 96, 128, 384, 8192}) {
                for (const int64_t k : {126, 128, 1000, 4096, 4224, 8318}) {
                    if (left_out()) continue;
                    const uint32_t dice = dice_of(++turn);
                    WeightCase c = {format, kScales[dice % 4], layout, 8 + dice / 4 % 11, k, group};
                    c.grouping = QK_GROUPING_ALONG_K;
                    c.minimum = format == QK_FORMAT_U4_AFFINE && dice / 44 % 3 == 0;
                    c.symmetric = format == QK_FORMAT_U4_AFFINE && dice / 44 % 3 == 1;
                    if (c.scale_format == QK_FORMAT_LUT8 && turn % 2) c.scale_group_size = 64;
                    compare(c, kDense[dice / 132 % 3], 1 + dice / 396 % 2, true);
                }
            }
        }
    }
}

// Such rows with f32 scales, which are read where they are: bitsandbytes' and others, of one run
// and of more than two.
TEST_F(CpuLinear, NibblesByLinesWithScalesInPlace) {
    int turn = 0;
    for (const int32_t group : {16, 32, 64, 128, 384, 16384}) {
        for (const int64_t k : {1024, 9216, 12288}) {
            for (const int64_t m : {1, 2}) {
                const qk_format format = ++turn % 3 == 0 ? QK_FORMAT_IQ4_NL : QK_FORMAT_NF4;
                WeightCase c = {format, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 8 + dice_of(turn) % 11,
                                k,      group};
                c.grouping = QK_GROUPING_ALONG_K;
                compare(c, kDense[turn % 3], m, true);
            }
        }
    }
}

// Batches of signed bytes in int8 mode: tasks of 32 rows of w, whole and cut, and rows of x that
// fill tiles and do not; with minima, and with scales of second groups.
TEST_F(CpuLinear, BatchesOfSignedBytes) {
    int turn = 0;
    for (const int32_t group : {16, 32, 64, 128, 384, 8192}) {
        for (const int64_t k : {16, 100, 128, 576, 1050}) {
            for (const int64_t n : {1, 7, 8, 31, 33, 70}) {
                for (const int64_t m : {8, 11, 27, 65, 130}) {
                    if (n * m > 2500 && k > 600) continue;
                    if (left_out()) continue;
                    WeightCase c = {QK_FORMAT_S8, kScales[++turn % 4], QK_LAYOUT_ROW, n, k, group};
                    c.grouping = QK_GROUPING_ALONG_K;
                    c.minimum = turn % 7 < 3;
                    if (turn % 5 == 0) c.scale_format = QK_FORMAT_I8, c.scale_group_size = 8;
                    compare_in(qk::kCpuBackend.linear_int8, c, kDense[turn % 3], m, turn % 4 < 2);
                }
            }
        }
    }
}

// Groups that straddle rows, at multiples of 16 columns and elsewhere.
TEST_F(CpuLinear, GroupsThatStraddleRows) {
    int turn = 0;
    for (const qk_layout layout :
         {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH}}) {
        for (const qk_format format : kFormats4) {
            for (const int64_t k : {16, 77, 144, 1000, 1040, 2096, 2177}) {
                for (const int32_t group : {32, 48, 64, 80, 128, 320, 384, 4096}) {
                    for (const int64_t m : {1, 2, 6, 8}) {
                        if (left_out()) continue;
                        const bool symmetric = format == QK_FORMAT_U4_AFFINE && (k + m) % 2 == 0;
                        const WeightCase c = {
                            format, kScales[++turn % 4], layout,          9 + turn % 27, k,
                            group,  symmetric,           QK_GROUPING_FLAT};
                        compare(c, kDense[turn % 3], m, true);
                    }
                }
            }
        }
    }
}

// In int8 mode they are groups of 16 columns, also with zeros and minima.
TEST_F(CpuLinear, GroupsThatStraddleRowsInInt8Mode) {
    int turn = 0;
    for (const qk_layout layout :
         {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH}}) {
        for (const qk_format format : kFormats4) {
            for (const int64_t k : {16, 144, 1040, 2096, 4304}) {
                for (const int32_t group : {32, 48, 64, 80, 128, 320, 384, 4096}) {
                    if (k % group == 0 || left_out()) continue;
                    const int64_t m = ++turn % 5 == 0 ? 1 : 1 + turn * 7 % 37;
                    const bool affine = format == QK_FORMAT_U4_AFFINE;
                    const bool nested = kScales[turn % 4] == QK_FORMAT_LUT8;  // has no minima
                    const WeightCase c = {format,
                                          kScales[turn % 4],
                                          layout,
                                          9 + turn % 27,
                                          k,
                                          group,
                                          affine && turn % 3 == 0,
                                          QK_GROUPING_FLAT,
                                          0,
                                          affine && !nested && turn % 3 == 1};
                    const int64_t before = taken_;
                    compare_in(int8_, c, kDense[turn % 3], m, true);
                    if (int8_.count > 1) {
                        EXPECT_GT(taken_, before) << describe(c);
                    }
                }
            }
        }
    }
}

// Groups that start anywhere in a row, and rows that start in the middle of a byte.
TEST_F(CpuLinear, FlatGroupsThatStraddleRows) {
    int64_t turn = 0;
    for (const qk_format format :
         {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_U4_AFFINE, QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        const bool integers = format == QK_FORMAT_U4_AFFINE || format == QK_FORMAT_S8;
        for (const qk_layout layout : {qk_layout{QK_LAYOUT_ROW}, qk_layout{QK_LAYOUT_ROW_HIGH},
                                       qk_layout{qk::kLayoutRows8}}) {
            for (const int64_t k : {9, 40, 99, 200, 513, 1060, 4104, 8328}) {
                for (const int32_t group : {16, 48, 64, 128, 256, 4096}) {
                    if (left_out()) continue;
                    const int64_t m = ++turn % 3 == 0 ? 1 + turn % 7 : 1 + turn % 2;
                    const bool minimum = integers && turn % 4 < 2;
                    compare({format, kScales[turn % 4], layout, 8 + turn % 13, k, group, false,
                             QK_GROUPING_FLAT, 0, minimum},
                            kDense[turn % 5 % 3], m, turn % 2 == 0);
                }
            }
        }
    }
}

// A plane whose last group ends, or is cut, at every lane of a step.
TEST_F(CpuLinear, FlatGroupsThatEndAnywhere) {
    for (int64_t k = 130; k < 200; ++k) {
        for (const int32_t group : {32, 64, 128, 256, 384}) {
            const int64_t n = k % 2 == 0 ? 16 : 11;
            compare({QK_FORMAT_NF4, kScales[k % 16 / 4], qk::kLayoutRows8, n, k, group, false,
                     QK_GROUPING_FLAT},
                    QK_FORMAT_F32, 1 + k % 8, false);
            compare({QK_FORMAT_NF4, QK_FORMAT_F32, qk::kLayoutRows8, 9, k, group, false,
                     QK_GROUPING_FLAT},
                    QK_FORMAT_F32, 1, false);
        }
    }
    for (const int32_t group : {32, 64, 128, 384, 16384}) {  // more than a panel
        for (const int64_t m : {int64_t{1} + group / 64 % 2, int64_t{3}, int64_t{9}}) {
            compare({QK_FORMAT_NF4, kScales[group / 32 % 4], qk::kLayoutRows8, 17, 16651, group,
                     false, QK_GROUPING_FLAT},
                    QK_FORMAT_F32, m, false);
        }
    }
}

}  // namespace

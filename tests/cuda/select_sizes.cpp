// Which kernel multiplies at which size of a weight: no GPU needed.
#include <gtest/gtest.h>

#include "cuda/select_all.hpp"

namespace {

using namespace select_test;

TEST(CudaSelect, WhichWeightsOf17To24RowsAreReadOnce) {
    const struct {
        int64_t n, k;
        bool u4, nf4, nested;
    } rows[] = {
        {4096, 4096, false, false, false},
        {6144, 4096, true, false, true},
        {5120, 5120, true, false, true},
        {4096, 14336, false, false, false},
        {8192, 8192, true, false, true},
        {28672, 4096, true, true, true},
        {8192, 28672, true, true, true},
        {57344, 8192, true, true, true},
        {57344, 256, false, false, false},
        {20480, 5120, true, true, true},
        {16 * 2 * 132, 1 << 16, false, false, false},
        {16 * 2 * 132 + 16, 1 << 16, true, true, true},
    };
    for (const auto &row : rows) {
        const auto taken = [&](qk_format format, qk_format scale) {
            const Case c = {format, kPacked, row.n, row.k, 20, kF16, 64, scale};
            return kernel_of(facts_of(c, kH200.device), kH200.device, 0) == "sm90 24 rows";
        };
        EXPECT_EQ(taken(kU4, kF16), row.u4) << row.n << " x " << row.k;
        EXPECT_EQ(taken(kNf4, kF16), row.nf4) << row.n << " x " << row.k;
        EXPECT_EQ(taken(kNf4, QK_FORMAT_LUT8), row.nested) << row.n << " x " << row.k;
    }
}

// Beside 9 rows of x and more, look-ups take long enough for "some rows" from fewer codes on, and
// two blocks share x where rows of w are many and have about 4096 columns.
TEST(CudaSelect, WhichWeightsOf2To16RowsKeepXInRegisters) {
    const char *const few = "sm90 few rows", *const some = "sm90 some rows";
    const char *const cluster = "sm90 cluster rows";
    const struct {
        int64_t n, k;
        const char *u4, *nf4, *u4_9, *nf4_9, *nf4_9_32;  // 9: rows of x; 32: in groups of
    } rows[] = {
        {4096, 4096, few, few, few, few, few},
        {6144, 4096, few, few, few, few, few},
        {8192, 4096, few, few, cluster, cluster, cluster},
        {14336, 4096, few, few, cluster, cluster, cluster},
        {14336, 3072, few, few, few, few, few},
        {14336, 2048, few, few, few, few, few},
        {14336, 4352, few, few, few, some, few},
        {4096, 14336, few, few, few, some, few},
        {8192, 8192, few, few, few, some, few},
        {28672, 4096, some, some, cluster, cluster, cluster},
        {57344, 4096, some, some, cluster, some, some},
        {57344, 8192, some, some, some, some, some},
    };
    for (const auto &row : rows) {
        const auto taken = [&](qk_format format, int64_t m, int32_t group = 64) {
            const Case c = {format, kPacked, row.n, row.k, m, kF16, group};
            return kernel_of(facts_of(c, kH200.device), kH200.device, 0);
        };
        for (const int64_t m : {2, 8, 9, 16}) {
            EXPECT_EQ(taken(kU4, m), m > 8 ? row.u4_9 : row.u4) << row.n << " x " << row.k;
            EXPECT_EQ(taken(kNf4, m), m > 8 ? row.nf4_9 : row.nf4) << row.n << " x " << row.k;
            EXPECT_EQ(taken(kNf4, m, 32), m > 8 ? row.nf4_9_32 : row.nf4)
                << row.n << " x " << row.k;
        }
        EXPECT_NE(taken(kU4, 17), cluster) << row.n << " x " << row.k;
    }
}

// U4 in groups of 16 and 32 does at any size; MXFP4 and NVFP4 as NF4 in groups of 64 does.
TEST(CudaSelect, WhichSmallGroupsKeepXInRegisters) {
    const char *const few = "sm90 few rows", *const some = "sm90 some rows";
    const char *const cluster = "sm90 cluster rows";
    const struct {
        int64_t n, k;
        const char *u4, *e2m1, *u4_9, *e2m1_9;  // 9: rows of x
    } rows[] = {
        {4096, 4096, few, few, few, few},           {14336, 4096, few, few, cluster, cluster},
        {4096, 14336, few, few, few, some},         {8192, 8192, few, few, few, some},
        {28672, 4096, few, some, cluster, cluster}, {8192, 28672, few, some, few, some},
        {57344, 8192, few, some, few, some},
    };
    for (const auto &row : rows) {
        const auto taken = [&](qk_format format, int64_t m, int32_t group, qk_format scale) {
            const Case c = {format, kPacked, row.n, row.k, m, kF16, group, scale};
            return kernel_of(facts_of(c, kH200.device), kH200.device, 0);
        };
        for (const int64_t m : {2, 8, 9, 16}) {
            SCOPED_TRACE(testing::Message() << row.n << " x " << row.k << ", " << m << " rows");
            const char *const e2m1 = m > 8 ? row.e2m1_9 : row.e2m1;
            EXPECT_EQ(taken(kU4, m, 32, kF16), m > 8 ? row.u4_9 : row.u4);
            EXPECT_EQ(taken(kU4, m, 16, kF16), m > 8 ? row.u4_9 : row.u4);
            EXPECT_EQ(taken(QK_FORMAT_FP4_E2M1, m, 32, QK_FORMAT_E8M0), e2m1);
            EXPECT_EQ(taken(QK_FORMAT_FP4_E2M1, m, 16, QK_FORMAT_E4M3), e2m1);
        }
    }
}

// FP8 of many rows or long ones takes the matrix kernel from 5 rows of x on, other bytes from 9.
TEST(CudaSelect, WhichBytesTakeTheMatrixKernel) {
    const char *const bytes = "stored bytes", *const gemm = "sm90 gemm 8-bit";
    const struct {
        int64_t n, k;
        const char *e4m3;
    } rows[] = {{4096, 4096, bytes}, {28672, 4096, gemm},  {4096, 14336, gemm},
                {8192, 8192, bytes}, {8192, 28672, bytes}, {57344, 8192, gemm}};
    for (const auto &row : rows) {
        const auto taken = [&](qk_format format, int64_t m) {
            const Case c = {format, kRow, row.n, row.k, m, kF16, 128, kF32};
            return kernel_of(facts_of(c, kH200.device), kH200.device, 0);
        };
        for (const int64_t m : {2, 4, 5, 8, 9}) {
            SCOPED_TRACE(testing::Message() << row.n << " x " << row.k << ", " << m << " rows");
            const bool more = m > 8;
            EXPECT_EQ(taken(QK_FORMAT_E4M3, m), more ? gemm : m > 4 ? row.e4m3 : bytes);
            EXPECT_EQ(taken(kS8, m), more ? gemm : bytes);
            EXPECT_EQ(taken(kLut8, m), more ? gemm : bytes);
        }
    }
}

// FP8's classes end where the matrix kernel begins; f32 x in small groups has one pass of a kernel
// of few rows, and without a workspace the kernel of some rows for more.
TEST(CudaSelect, ClassesOfFp8AndOfF32) {
    const qk_format e4m3 = QK_FORMAT_E4M3;
    const struct {
        Case c;
        int64_t workspace, first, last;
    } rows[] = {
        {{e4m3, kRow, 28672, 4096, 4, kF16, 128, kF32}, kAmple, 2, 4},
        {{e4m3, kRow, 28672, 4096, 7, kF16, 128, kF32}, kAmple, 5, 64},
        {{e4m3, kRow, 4096, 4096, 7, kF16, 128, kF32}, kAmple, 2, 8},
        {{kU4, kPacked, 4096, 4096, 3, kF32, 32}, kAmple, 2, 4},
        {{kU4, kPacked, 4096, 4096, 5, kF32, 32}, kAmple, 5, 64},
        {{kU4, kPacked, 4096, 4096, 2, kF32, 16}, kAmple, 2, 2},
        {{kU4, kPacked, 4096, 4096, 3, kF32, 16}, kAmple, 3, 64},
    };
    for (const auto &row : rows) {
        const Facts f = facts_of(row.c, kH200.device);
        const auto batch = qk::cuda::batch_class(f, kH200.device, row.workspace);
        EXPECT_EQ(batch.first, row.first) << row.c.m;
        EXPECT_EQ(batch.last, row.last) << row.c.m;
    }
    for (const int32_t group : {16, 32}) {
        const Facts f = facts_of({kU4, kPacked, 4096, 4096, 65, kF32, group}, kH200.device);
        EXPECT_EQ(kernel_of(f, kH200.device, 0), "sm90 some rows") << group;
    }
}

}  // namespace

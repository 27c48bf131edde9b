// Which kernel multiplies on cards above sm_90, and what none may take: no GPU needed.
#include <gtest/gtest.h>

#include "cuda/select_all.hpp"

namespace {

using namespace select_test;
using qk::cuda::Condition;
using qk::cuda::kLinearTable;
using qk::cuda::select;

// What is above sm_90 runs no code of sm_90a; kernels that want more memory than a block of sm_120
// has give way.
TEST(CudaSelect, WhatCardsAboveHopperTake) {
    const struct {
        Case c;
        const char *b200, *rtx5090;
    } rows[] = {
        {{kU4, kPacked, 4096, 4096, 1}, "sm90 gemv", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 2}, "sm90 few rows", "sm90 some rows"},
        {{kU4, kPacked, 28672, 8192, 16}, "sm90 some rows", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 17}, "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 8192, 8192, 24}, "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 4096, 4096, 256}, "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 4096, 4096, 257}, "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 1, kF32}, "sm90 gemv", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 1, kF32, 16}, "sm90 gemv", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 4, kF32, 32}, "sm90 few rows", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 5, kF32, 32}, "sm90 some rows", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 3, kF32, 16}, "sm90 some rows", "sm90 some rows"},
        {{kNf4, kPacked, 4096, 4112, 49, kF32}, "dense", "dense"},
        {{kNf4, kPacked, 8192, 4112, 49, kF32}, "sm90 some rows", "dense"},
        {{kU4, kPacked, 4096, 4096, 64, kF32}, "sm90 few rows", "sm90 some rows"},
        {{kU4, kPacked, 4096, 4096, 65, kF32}, "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 32, kF16, 32}, "sm90 few rows", "sm90 some rows"},
        {{kNf4, kPacked, 4096, 4096, 1}, "sm90 gemv", "sm90 some rows"},
        {{kNf4, kPacked, 4096, 4096, 1, kF32}, "sm90 gemv", "packed lanes"},
        {{kNf4, kPacked, 4096, 4096, 129}, "sm80 gemm", "sm80 gemm"},
        {{kU4, kRow, 4096, 4096, 1}, "stored words gemv", "stored words"},
        {{kU4, kGptq, 4096, 4096, 33}, "dense", "dense"},
        {{kU4, kAwq, 4096, 4096, 1}, "stored columns gemv", "stored columns"},
        {{kS8, kRow, 4096, 4096, 1}, "stored bytes gemv", "stored bytes gemv"},
        {{kS8, kRow, 4096, 4096, 2}, "stored bytes", "stored lanes"},
        {{kS8, kRow, 4096, 4096, 33}, "dense", "dense"},
        {{kU4, kQ4_0, 4096, 4096, 8, kF32, 32}, "stored records", "stored records"},
    };
    for (const auto &row : rows) {
        const auto kernel = [&](const Card &card) {
            return kernel_of(facts_of(row.c, card.device), card.device, kAmple);
        };
        EXPECT_EQ(kernel(kB200), row.b200) << row.c.m;
        EXPECT_EQ(kernel(kRtx5090), row.rtx5090) << row.c.m;
    }
    Case experts = {kU4, kPacked, 128 * 64, 4096, 384};
    experts.experts = 128;
    EXPECT_EQ(kernel_of(facts_of(experts, kB200.device), kB200.device, kAmple), "sm90 expert rows");
    EXPECT_EQ(kernel_of(facts_of(experts, kRtx5090.device), kRtx5090.device, kAmple), "experts");
}

// Whatever is taken has code for the card, and a block its memory.
TEST(CudaSelect, NothingIsTakenThatTheCardHasNot) {
    for_all([&](const Facts &f, const qk::Device &d, int64_t room) {
        const auto &needs = kLinearTable[select(f, d, room).row].needs;
        ASSERT_GE(d.capability, needs.least_capability);
        ASSERT_LE(d.capability, needs.most_capability);
        ASSERT_LE(needs.shared != nullptr ? needs.shared(f, d) : 48 << 10, d.shared_bytes);
    });
}

// One second scale for all groups is found by numbers of 31 bits; with others they have 32.
TEST(CudaSelect, HowManyGroupsAWeightMayHave) {
    Case c = {QK_FORMAT_FP4_E2M1, kPacked, int64_t{1} << 23, 4096, 1, kF16, 16};
    const auto gives_way = [&](qk_format scale, int64_t more) {
        Case larger = c;
        larger.scale = scale;
        larger.n += more;
        const Facts f = facts_of(larger, kH200.device);
        return (f.met >> int(Condition::kFewGroups32) & 1) == 0;
    };
    for (const qk_format scale : {QK_FORMAT_E4M3, QK_FORMAT_E8M0}) {
        EXPECT_FALSE(gives_way(scale, -1));
        EXPECT_TRUE(gives_way(scale, 0));
    }
    EXPECT_FALSE(gives_way(kF16, 0));
    EXPECT_FALSE(gives_way(QK_FORMAT_LUT8, (int64_t{1} << 23) - 1));
    EXPECT_TRUE(gives_way(QK_FORMAT_LUT8, int64_t{1} << 23));
    const qk::ScalePlane one = {nullptr, nullptr, nullptr, nullptr, nullptr, qk::kOneSecond};
    EXPECT_EQ(qk::cuda::log2_of(qk::kOneSecond), 31);
    EXPECT_EQ(qk::cuda::second_shift_of(one), 61);
}

}  // namespace

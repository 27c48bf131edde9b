// Which kernel multiplies, on six cards, and what is said about it: no GPU needed.
#include <gtest/gtest.h>

#include <set>

#include "cuda/linear/sm90/gemm/plan.hpp"
#include "cuda/select_all.hpp"

namespace {

using namespace select_test;
using qk::cuda::batch_class;
using qk::cuda::BatchClass;
using qk::cuda::Condition;
using qk::cuda::Facts;
using qk::cuda::kLinearTable;
using qk::cuda::kLinearTableRows;
using qk::cuda::select;

// With all the workspace that it wants.
TEST(CudaSelect, WhatFourCardsTake) {
    const struct {
        Case c;
        const char *h200, *a100, *rtx4090, *orin;
    } rows[] = {
        // format, layout, n, k, m, x
        {{kU4, kPacked, 4096, 4096, 1}, "sm90 gemv", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kU4, kPacked, 4096, 4096, 2}, "sm90 few rows", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kU4, kPacked, 28672, 8192, 16}, "sm90 some rows", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kU4, kPacked, 4096, 4112, 16}, "sm90 some rows", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kU4, kPacked, 4096, 4096, 17}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 8192, 8192, 24}, "sm90 24 rows", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kNf4, kPacked, 8192, 8192, 24}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kNf4, kPacked, 4096, 4096, 1}, "sm90 gemv", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kNf4, kPacked, 4096, 4096, 16}, "sm90 few rows", "sm80 gemv", "sm80 gemv", "sm80 gemv"},
        {{kNf4, kPacked, 4096, 4096, 17}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kNf4, kPacked, 4096, 4096, 128}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kNf4, kPacked, 4096, 4096, 129}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kPacked, 8192, 8192, 25}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 4096, 4096, 256}, "sm90 gemm", "sm80 gemm", "sm80 gemm", "sm80 gemm"},
        {{kU4, kPacked, 4096, 4096, 257}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 4096}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 1, kF32},
         "sm90 gemv",
         "packed lanes",
         "packed lanes",
         "packed lanes"},
        {{kU4, kPacked, 4096, 4096, 8, kF32},
         "sm90 few rows",
         "packed lanes",
         "packed lanes",
         "packed lanes"},
        {{kU4, kPacked, 4096, 4096, 9, kF32}, "sm90 few rows", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 64, kF32}, "sm90 few rows", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 65, kF32}, "dense", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4112, 64, kF32}, "sm90 some rows", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4112, 65, kF32}, "dense", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 1, kF16, 32},
         "sm90 gemv",
         "packed lanes",
         "packed lanes",
         "packed lanes"},
        {{kU4, kPacked, 4096, 4096, 4, kF16, 32},
         "sm90 few rows",
         "packed lanes",
         "packed lanes",
         "packed lanes"},
        {{kU4, kPacked, 4096, 4096, 5, kF16, 32}, "sm90 few rows", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 32, kF16, 32}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kPacked, 28672, 8192, 33, kF16, 16}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kPacked, 28672, 8192, 65, kF32}, "dense", "dense", "dense", "dense"},
        {{kU4, kPacked, 4096, 4096, 33, kF16, 32}, "sm90 gemm", "dense", "dense", "dense"},
        {{kU4, kRow, 4096, 4096, 1},
         "stored words gemv",
         "stored words gemv",
         "stored words",
         "stored words gemv"},
        {{kNf4, kRow, 4096, 4096, 1, kF32},
         "stored lanes",
         "stored lanes",
         "stored lanes",
         "stored lanes"},
        {{kU4, kGptq, 4096, 4096, 16},
         "stored words",
         "stored words",
         "stored words",
         "stored words"},
        {{kU4, kAwq, 4096, 4096, 16},
         "stored columns",
         "stored columns",
         "stored columns",
         "stored columns"},
        {{kU4, kAwq, 4096, 4096, 17},
         "repacked",
         "stored columns",
         "stored columns",
         "stored columns"},
        {{kU4, kGptq, 4096, 4096, 33}, "repacked", "dense", "dense", "dense"},
        {{kS8, kRow, 4096, 4096, 1},
         "stored bytes gemv",
         "stored bytes gemv",
         "stored bytes gemv",
         "stored bytes gemv"},
        {{kS8, kRow, 4096, 4096, 1, kF16, 32},
         "stored bytes",
         "stored lanes",
         "stored lanes",
         "stored lanes"},
        {{kS8, kRow, 4096, 4096, 2},
         "stored bytes",
         "stored lanes",
         "stored lanes",
         "stored lanes"},
        {{kS8, kRow, 4096, 4096, 8}, "stored bytes", "dense", "dense", "dense"},
        {{kS8, kRow, 4096, 4096, 9}, "sm90 gemm 8-bit", "dense", "dense", "dense"},
        {{kLut8, kRow, 4096, 4096, 512}, "sm90 gemm 8-bit", "dense", "dense", "dense"},
        {{kLut8, kRow, 4096, 4096, 513}, "dense", "dense", "dense", "dense"},
        {{kS8, kRow, 4096, 4096, 4096}, "sm90 gemm 8-bit", "dense", "dense", "dense"},
        {{kS8, kRow, 4096, 4096, 4097}, "dense", "dense", "dense", "dense"},
        {{kF16, kRow, 4096, 4096, 8}, "generic", "generic", "generic", "generic"},
        {{kF16, kRow, 4096, 4096, 9}, "dense", "dense", "dense", "dense"},
        {{kF32, kRow, 4096, 4096, 9}, "generic", "generic", "generic", "generic"},
        {{kU4, kPacked, 4096, 4096, 4, kF16, 32, kF16, false, true},
         "packed lanes",
         "packed lanes",
         "packed lanes",
         "packed lanes"},
        {{kU4, kPacked, 4096, 4096, 5, kF16, 32, kF16, false, true},
         "dense",
         "dense",
         "dense",
         "dense"},
        {{kU4, kGptq, 4096, 4096, 1, kF16, 32, kF16, false, true},
         "generic",
         "generic",
         "generic",
         "generic"},
        {{kS8, kRow, 4096, 4096, 4, kF16, 32, kF16, false, true},
         "stored lanes",
         "stored lanes",
         "stored lanes",
         "stored lanes"},
        {{kU4, kQ4_0, 4096, 4096, 8, kF32, 32},
         "stored records",
         "stored records",
         "stored records",
         "stored records"},
        {{kU4, kQ4_0, 4096, 4096, 9, kF16, 32}, "dense", "dense", "dense", "dense"},
    };
    int at = 0;
    for (const auto &row : rows) {
        const char *const expected[] = {row.h200, row.a100, row.rtx4090, row.orin};
        for (int i = 0; i < 4; ++i) {
            const Facts f = facts_of(row.c, kCards[i].device);
            EXPECT_EQ(kernel_of(f, kCards[i].device, kAmple), expected[i])
                << kCards[i].name << ", row " << at;
        }
        ++at;
    }
}

TEST(CudaSelect, WithoutAWorkspace) {
    const struct {
        Card card;
        Case c;
        const char *kernel, *reason;
    } rows[] = {
        {kA100, {kU4, kPacked, 4096, 4096, 17}, "sm80 gemv", "workspace 0, wants 1,671,168"},
        {kA100, {kU4, kPacked, 4096, 4096, 65}, "sm80 gemm", "workspace 0, wants 6,291,456"},
        {kH200, {kU4, kPacked, 4096, 4096, 4096}, "sm90 gemm", ""},
        {kH200, {kU4, kAwq, 4096, 4096, 17}, "stored columns", "workspace 0, wants 8,716,288"},
        {kH200, {kLut8, kRow, 4096, 4096, 513}, "sm90 gemm 8-bit", "workspace 0, wants 67,117,056"},
        {kA100,
         {kNf4, kRow, 4096, 4096, 6, kF32},
         "stored lanes",
         "workspace 0, wants 100,679,680"},
        {kH200, {kF16, kRow, 4096, 4096, 9}, "generic", "workspace 0, wants 33,562,624"},
    };
    for (const auto &row : rows) {
        const Facts f = facts_of(row.c, row.card.device);
        EXPECT_EQ(kernel_of(f, row.card.device, 0), row.kernel) << row.c.m;
        EXPECT_EQ(reason_of(f, row.card.device, 0), row.reason) << row.c.m;
    }
}

TEST(CudaSelect, WhyNotAFasterOne) {
    const auto reason = [](Case c, void (*change)(Case *), const Card &card = kH200) {
        change(&c);
        return reason_of(facts_of(c, card.device), card.device, kAmple);
    };
    const Case packed, awq = {kU4, kAwq}, s8 = {kS8, kRow};
    EXPECT_EQ(reason(packed, [](Case *) {}), "");
    EXPECT_EQ(reason(packed, [](Case *c) { c->off_x = 4; }), "x is not 16-byte aligned");
    EXPECT_EQ(reason(packed, [](Case *c) { c->off_w = 8; }), "w is not 16-byte aligned");
    EXPECT_EQ(reason(packed, [](Case *c) { c->off_scale = 8; }),
              "w's scales are not 16-byte aligned");
    EXPECT_EQ(reason(packed, [](Case *c) { c->k = 4100; }), "k is not a multiple of 16");
    EXPECT_EQ(reason(packed, [](Case *c) { c->k = 4112, c->m = 2; }), "k is not a multiple of 256");
    EXPECT_EQ(reason(packed, [](Case *c) { c->group = 48; }),
              "groups of 48 are not a power of two");
    EXPECT_EQ(reason(packed, [](Case *c) { c->group = 256, c->m = 2; }),
              "groups of 256 are neither 16, 32, 64 nor 128");
    EXPECT_EQ(reason(packed, [](Case *c) { c->m = 20, c->x = kF32; }), "x is F32, not F16 or BF16");
    EXPECT_EQ(reason(packed, [](Case *c) { c->m = 4, c->off_y = 1; }),
              "y is not aligned to its values");
    EXPECT_EQ(reason(
                  packed, [](Case *) {}, kA100),
              "needs a GPU and code of compute capability 9.0");
    EXPECT_EQ(reason(
                  packed, [](Case *c) { c->m = 64; }, kA100),
              "needs a GPU and code of compute capability 9.0");
    EXPECT_EQ(reason(awq, [](Case *) {}), "w is not packed");
    const Case records = {kU4, kQ4_0, 4096, 4096, 1, kF16, 32};
    EXPECT_EQ(reason(records, [](Case *) {}), "w is not packed");
    EXPECT_EQ(reason(awq, [](Case *c) { c->lowered = true; }), "w is not packed");
    EXPECT_EQ(reason(packed, [](Case *c) { c->lowered = true; }), "");
    EXPECT_EQ(reason(awq, [](Case *c) { c->m = 20, c->n = 4104; }), "n is not a multiple of 16");
    EXPECT_EQ(reason(s8, [](Case *c) { c->m = 20, c->group = 32; }),
              "groups of 32 are not a multiple of 64");
    EXPECT_EQ(reason(
                  s8, [](Case *c) { c->m = 2; }, kOrin),
              "needs a GPU and code of compute capability 9.0");
    qk::Device alone = kH200.device;
    alone.lacks_library = true;
    const Case dense = {kF16, kRow, 4096, 4096, 64};
    EXPECT_EQ(kernel_of(facts_of(dense, alone), alone, kAmple), "generic");
    EXPECT_EQ(reason_of(facts_of(dense, alone), alone, kAmple), "cuBLASLt was not found");
}

TEST(CudaSelect, EveryRowOfTheTableIsTaken) {
    std::set<int32_t> taken;
    for_all([&](const Facts &f, const qk::Device &d, int64_t room) {
        const qk::cuda::Selected s = select(f, d, room);
        ASSERT_GE(s.row, 0);
        ASSERT_LE(s.workspace, room);
        taken.insert(s.row);
        // With the room that the fastest wants, it is taken.
        const qk::cuda::Selected best = select(f, d, s.fastest_workspace);
        ASSERT_EQ(best.row, s.fastest);
    });
    EXPECT_EQ(int32_t(taken.size()), kLinearTableRows);
}

// A row that misses nothing but one condition gives way; each has a sentence of its own or says of
// which plane it speaks.
TEST(CudaSelect, EveryConditionCounts) {
    qk::cuda::Conditions missed = 0, all = 0;
    for (const auto &row : kLinearTable) all |= row.needs.conditions;
    for_all([&](const Facts &f, const qk::Device &d, int64_t room) {
        const int32_t row = select(f, d, room).row;
        const auto left = kLinearTable[row].needs.conditions & ~missed;
        if (left == 0) return;
        const int condition = __builtin_ctzll(left);
        Facts g = f;
        g.met &= ~(qk::cuda::Conditions{1} << condition);
        EXPECT_NE(select(g, d, room).row, row) << condition;
        missed |= qk::cuda::Conditions{1} << condition;
    });
    EXPECT_EQ(missed, all);
    for (int i = 0; i < int(Condition::kCount); ++i) {
        EXPECT_STRNE(qk::cuda::sentence_of(Condition(i)), "") << i;
        EXPECT_EQ(all >> i & 1, 1u) << i << " is asked by nobody";
    }
}

// One row at a time where experts are many or there is no room for sums of slots, else rows
// together.
TEST(CudaSelect, Experts) {
    Case c = {kU4, kPacked, 128 * 64, 4096};
    c.experts = 128;
    c.m = 31;
    const auto kernel = [&](const Card &card, int64_t room) {
        return kernel_of(facts_of(c, card.device), card.device, room);
    };
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 experts");
    c.m = 32;
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 expert rows");
    c.format = QK_FORMAT_NF4;  // whose rows are alone until slots are as many as experts
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 experts");
    c.format = QK_FORMAT_FP4_E2M1, c.scale = QK_FORMAT_E8M0, c.group = 32;
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 expert gemm");
    c.experts = 8, c.n = 8 * 64, c.m = 15;  // tokens are few, though experts are fewer
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 expert rows");
    c = {kU4, kPacked, 128 * 64, 4096, 32};
    c.experts = 128;
    const auto same_bits = [&] {
        const qk::cuda::BatchClass batch =
            batch_class(facts_of(c, kH200.device), kH200.device, kAmple);
        return std::pair(batch.first, batch.last);
    };
    EXPECT_EQ(same_bits(), std::pair(int64_t{32}, int64_t{383}));
    c.k = 14336;
    EXPECT_EQ(same_bits(), std::pair(int64_t{32}, int64_t{191}));
    c.k = 4096;
    c.m = 384;
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 expert gemm");
    EXPECT_EQ(same_bits().first, 384);
    c.m = 64;
    EXPECT_EQ(kernel(kH200, 0), "sm90 experts");
    EXPECT_EQ(kernel(kA100, kAmple), "experts");
    c.x = kF32;
    EXPECT_EQ(kernel(kH200, kAmple), "experts");
    EXPECT_EQ(reason_of(facts_of(c, kH200.device), kH200.device, kAmple),
              "x is F32, not F16 or BF16");
    c.x = kF16;
    c.slots = 33;  // more than a block has rows of tiles for
    EXPECT_EQ(kernel(kH200, 0), "experts");
    EXPECT_EQ(kernel(kH200, kAmple), "sm90 expert gemm");
    c.n = 128 * 40, c.slots = 2;
    EXPECT_EQ(kernel(kH200, kAmple), "experts");
}

// ---- Batch classes

TEST(CudaSelect, BatchClasses) {
    const struct {
        Card card;
        Case c;
        int64_t workspace, first, last;
    } rows[] = {
        {kH200, {kU4, kPacked, 4096, 4096, 1}, kAmple, 1, 1},
        {kH200, {kU4, kPacked, 4096, 4096, 7}, kAmple, 2, 16},
        {kH200, {kU4, kPacked, 4096, 4096, 20}, kAmple, 17, 64},
        {kH200, {kU4, kPacked, 8192, 8192, 20}, kAmple, 17, 24},
        {kH200, {kU4, kPacked, 8192, 8192, 25}, kAmple, 25, 64},
        {kH200, {kU4, kPacked, 8192, 8192, 100}, kAmple, 65, 128},
        {kH200, {kU4, kPacked, 8192, 8192, 129}, kAmple, 129, 256},
        {kH200, {kU4, kPacked, 8192, 8192, 4096}, kAmple, 3969, 4096},
        {kH200, {kNf4, kPacked, 8192, 8192, 7, kF16, 64}, kAmple, 2, 8},
        {kH200, {kNf4, kPacked, 8192, 8192, 12, kF16, 64}, kAmple, 9, 16},
        {kH200, {kU4, kPacked, 4096, 4096, 7, kF32}, kAmple, 2, 64},
        {kH200, {kU4, kRow, 8192, 8192, 1}, kAmple, 1, 1},
        {kH200, {kU4, kRow, 8192, 8192, 7}, kAmple, 2, 16},
        {kH200, {kU4, kAwq, 8192, 8192, 1}, kAmple, 1, 1},
        {kH200, {kU4, kAwq, 8192, 8192, 7}, kAmple, 2, 16},
        {kH200, {kU4, kAwq, 8192, 8192, 20}, kAmple, 17, 24},
        {kH200, {kU4, kAwq, 8192, 8192, 33}, kAmple, 25, 64},
        {kH200, {kU4, kAwq, 8192, 8192, 33}, 0, 2, 131070},  // no repacking, no cuBLASLt
        {kH200, {kS8, kRow, 4096, 4096, 1}, kAmple, 1, 1},
        {kH200, {kS8, kRow, 4096, 4096, 7}, kAmple, 2, 8},
        {kH200, {kS8, kRow, 4096, 4096, 7, kF16, 32}, kAmple, 1, 32},
        {kH200, {kS8, kRow, 4096, 4096, 40}, kAmple, 9, 64},
        {kH200, {kLut8, kRow, 4096, 4096, 600}, kAmple, 600, 600},
        {kA100, {kU4, kPacked, 4096, 4096, 1}, kAmple, 1, 16},
        {kA100, {kU4, kPacked, 4096, 4096, 20}, kAmple, 17, 64},
        {kA100, {kU4, kPacked, 4096, 4096, 256}, kAmple, 129, 256},
        {kA100, {kU4, kPacked, 4096, 4096, 20}, 0, 1, 64},
        {kA100, {kU4, kPacked, 4096, 4096, 3, kF16, 32}, kAmple, 1, 4},
        {kA100, {kU4, kPacked, 4096, 4096, 6, kF32}, kAmple, 1, 8},
        {kA100, {kNf4, kPacked, 4096, 4096, 100}, kAmple, 65, 128},
        // The room ends inside of a class.
        {kA100, {kU4, kPacked, 4096, 4096, 20}, 3 << 20, 17, 32},
        {kA100, {kNf4, kRow, 4096, 4096, 3, kF32}, kAmple, 1, 4},
    };
    for (const auto &row : rows) {
        const Facts f = facts_of(row.c, row.card.device);
        const BatchClass batch = batch_class(f, row.card.device, row.workspace);
        EXPECT_EQ(batch.first, row.first) << row.c.m << " on " << row.card.name;
        EXPECT_EQ(batch.last, row.last) << row.c.m << " on " << row.card.name;
    }
}

// What decides the order of a row's sums is one for all of a class.
TEST(CudaSelect, AClassHasOneKernelAndOneCut) {
    int classes = 0, at = 0;
    for_all([&](const Facts &f, const qk::Device &d, int64_t room) {
        if (at++ % 7 != 0) return;
        const BatchClass batch = batch_class(f, d, room);
        ASSERT_LE(batch.first, f.m);
        ASSERT_GE(batch.last, f.m);
        ++classes;
        const int32_t row = select(f, d, room).row;
        for (const int64_t m : {batch.first, (batch.first + batch.last) / 2, batch.last}) {
            Facts g = f;
            g.m = m;
            ASSERT_EQ(select(g, d, room).row, row) << m;
            if (kLinearTable[row].kernel == qk::cuda::LinearKernel::kSm80Gemm) {
                const auto split = [&](int64_t rows) {
                    return qk::cuda::sm80_gemm_split(qk::cuda::sm80_gemm_x_blocks(rows), f.n, f.k,
                                                     d.multiprocessors);
                };
                ASSERT_EQ(split(m), split(f.m));
            }
            if (kLinearTable[row].batch == qk::cuda::Batch::kBlocks && d.capability == 90) {
                const auto plan = [&](int64_t rows) {
                    const bool across = (f.extras & qk::cuda::kTransposed) != 0;
                    const auto kind = qk::cuda::GemmKind(across ? 2 : 0);
                    return qk::cuda::plan_gemm(qk::cuda::Codes::kU4, rows, across ? f.k : f.n,
                                               across ? f.n : f.k, d.multiprocessors, true, kind);
                };
                ASSERT_EQ(plan(m).cut, plan(f.m).cut);
                ASSERT_EQ(plan(m).split, plan(f.m).split);
                ASSERT_EQ(plan(m).tail, plan(f.m).tail);
            }
        }
    });
    EXPECT_GT(classes, 1000);
}

}  // namespace

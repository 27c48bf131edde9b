// Which kernel multiplies: one table for all kernels and all m. A row says what its kernel needs
// and for which rows of x it is wanted, fastest first. The first row that is wanted and whose needs
// are met is taken; where there is none, the first that can run. Kernels know nothing of each
// other: to add one, add its row and its folder. The crossovers were measured on an H200
// (docs/measurements/cuda-designs.md); docs/measurements/cuda-kernels.md is the table as a page.
#pragma once
#include <initializer_list>

#include "cuda/kernels.hpp"
#include "cuda/linear/needs.hpp"

namespace qk::cuda {

// ---- The table

// Batches in which a row of y has the same bits: all m where the row of the table is taken; this m
// alone; 1..64, 65..128 and every 128 more; what the product of packed weights says.
enum class Batch : uint8_t { kAny, kAlone, kBlocks, kRepacked };

struct Row {
    LinearKernel kernel;
    const Needs &needs;
    int64_t first, last;                            // rows of x for which it is wanted
    bool (*wanted)(const Facts &, const Device &);  // a further condition; null: none
    Batch batch;
};

// ---- Crossovers

namespace wanted {

// Not few rows of w, for which x is read too often; looked-up codes only of large weights, as the
// table is in shared memory, where x is too.
constexpr bool rows_24(const Facts &f, const Device &d) {
    const int64_t least = f.lut4() && !f.nested() ? int64_t{3} << 25 : int64_t{3} << 23;
    return ceil_div(f.all_n, 16) > 2 * int64_t{d.multiprocessors} && f.all_n * f.k >= least &&
           f.one_slab;
}
// Passes of 8 rows of f32 x, which cuBLASLt multiplies without tensor cores, or of 16.
constexpr bool passes(const Facts &f, const Device &) {
    if (f.f32) return f.m <= (f.lut4() && f.n * f.k < int64_t{1} << 25 ? 48 : 64);
    return f.meets(C::kGroupsOf64) || f.m <= 32;
}
// Passes of 8 rows of f32 x, as halves; in small groups one pass, of 4 or 2.
constexpr bool few_f32(const Facts &f, const Device &) {
    return f.f32 && f.m <= (f.meets(C::kGroupsOf64) ? 64 : f.group_size / 8);
}
// Large weights outweigh a longer start and end; of long rows, few_rows reads x as often as w;
// second scales make decoding longer, and look-ups do beside 9 rows of x and more. MXFP4 and NVFP4
// are as f32 scales of larger groups are; U4 in groups of 16 and 32 is faster there at any size.
constexpr bool large(const Facts &f, const Device &d) {
    const bool small = has_small_groups(f.group_size, f.groups_per_row);
    if (small && !f.lut4() && !f.nested() && !f.f32) return false;
    const bool coded = small && f.lut4() && f.coded;
    const bool look_ups = f.lut4() && f.m > 8 && (coded || f.meets(C::kGroupsOf64));
    const bool slow = look_ups || (f.nested() && !coded);
    return prefers_some_rows(f.n, f.k, slow, d.multiprocessors) && passes(f, d);
}
// Up to 8 rows FP8, of many rows of w or long ones, of which a block of the other kernel would read
// about as much of x as of w. More rows than the last are dequantized.
constexpr bool codes_8(const Facts &f, const Device &d) {
    const int64_t row_tiles = ceil_div(f.n, 16), blocks = d.multiprocessors;
    const bool long_rows = f.k > 12288 && row_tiles <= 2 * blocks;
    if (f.m <= 8) return f.e4m3 && (long_rows || row_tiles > 12 * blocks);
    return f.m <= (f.weight == kRowS8 ? 4096 : 512);
}
// Rows of w enough to outweigh a cluster's longer start and end, and columns for all of its warps;
// of very many rows, look-ups are what takes time, and some_rows has as many.
constexpr bool clusters(const Facts &f, const Device &d) {
    const int64_t row_tiles = ceil_div(f.n, 16), blocks = d.multiprocessors;
    return f.k > 3584 && row_tiles > 3 * blocks && (!f.lut4() || row_tiles <= 16 * blocks);
}
// What kernels on plain lanes read.
constexpr bool on_lanes(const Facts &f, const Device &) {
    const auto met = [&](const Needs &n) {
        return (f.weight & n.weights) != 0 && (n.conditions & ~f.met) == 0;
    };
    return met(kLanesNeeds) || met(kLanesLoweredNeeds) || met(kPackedLanesNeeds);
}

// Experts that rows of x share, if a routing is any: from 16 tokens on every fifth slot has the
// expert of another one where experts are twice as many as slots. Looked-up codes wait for tables.
constexpr bool together(const Facts &f, const Device &) {
    const bool some = f.tokens >= 16 && !f.lut4();
    return f.tokens * f.slots * (some ? 2 : 1) >= f.experts;
}
// Experts that have several rows each. Of long rows of x not all fit a block of the kernel for
// some. E2M1 in groups of 16 and 32, which that kernel looks up and multiplies four times and
// twice, is faster here as soon as a few slots share experts.
constexpr bool many_rows(const Facts &f, const Device &) {
    const bool small = f.e2m1 && has_small_groups(f.group_size, f.groups_per_row);
    if (small && f.tokens >= 16) {
        return f.tokens * f.slots * (f.group_size < 32 ? 1 : 2) >= f.experts;
    }
    return f.tokens * f.slots >= (f.k > 8192 ? 3 : 6) * f.experts;
}
constexpr bool transposed(const Facts &f, const Device &) { return (f.extras & kTransposed) != 0; }
constexpr bool across(const Facts &f, const Device &) {
    return f.m > 8 || !f.meets(C::kGroupsOf64);
}
constexpr bool not_on_lanes(const Facts &f, const Device &d) { return !on_lanes(f, d); }
// A pass of 4 rows; two for f32 x, which cuBLASLt multiplies without tensor cores.
constexpr bool lane_passes(const Facts &f, const Device &) { return f.m <= (f.f32 ? 8 : 4); }
// Looked-up codes before sm_90: of 129 rows and more, dequantizing takes no longer.
constexpr bool look_ups(const Facts &f, const Device &d) {
    return f.weight == kPackedLut4 && d.capability < 90;
}

}  // namespace wanted

constexpr int64_t kAnyM = INT64_MAX;
using K = LinearKernel;

constexpr Row kLinearTable[] = {
    // kernel, its needs, first and last m, further condition, batch class
    {K::kSm90ExpertGemm, kSm90ExpertGemmNeeds, 1, kAnyM, wanted::many_rows, Batch::kAny},
    {K::kSm90ExpertRows, kSm90ExpertRowsNeeds, 1, kAnyM, wanted::together, Batch::kAny},
    {K::kSm90Experts, kSm90ExpertsNeeds, 1, kAnyM, nullptr, Batch::kAny},
    {K::kExperts, kExpertsNeeds, 1, kAnyM, nullptr, Batch::kAny},
    {K::kTransposedRows, kTransposedRowsNeeds, 1, kStripRows, nullptr, Batch::kAny},
    {K::kSm90GemmTransposed, kSm90GemmTransposedNeeds, 1, kAnyM, wanted::across, Batch::kBlocks},
    {K::kTransposed, kTransposedNeeds, 1, 48, wanted::transposed, Batch::kAny},
    {K::kDense, kDenseNeeds, 1, kAnyM, wanted::transposed, Batch::kAlone},
    {K::kRepacked, kRepackedNeeds, 17, kAnyM, nullptr, Batch::kRepacked},
    {K::kSm90Gemv, kSm90GemvNeeds, 1, 1, nullptr, Batch::kAny},
    {K::kSm90Rows24, kSm90Rows24Needs, 17, 24, wanted::rows_24, Batch::kAny},
    {K::kSm90Gemm, kSm90GemmNeeds, 17, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm90Gemm8Bit, kSm90Gemm8BitNeeds, 5, 4096, wanted::codes_8, Batch::kBlocks},
    {K::kDense, kDenseNeeds, 257, kAnyM, nullptr, Batch::kAlone},
    {K::kDense, kDenseNeeds, 129, kAnyM, wanted::look_ups, Batch::kAlone},
    {K::kSm80Gemm, kSm80GemmNeeds, 17, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm80Gemm, kSm80GemmUnsplitNeeds, 65, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm90FewRows, kSm90FewRowsF32Needs, 2, kAnyM, wanted::few_f32, Batch::kAny},
    {K::kSm90FewRows, kSm90FewRowsPartsNeeds, 2, kAnyM, wanted::few_f32, Batch::kAny},
    {K::kSm90ClusterRows, kSm90ClusterRowsNeeds, 9, 16, wanted::clusters, Batch::kAny},
    {K::kSm90SomeRows, kSm90SomeRowsNeeds, 2, kAnyM, wanted::large, Batch::kAny},
    {K::kSm90FewRows, kSm90FewRowsNeeds, 2, kAnyM, nullptr, Batch::kAny},
    {K::kSm90SomeRows, kSm90SomeRowsNeeds, 1, kAnyM, wanted::passes, Batch::kAny},
    {K::kSm80Gemv, kSm80GemvNeeds, 1, kAnyM, nullptr, Batch::kAny},
    {K::kBytesGemv, kBytesGemvNeeds, 1, 1, nullptr, Batch::kAny},
    {K::kBytes, kBytesNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kWordsGemv, kWordsGemvNeeds, 1, 1, nullptr, Batch::kAny},
    {K::kWords, kWordsNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kColumnsGemv, kColumnsGemvNeeds, 1, 1, nullptr, Batch::kAny},
    {K::kColumns, kColumnsNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kDense, kDenseNeeds, 33, kAnyM, nullptr, Batch::kAlone},
    {K::kLanes, kLanesNeeds, 1, 4, nullptr, Batch::kAny},
    {K::kLanes, kLanesLoweredNeeds, 1, 4, nullptr, Batch::kAny},
    {K::kRecords, kRecordsNeeds, 1, 8, nullptr, Batch::kAny},
    {K::kPackedLanes, kPackedLanesNeeds, 1, 8, wanted::lane_passes, Batch::kAny},
    {K::kDense, kDenseNeeds, 5, kAnyM, wanted::on_lanes, Batch::kAlone},
    {K::kGeneric, kGenericNeeds, 1, 8, wanted::not_on_lanes, Batch::kAny},
    {K::kDense, kDenseNeeds, 9, kAnyM, nullptr, Batch::kAlone},
};
constexpr int32_t kLinearTableRows = int32_t(sizeof(kLinearTable) / sizeof(kLinearTable[0]));

// ---- Reading it

constexpr bool is_wanted(const Row &row, const Facts &f, const Device &d) {
    return f.m >= row.first && f.m <= row.last && (row.wanted == nullptr || row.wanted(f, d));
}

constexpr bool are_met(const Needs &n, const Facts &f, const Device &d) {
    return (f.weight & n.weights) != 0 && ((n.conditions & ~f.met) | (f.extras & ~n.takes)) == 0 &&
           (n.only & ~f.extras) == 0 && f.m >= n.first && f.m <= n.most && f.k > n.k_above &&
           f.k < n.k_below && f.n < n.n_below && d.capability >= n.least_capability &&
           d.capability <= n.most_capability &&
           (n.shared == nullptr || n.shared(f, d) <= d.shared_bytes);
}

constexpr int64_t workspace_of(const Row &row, const Facts &f, const Device &d) {
    return row.needs.workspace == nullptr ? 0 : row.needs.workspace(f, d);
}

struct Selected {
    int32_t row;        // of the table; -1: no kernel runs within the workspace
    int64_t workspace;  // bytes that it needs
    int32_t fastest;    // whatever the workspace; -1: no kernel takes the case
    int64_t fastest_workspace;
};

constexpr Selected select(const Facts &f, const Device &d, int64_t workspace) {
    Selected s = {-1, 0, -1, 0};
    for (const bool any : {false, true}) {
        for (int32_t i = 0; i < kLinearTableRows; ++i) {
            const Row &row = kLinearTable[i];
            if ((!any && !is_wanted(row, f, d)) || !are_met(row.needs, f, d)) continue;
            const int64_t bytes = workspace_of(row, f, d);
            if (s.fastest < 0) s.fastest = i, s.fastest_workspace = bytes;
            if (bytes > workspace) continue;
            s.row = i;
            s.workspace = bytes;
            return s;
        }
    }
    return s;
}

// ---- Explaining it

struct BatchClass {
    int64_t first, last;
};
// All m next to f.m for which a row of y has the same bits with this workspace.
BatchClass batch_class(const Facts &f, const Device &d, int64_t workspace);

// What a missing condition is told as; %lld is the size of a group.
const char *sentence_of(Condition condition);

// Why no row above the selected one was taken that is wanted: one sentence, or "".
void explain(const Facts &f, const Device &d, int64_t workspace, char *text, size_t size);

}  // namespace qk::cuda

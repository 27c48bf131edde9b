// Which kernel multiplies: one table for all kernels and all m. A row says what its kernel needs
// and for which rows of x it is wanted, fastest first. The first row that is wanted and whose needs
// are met is taken; where there is none, the first that can run. Kernels know nothing of each
// other: to add one, add its row and its folder. The crossovers were measured on an H200
// (docs/measurements/cuda-designs.md); docs/measurements/cuda-kernels.md is the table as a page.
#pragma once
#include <initializer_list>

#include "cuda/kernels.hpp"
#include "cuda/linear/cublaslt.hpp"
#include "cuda/linear/facts.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/stored/bytes_plan.hpp"
#include "cuda/linear/transposed_plan.hpp"

namespace qk::cuda {

using Bytes = int64_t(const Facts &, const Device &);

constexpr int64_t kNoLimit = INT64_MAX, kGrid = 65535;  // blocks along y
constexpr int32_t kNewest = INT32_MAX;
using C = Condition;

// ---- What each kernel needs

struct Needs {
    uint32_t weights;  // WeightKind
    Conditions conditions = 0;
    uint32_t takes = 0;                  // Extra
    uint32_t only = 0;                   // Extra that a case must have
    int64_t first = 1, most = kNoLimit;  // rows of x
    int64_t k_below = kNoLimit, n_below = kNoLimit;
    int32_t least_capability = 0, most_capability = kNewest;
    Bytes *shared = nullptr;     // memory of a block; null: 48 KiB will do
    Bytes *workspace = nullptr;  // null: none
};

namespace needs_bytes {

constexpr int64_t sm90_gemv(const Facts &f, const Device &d) {
    return gemv_shared(f.n, f.k, f.groups_per_row, f.second_group, d.multiprocessors);
}
constexpr int64_t few_rows(const Facts &f, const Device &d) {
    return few_rows_shared(f.n, f.groups_per_row, f.second_group, d.multiprocessors);
}
constexpr SomeRowsCase some_rows_case(const Facts &f) {
    return {f.n,          f.k,      f.group_size, f.groups_per_row, f.second_group,
            f.scale_bits, f.lut4(), f.f32};
}
constexpr int64_t some_rows(const Facts &f, const Device &d) {
    const SomeRowsCase c = some_rows_case(f);
    return some_rows_shared(c, d.multiprocessors, d.shared_bytes, c.most());
}
constexpr int64_t rows_24(const Facts &f, const Device &d) {
    return some_rows_shared(some_rows_case(f), d.multiprocessors, d.shared_bytes, kSomeRowsMany);
}
constexpr int64_t sm80_gemv(const Facts &f, const Device &d) {
    return sm80_gemv_shared(sm80_gemv_device(d.multiprocessors, d.shared_bytes), f.lut4());
}
template <int64_t bytes>
constexpr int64_t fixed(const Facts &, const Device &) {
    return bytes;
}
constexpr int64_t split_sums(const Facts &f, const Device &d) {
    return sm80_gemm_workspace(f.m, f.n, f.k, d.multiprocessors);
}
constexpr int64_t transposed_parts(const Facts &f, const Device &d) {
    return transposed_workspace(f.m, f.n, f.k, d.multiprocessors);
}
constexpr int64_t packed_slab(const Facts &f, const Device &) { return f.slab_bytes; }
constexpr int64_t dense_slab(const Facts &f, const Device &) {
    const DensePlan plan = plan_dense(f.n, f.k, f.value_bytes());
    const int64_t slab = f.weight == kDense ? 0 : plan.slab_bytes;
    return slab + plan.bias_bytes + int64_t{kLtWorkspaceBytes} + f.sums_bytes();
}

}  // namespace needs_bytes

// Packed tiles.
constexpr Conditions kTiles =
    needs(C::kXAligned16, C::kCodesAligned16, C::kScalesAligned16, C::kZerosAligned16, C::kK16,
          C::kGroupsAlongK, C::kGroupsPowerOfTwo, C::kScalesMultiply, C::kTableKnown,
          C::kSecondPowerOfTwo, C::kFewGroups32);

constexpr Needs kSm90GemvNeeds = {
    .weights = kPacked4,
    .conditions = kTiles | needs(C::kNestedAligned16, C::kGroupsOf16Or64, C::kWhole),
    .most = 1,
    .k_below = int64_t{1} << 24,
    .n_below = int64_t{1} << 34,
    .least_capability = 90,
    .shared = needs_bytes::sm90_gemv};

constexpr Needs kSm90FewRowsNeeds = {
    .weights = kPacked4,
    .conditions = kTiles | needs(C::kXIs16Bits, C::kYAligned, C::kNestedAligned16, C::kK256,
                                 C::kGroups16To128, C::kWhole),
    .first = 2,
    .most = kGrid * 8,
    .k_below = int64_t{1} << 24,
    .n_below = int64_t{1} << 34,
    .least_capability = 90,
    .shared = needs_bytes::few_rows};

constexpr Conditions kSomeRows =
    kTiles | needs(C::kYAligned, C::kSecondAligned4, C::kScaleCodeAligned4, C::kScaleBiasAligned4,
                   C::kGroupsOf16, C::kWhole);
constexpr Needs kSm90SomeRowsNeeds = {.weights = kPacked4,
                                      .conditions = kSomeRows,
                                      .most = kGrid * 8,
                                      .k_below = int64_t{1} << 24,
                                      .n_below = int64_t{1} << 30,
                                      .least_capability = 90,
                                      .shared = needs_bytes::some_rows};
constexpr Needs kSm90Rows24Needs = {
    .weights = kPacked4,
    .conditions = kSomeRows | needs(C::kXIs16Bits, C::kGroupsOf64, C::kSm90a),
    .first = 17,
    .most = kSomeRowsMany,
    .k_below = int64_t{1} << 24,
    .n_below = int64_t{1} << 30,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::rows_24};

// Also for packed rows in the workspace, whose second scales stay the caller's.
constexpr Needs kSm90GemmNeeds = {
    .weights = kPacked4,
    .conditions = kTiles | needs(C::kXIs16Bits, C::kSecondAligned4, C::kGroupsOf16, C::kSm90a),
    .first = 17,
    .most = kGrid * 64 - 1,
    .k_below = int64_t{1} << 30,
    .n_below = kGrid * 64 + 1,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<200 * 1024>};

constexpr Conditions kSm80 =
    kTiles | needs(C::kXIs16Bits, C::kNestedAligned16, C::kGroupsOf64, C::kWhole);
constexpr Needs kSm80GemvNeeds = {.weights = kPacked4,
                                  .conditions = kSm80,
                                  .most = kGrid * 8,
                                  .k_below = int64_t{1} << 30,
                                  .n_below = int64_t{1} << 34,
                                  .least_capability = 80,
                                  .shared = needs_bytes::sm80_gemv};
constexpr Needs sm80_gemm_needs(int64_t first, Bytes *workspace) {
    return {.weights = kPacked4,
            .conditions = kSm80,
            .first = first,
            .most = int64_t{1} << 31,
            .k_below = int64_t{1} << 30,
            .n_below = int64_t{1} << 34,
            .least_capability = 80,
            .shared = needs_bytes::fixed<96 * 1024>,
            .workspace = workspace};
}
constexpr Needs kSm80GemmNeeds = sm80_gemm_needs(17, needs_bytes::split_sums);
// Without a workspace a block takes all of k; few rows of x are faster in passes.
constexpr Needs kSm80GemmUnsplitNeeds = sm80_gemm_needs(65, nullptr);

// Weights as checkpoints store them.
constexpr Conditions kScaleWords =
    needs(C::kScalesAligned4, C::kSecondAligned4, C::kScaleBiasAligned4, C::kScalesMultiply,
          C::kTableKnown, C::kSecondPowerOfTwo);

constexpr Needs kRepackedNeeds = {
    .weights = kStored4,
    .conditions = needs(C::kXIs16Bits, C::kXAligned16, C::kCodesAlignedToRepack, C::kScalesAligned,
                        C::kSecondAligned4, C::kK16, C::kN16InAwq, C::kGroupsAlongK,
                        C::kGroupsPowerOfTwo, C::kGroupsOf16, C::kScalesMultiply, C::kTableKnown,
                        C::kSecondPowerOfTwo, C::kSecondFitsSlabs, C::kFewTiles28, C::kSm90a),
    .first = 17,
    .most = kGrid * 64 - 1,
    .k_below = int64_t{1} << 28,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<200 * 1024>,
    .workspace = needs_bytes::packed_slab};

constexpr Conditions kBytesConditions =
    kScaleWords | needs(C::kXIs16Bits, C::kXAligned16, C::kYAligned, C::kCodesAligned16,
                        C::kScaleCodeAligned4, C::kTableAligned4, C::kK16, C::kGroupsAlongK);
constexpr Needs kSm90Gemm8BitNeeds = {
    .weights = kCodes8,
    .conditions = kBytesConditions | needs(C::kGroupsOf64, C::kFewGroups32, C::kSm90a),
    .first = 17,
    .most = kGrid * 64 - 1,
    .k_below = int64_t{1} << 30,
    .n_below = kGrid * 64 + 1,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<227 * 1024>};
constexpr Needs kBytesNeeds = {.weights = kCodes8,
                               .conditions = kBytesConditions | needs(C::kGroupsOf16),
                               .most = kGrid * 8,
                               .k_below = int64_t{1} << 23,
                               .n_below = int64_t{1} << 30,
                               .least_capability = 90,
                               .shared = needs_bytes::fixed<kBytesShared>};

constexpr Conditions kWordsConditions =
    kScaleWords | needs(C::kXAligned16, C::kK8, C::kGroupsAlongK, C::kGroupsOf32, C::kFewGroups31);
constexpr Needs words_needs(uint32_t weights, Conditions more) {
    return {.weights = weights,
            .conditions = kWordsConditions | more,
            .most = kGrid * 2,
            .k_below = int64_t{1} << 30,
            .n_below = int64_t{1} << 31,
            .least_capability = 80};
}
constexpr Needs kWordsNeeds = words_needs(
    kRow4 | kGptqU4, needs(C::kXIs16BitsForLut4, C::kCodesAlignedToWords, C::kN4InGptq));
constexpr Needs kColumnsNeeds =
    words_needs(kAwqU4, needs(C::kCodesAligned4, C::kZerosAligned4, C::kN8));

constexpr Needs kLanesNeeds = {
    .weights = kRow4 | kCodes8,
    .conditions = kScaleWords | needs(C::kScaleCodeAligned4, C::kFlatBy8, C::kGroupsOf8),
    .most = kGrid,
    .n_below = int64_t{1} << 34};

constexpr Needs kLanesLoweredNeeds = {
    .weights = kRowLowered,
    .conditions = kLanesNeeds.conditions | needs(C::kZerosAligned4),
    .most = kGrid,
    .n_below = int64_t{1} << 34};

constexpr Needs kRecordsNeeds = {.weights = kRecords,
                                 .conditions = needs(C::kXAligned16, C::kCodesAligned16),
                                 .most = kGrid * 4,
                                 .n_below = int64_t{1} << 34};

constexpr Needs kPackedLanesNeeds = {
    .weights = kPackedLowered,
    .conditions = needs(C::kXAligned16, C::kCodesAligned16, C::kScalesAligned16, C::kZerosAligned16,
                        C::kK16, C::kGroupsAlongK, C::kGroupsPowerOfTwo, C::kGroupsOf16,
                        C::kSecondPowerOfTwo, C::kFewGroups32),
    .most = kGrid * 4,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 34};

constexpr Needs kTransposedNeeds = {
    .weights = kPacked4,
    .conditions = needs(C::kXIs16Bits, C::kXAligned, C::kCodesAligned16, C::kScalesAligned16,
                        C::kK16, C::kGroupsAlongK, C::kGroupsPowerOfTwo, C::kGroupsOf16,
                        C::kTableKnown, C::kSecondPowerOfTwo, C::kFewGroups32),
    .takes = kAnyExtra,
    .only = kTransposed,
    .most = kGrid * kTransposedRows,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 34,
    .least_capability = 80,
    .workspace = needs_bytes::transposed_parts};

// Any weight.
constexpr Needs kDenseNeeds = {
    .weights = kAnyWeight & ~kDenseOther,
    .conditions = needs(C::kXAligned16, C::kYAligned16, C::kDenseAligned16, C::kXRows16Bytes,
                        C::kYRows16Bytes, C::kLibrary),
    .takes = kAnyExtra,
    .most = (int64_t{1} << 31) - 1,
    .k_below = int64_t{1} << 31,
    .n_below = int64_t{1} << 31,
    .workspace = needs_bytes::dense_slab};
constexpr Needs kGenericNeeds = {
    .weights = kAnyWeight, .takes = kAnyExtra, .n_below = int64_t{1} << 34};

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
// Large weights outweigh a longer start and end; of long rows, few_rows reads x as often as w;
// second scales make decoding longer.
constexpr bool large(const Facts &f, const Device &d) {
    return prefers_some_rows(f.n, f.k, f.nested(), d.multiprocessors) && passes(f, d);
}
// More rows are dequantized.
constexpr bool codes_8(const Facts &f, const Device &) {
    return f.m <= (f.weight == kRowS8 ? 4096 : 512);
}
// What the kernel `lanes` reads.
constexpr bool row_by_row(const Facts &f, const Device &) {
    const auto met = [&](const Needs &n) {
        return (f.weight & n.weights) != 0 && (n.conditions & ~f.met) == 0;
    };
    return met(kLanesNeeds) || met(kLanesLoweredNeeds);
}

constexpr bool transposed(const Facts &f, const Device &) { return (f.extras & kTransposed) != 0; }
constexpr bool not_row_by_row(const Facts &f, const Device &d) { return !row_by_row(f, d); }
// Looked-up codes before sm_90: no matrix kernel on mma.sync has been measured with them there.
constexpr bool unmeasured_lut4(const Facts &f, const Device &d) {
    return f.weight == kPackedLut4 && d.capability < 90;
}

}  // namespace wanted

constexpr int64_t kAnyM = INT64_MAX;
using K = LinearKernel;

constexpr Row kLinearTable[] = {
    // kernel, its needs, first and last m, further condition, batch class
    {K::kTransposed, kTransposedNeeds, 1, 48, wanted::transposed, Batch::kAny},
    {K::kDense, kDenseNeeds, 1, kAnyM, wanted::transposed, Batch::kAlone},
    {K::kRepacked, kRepackedNeeds, 17, kAnyM, nullptr, Batch::kRepacked},
    {K::kSm90Gemv, kSm90GemvNeeds, 1, 1, nullptr, Batch::kAny},
    {K::kSm90Rows24, kSm90Rows24Needs, 17, 24, wanted::rows_24, Batch::kAny},
    {K::kSm90Gemm, kSm90GemmNeeds, 17, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm90Gemm8Bit, kSm90Gemm8BitNeeds, 17, 4096, wanted::codes_8, Batch::kBlocks},
    {K::kDense, kDenseNeeds, 257, kAnyM, nullptr, Batch::kAlone},
    {K::kDense, kDenseNeeds, 17, kAnyM, wanted::unmeasured_lut4, Batch::kAlone},
    {K::kSm80Gemm, kSm80GemmNeeds, 17, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm80Gemm, kSm80GemmUnsplitNeeds, 65, kAnyM, nullptr, Batch::kBlocks},
    {K::kSm90SomeRows, kSm90SomeRowsNeeds, 2, kAnyM, wanted::large, Batch::kAny},
    {K::kSm90FewRows, kSm90FewRowsNeeds, 2, kAnyM, nullptr, Batch::kAny},
    {K::kSm90SomeRows, kSm90SomeRowsNeeds, 1, kAnyM, wanted::passes, Batch::kAny},
    {K::kSm80Gemv, kSm80GemvNeeds, 1, kAnyM, nullptr, Batch::kAny},
    {K::kBytes, kBytesNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kWords, kWordsNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kColumns, kColumnsNeeds, 1, 32, nullptr, Batch::kAny},
    {K::kDense, kDenseNeeds, 33, kAnyM, nullptr, Batch::kAlone},
    {K::kLanes, kLanesNeeds, 1, 4, nullptr, Batch::kAny},
    {K::kLanes, kLanesLoweredNeeds, 1, 4, nullptr, Batch::kAny},
    {K::kRecords, kRecordsNeeds, 1, 8, nullptr, Batch::kAny},
    {K::kPackedLanes, kPackedLanesNeeds, 1, 8, nullptr, Batch::kAny},
    {K::kDense, kDenseNeeds, 5, kAnyM, wanted::row_by_row, Batch::kAlone},
    {K::kGeneric, kGenericNeeds, 1, 8, wanted::not_row_by_row, Batch::kAny},
    {K::kDense, kDenseNeeds, 9, kAnyM, nullptr, Batch::kAlone},
};
constexpr int32_t kLinearTableRows = int32_t(sizeof(kLinearTable) / sizeof(kLinearTable[0]));

// ---- Reading it

constexpr bool is_wanted(const Row &row, const Facts &f, const Device &d) {
    return f.m >= row.first && f.m <= row.last && (row.wanted == nullptr || row.wanted(f, d));
}

constexpr bool are_met(const Needs &n, const Facts &f, const Device &d) {
    return (f.weight & n.weights) != 0 && ((n.conditions & ~f.met) | (f.extras & ~n.takes)) == 0 &&
           (n.only & ~f.extras) == 0 && f.m >= n.first && f.m <= n.most && f.k < n.k_below &&
           f.n < n.n_below && d.capability >= n.least_capability &&
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

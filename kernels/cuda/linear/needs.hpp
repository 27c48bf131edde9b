// What each kernel that multiplies needs of a case (facts.hpp), itself and of memory.
#pragma once
#include "cuda/linear/cublaslt.hpp"
#include "cuda/linear/facts.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm90/cluster_rows/plan.hpp"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/linear/sm90/gemm/experts_plan.hpp"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/stored/bytes_plan.hpp"
#include "cuda/linear/stored/gemv_plan.hpp"
#include "cuda/linear/transposed_plan.hpp"
#include "cuda/linear/transposed_rows_plan.hpp"

namespace qk::cuda {

using Bytes = int64_t(const Facts &, const Device &);
constexpr int64_t kNoLimit = INT64_MAX, kGrid = 65535;  // blocks along y
constexpr int32_t kNewest = INT32_MAX;
using C = Condition;

struct Needs {
    uint32_t weights;  // WeightKind
    Conditions conditions = 0;
    uint32_t takes = 0;                  // Extra
    uint32_t only = 0;                   // Extra that a case must have
    int64_t first = 1, most = kNoLimit;  // rows of x
    int64_t k_above = 0, k_below = kNoLimit, n_below = kNoLimit;
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
constexpr int64_t cluster_rows(const Facts &f, const Device &d) {
    return cluster_rows_shared(plan_cluster_rows(f.n, f.k / 128, 2, d.multiprocessors),
                               f.groups_per_row, f.second_group);
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
constexpr int64_t words_gemv(const Facts &f, const Device &d) {
    const bool gptq = f.weight == kGptqU4;
    return words_gemv_shared(plan_words_gemv(f.n, f.k, gptq, d.multiprocessors), f.lut4());
}
constexpr int64_t bytes_gemv(const Facts &f, const Device &d) {
    const GemvPlan plan = plan_words_gemv(f.n, f.k, false, d.multiprocessors);
    return bytes_gemv_shared(plan, f.weight == kRowLut8);
}
constexpr int64_t columns_gemv(const Facts &f, const Device &d) {
    const int64_t group = f.groups_per_row == 1 ? f.k : f.group_size;
    const int32_t scale = f.scale_bits / 8;
    return columns_gemv_shared(plan_columns_gemv({f.n, f.k, group, scale, d.multiprocessors,
                                                  d.shared_bytes, d.capability >= 90}),
                               scale);
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
constexpr int64_t expert_rows(const Facts &f, const Device &) {
    return plan_rows_list(f.tokens, f.slots, f.experts, f.y_columns, f.summed).end;
}
constexpr int64_t expert_rows_shared(const Facts &f, const Device &) {
    return gemv_rows_shared(f.experts, f.tokens, f.slots, f.k);
}
constexpr int64_t expert_gemm(const Facts &f, const Device &) {
    const GemmExpertsKind kind = {has_small_groups(f.group_size, f.groups_per_row), f.nested(),
                                  f.lut4(), f.e2m1};
    return plan_gemm_list(f.tokens, f.slots, f.experts, f.y_columns, f.summed, f.k, kind).end;
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
    .conditions = kTiles | needs(C::kNestedAligned16, C::kGroupsOf16, C::kWhole),
    .most = 1,
    .k_below = int64_t{1} << 24,
    .n_below = int64_t{1} << 34,
    .least_capability = 90,
    .shared = needs_bytes::sm90_gemv};

constexpr Conditions kExpertsInTiles =
    (kTiles & ~needs(C::kSecondPowerOfTwo)) |
    needs(C::kXIs16Bits, C::kXRows16Bytes, C::kSecondAligned4, C::kScaleCodeAligned4,
          C::kScaleBiasAligned4, C::kGroupsOf16, C::kSecondOfRows, C::kExpertTiles);
constexpr uint32_t kExpertsExtras = kStridedX | kStridedY | kWideY | kAccumulates | kExpertsOfW;
constexpr Needs sm90_experts_needs(Condition more, Bytes *shared, Bytes *workspace) {
    return {.weights = kPacked4,
            .conditions = kExpertsInTiles | needs(more),
            .takes = kExpertsExtras,
            .only = kExpertsOfW,
            .k_below = int64_t{1} << 24,
            .n_below = int64_t{1} << 34,
            .least_capability = 90,
            .shared = shared,
            .workspace = workspace};
}
constexpr Needs kSm90ExpertsNeeds =
    sm90_experts_needs(C::kFewSlots, needs_bytes::fixed<kExpertsShared>, nullptr);
constexpr Needs kSm90ExpertRowsNeeds =
    sm90_experts_needs(C::kFewExperts, needs_bytes::expert_rows_shared, needs_bytes::expert_rows);
constexpr Needs kSm90ExpertGemmNeeds = {
    .weights = kPacked4,
    .conditions =
        kExpertsInTiles | needs(C::kFewExperts, C::kSecondPowerOfTwo, C::kGroupsOf16, C::kSm90a),
    .takes = kExpertsExtras,
    .only = kExpertsOfW,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 34,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<200 * 1024>,
    .workspace = needs_bytes::expert_gemm};

constexpr Needs few_rows(Conditions of_x, int64_t most) {
    return {.weights = kPacked4,
            .conditions =
                kTiles | of_x |
                needs(C::kYAligned, C::kNestedAligned16, C::kK256, C::kGroups16To128, C::kWhole),
            .first = 2,
            .most = most,
            .k_below = int64_t{1} << 24,
            .n_below = int64_t{1} << 34,
            .least_capability = 90,
            .shared = needs_bytes::few_rows};
}
constexpr Needs kSm90FewRowsNeeds = few_rows(needs(C::kXIs16Bits), kGrid * 8);
constexpr Needs kSm90FewRowsF32Needs = few_rows(needs(C::kXIs32Bits, C::kGroupsOf64), kGrid * 8);
constexpr Needs kSm90FewRowsPartsNeeds = few_rows(needs(C::kXIs32Bits), 4);  // one pass
constexpr Needs kSm90ClusterRowsNeeds = {.weights = kPacked4,
                                         .conditions = kSm90FewRowsNeeds.conditions,
                                         .most = kClusterRowsMost,
                                         .k_above = kClusterRowsColumns / 2,
                                         .k_below = kClusterRowsColumns + 1,
                                         .least_capability = 90,
                                         .shared = needs_bytes::cluster_rows};

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
    .first = 5,
    .most = kGrid * 64 - 1,
    .k_below = int64_t{1} << 30,
    .n_below = kGrid * 64 + 1,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<227 * 1024>};
constexpr Needs kBytesGemvNeeds = {
    .weights = kCodes8,
    .conditions = kBytesConditions | needs(C::kGroupsPowerOfTwo, C::kGroupsOf64),
    .most = 1,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 31,
    .least_capability = 80,
    .shared = needs_bytes::bytes_gemv};
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
constexpr Needs kWordsGemvNeeds = {
    .weights = kRow4 | kGptqU4,
    .conditions = kScaleWords | needs(C::kXIs16Bits, C::kXAligned16, C::kCodesAligned16, C::kK32,
                                      C::kN4InGptq, C::kGroupsAlongK, C::kGroupsPowerOfTwo,
                                      C::kGroupsOf64, C::kFewGroups31),
    .most = 1,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 31,
    .least_capability = 80,
    .shared = needs_bytes::words_gemv};
constexpr Needs kColumnsGemvNeeds = {
    .weights = kAwqU4,
    .conditions =
        kScaleWords | needs(C::kXIs16Bits, C::kXAligned16, C::kCodesAligned16, C::kScalesAligned16,
                            C::kZerosAligned16, C::kK8, C::kN32, C::kGroupsAlongK,
                            C::kGroupsPowerOfTwo, C::kGroupsOf32, C::kFewGroups31, C::kScalesPlain),
    .most = 1,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 31,
    .least_capability = 80,
    .shared = needs_bytes::columns_gemv};
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
    .weights = kPacked4 | kPackedLowered,
    .conditions = needs(C::kXAligned16, C::kCodesAligned16, C::kScalesAligned16, C::kZerosAligned16,
                        C::kK16, C::kGroupsAlongK, C::kGroupsPowerOfTwo, C::kGroupsOf16,
                        C::kSecondPowerOfTwo, C::kFewGroups32),
    .most = kGrid * 4,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 34};

constexpr Needs kTransposedNeeds = {
    .weights = kPacked4,
    .conditions = needs(C::kXIs16Bits, C::kXRows4Bytes, C::kCodesAligned16, C::kScalesAligned16,
                        C::kZerosAligned4, C::kSecondAligned4, C::kK16, C::kGroupsAlongK,
                        C::kGroupsPowerOfTwo, C::kGroupsOf16, C::kScalesMultiply, C::kTableKnown,
                        C::kSecondPowerOfTwo, C::kFewGroups32),
    .takes = kAnyExtra,
    .only = kTransposed,
    .most = kGrid * kTransposedRows,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 30,
    .least_capability = 80,
    .workspace = needs_bytes::transposed_parts};

constexpr Needs kTransposedRowsNeeds = {
    .weights = kPacked4,
    .conditions = (kTransposedNeeds.conditions & ~needs(C::kXRows4Bytes)) |
                  needs(C::kXAligned16, C::kXRows16Bytes, C::kNestedGroupsOf64, C::kFloatGroupsOf32,
                        C::kZerosAligned16, C::kScaleCodeAligned4, C::kScaleBiasAligned4),
    .takes = kAnyExtra,
    .only = kTransposed,
    .most = kStripRows,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 30,
    .least_capability = 90,
    .shared = needs_bytes::fixed<kStripShared>};

constexpr Needs kSm90GemmTransposedNeeds = {
    .weights = kPacked4,
    .conditions = kTransposedNeeds.conditions |
                  needs(C::kXAligned16, C::kYAligned, C::kXRows16Bytes, C::kSm90a),
    .takes = kTransposed | kStridedX | kStridedY,
    .only = kTransposed,
    .most = kGrid * 64 - 1,
    .k_below = int64_t{1} << 30,
    .n_below = int64_t{1} << 30,
    .least_capability = 90,
    .most_capability = 90,
    .shared = needs_bytes::fixed<200 * 1024>};

constexpr Needs kDenseNeeds = {
    .weights = kAnyWeight & ~kDenseOther,
    .conditions = needs(C::kXAligned16, C::kYAligned16, C::kDenseAligned16, C::kXRows16Bytes,
                        C::kYRows16Bytes, C::kLibrary),
    .takes = kAnyExtra,
    .most = (int64_t{1} << 31) - 1,
    .k_below = int64_t{1} << 31,
    .n_below = int64_t{1} << 31,
    .workspace = needs_bytes::dense_slab};
constexpr Needs kExpertsNeeds = {.weights = kAnyWeight,
                                 .takes = kAnyExtra | kExpertsOfW,
                                 .only = kExpertsOfW,
                                 .n_below = int64_t{1} << 34};
constexpr Needs kGenericNeeds = {
    .weights = kAnyWeight, .takes = kAnyExtra, .n_below = int64_t{1} << 34};

}  // namespace qk::cuda

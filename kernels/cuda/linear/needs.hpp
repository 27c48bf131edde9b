// What each kernel for products needs, a constant a kernel. select.hpp strings them together.
#pragma once
#include "cuda/linear/cublaslt.hpp"
#include "cuda/linear/facts.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm80/gemm/plan.hpp"
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm90/few_rows/plan.hpp"
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/stored/bytes_plan.hpp"

namespace qk::cuda {

using Bytes = int64_t(const Facts &, const Device &);

struct Needs {
    uint32_t weights;  // WeightKind
    Conditions conditions;
    int64_t first, most;  // rows of x
    int64_t k_below, n_below;
    int32_t least_capability, most_capability;
    Bytes *shared;     // memory of a block; null: 48 KiB will do
    Bytes *workspace;  // null: none
};

constexpr int64_t kNoLimit = INT64_MAX, kGrid = 65535;  // blocks along y
constexpr int32_t kNewest = INT32_MAX;
using C = Condition;

// ---- Bytes

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
constexpr int64_t packed_slab(const Facts &f, const Device &) { return f.slab_bytes; }
constexpr int64_t dense_slab(const Facts &f, const Device &) {
    const DensePlan plan = plan_dense(f.n, f.k, f.value_bytes());
    return (f.weight == kDense ? 0 : plan.slab_bytes) + plan.bias_bytes +
           int64_t{kLtWorkspaceBytes};
}

}  // namespace needs_bytes

// ---- Packed tiles

constexpr Conditions kTiles =
    needs(C::kXAligned16, C::kCodesAligned16, C::kScalesAligned16, C::kZerosAligned16, C::kK16,
          C::kGroupsAlongK, C::kGroupsPowerOfTwo, C::kSecondPowerOfTwo, C::kFewGroups32);

constexpr Needs kSm90GemvNeeds = {
    kPacked4,
    kTiles | needs(C::kNestedAligned16, C::kGroupsOf32Or64, C::kWhole),
    1,
    1,
    int64_t{1} << 24,
    int64_t{1} << 34,
    90,
    kNewest,
    needs_bytes::sm90_gemv,
    nullptr};

constexpr Needs kSm90FewRowsNeeds = {
    kPacked4,
    kTiles | needs(C::kXIs16Bits, C::kYAligned, C::kNestedAligned16, C::kK256, C::kGroups64Or128,
                   C::kWhole),
    2,
    kGrid * 8,
    int64_t{1} << 24,
    int64_t{1} << 34,
    90,
    kNewest,
    needs_bytes::few_rows,
    nullptr};

constexpr Conditions kSomeRows =
    kTiles | needs(C::kYAligned, C::kSecondAligned4, C::kScaleCodeAligned4, C::kScaleBiasAligned4,
                   C::kGroupsOf16, C::kWhole);
constexpr Needs kSm90SomeRowsNeeds = {kPacked4,  kSomeRows,        1,
                                      kGrid * 8, int64_t{1} << 24, int64_t{1} << 30,
                                      90,        kNewest,          needs_bytes::some_rows,
                                      nullptr};
constexpr Needs kSm90Rows24Needs = {kPacked4,
                                    kSomeRows | needs(C::kXIs16Bits, C::kGroupsOf64, C::kSm90a),
                                    17,
                                    kSomeRowsMany,
                                    int64_t{1} << 24,
                                    int64_t{1} << 30,
                                    90,
                                    90,
                                    needs_bytes::rows_24,
                                    nullptr};

// Also for packed rows in the workspace, whose second scales stay the caller's.
constexpr Conditions kGemm =
    kTiles | needs(C::kXIs16Bits, C::kSecondAligned4, C::kGroupsOf64, C::kSm90a);
constexpr Needs kSm90GemmNeeds = {kPacked4,
                                  kGemm,
                                  17,
                                  kGrid * 64 - 1,
                                  int64_t{1} << 30,
                                  kGrid * 64 + 1,
                                  90,
                                  90,
                                  needs_bytes::fixed<200 * 1024>,
                                  nullptr};

constexpr Conditions kSm80 =
    kTiles | needs(C::kXIs16Bits, C::kNestedAligned16, C::kGroupsOf64, C::kWhole);
constexpr Needs kSm80GemvNeeds = {kPacked4,
                                  kSm80,
                                  1,
                                  kGrid * 8,
                                  int64_t{1} << 30,
                                  int64_t{1} << 34,
                                  80,
                                  kNewest,
                                  needs_bytes::sm80_gemv,
                                  nullptr};
constexpr Needs kSm80GemmNeeds = {kPacked4,
                                  kSm80,
                                  17,
                                  int64_t{1} << 31,
                                  int64_t{1} << 30,
                                  int64_t{1} << 34,
                                  80,
                                  kNewest,
                                  needs_bytes::fixed<96 * 1024>,
                                  needs_bytes::split_sums};
// Without a workspace a block takes all of k; few rows of x are faster in passes.
constexpr Needs kSm80GemmUnsplitNeeds = {kPacked4,
                                         kSm80,
                                         65,
                                         int64_t{1} << 31,
                                         int64_t{1} << 30,
                                         int64_t{1} << 34,
                                         80,
                                         kNewest,
                                         needs_bytes::fixed<96 * 1024>,
                                         nullptr};

// ---- Weights as checkpoints store them

constexpr Conditions kScaleWords =
    needs(C::kScalesAligned4, C::kSecondAligned4, C::kScaleBiasAligned4, C::kSecondPowerOfTwo);

constexpr Needs kRepackedNeeds = {
    kStored4,
    needs(C::kXIs16Bits, C::kXAligned16, C::kCodesAlignedToRepack, C::kScalesAligned,
          C::kSecondAligned4, C::kK16, C::kN16InAwq, C::kGroupsAlongK, C::kGroupsPowerOfTwo,
          C::kGroupsOf64, C::kSecondPowerOfTwo, C::kSecondFitsSlabs, C::kFewTiles28, C::kSm90a),
    17,
    kGrid * 64 - 1,
    int64_t{1} << 28,
    kNoLimit,
    90,
    90,
    needs_bytes::fixed<200 * 1024>,
    needs_bytes::packed_slab};

constexpr Conditions kBytesConditions =
    kScaleWords | needs(C::kXIs16Bits, C::kXAligned16, C::kYAligned, C::kCodesAligned16,
                        C::kScaleCodeAligned4, C::kTableAligned4, C::kK16, C::kGroupsAlongK);
constexpr Needs kSm90Gemm8BitNeeds = {
    kCodes8,
    kBytesConditions | needs(C::kGroupsOf64, C::kFewGroups32, C::kSm90a),
    17,
    kGrid * 64 - 1,
    int64_t{1} << 30,
    kGrid * 64 + 1,
    90,
    90,
    needs_bytes::fixed<227 * 1024>,
    nullptr};
constexpr Needs kBytesNeeds = {kCodes8,
                               kBytesConditions | needs(C::kGroupsOf16),
                               1,
                               kGrid * 8,
                               int64_t{1} << 23,
                               int64_t{1} << 30,
                               90,
                               kNewest,
                               needs_bytes::fixed<kBytesShared>,
                               nullptr};

constexpr Conditions kWordsConditions =
    kScaleWords | needs(C::kXAligned16, C::kK8, C::kGroupsAlongK, C::kGroupsOf32, C::kFewGroups31);
constexpr Needs kWordsNeeds = {
    kRow4 | kGptqU4,
    kWordsConditions | needs(C::kXIs16BitsForLut4, C::kCodesAlignedToWords, C::kN4InGptq),
    1,
    kGrid * 2,
    int64_t{1} << 30,
    int64_t{1} << 31,
    80,
    kNewest,
    nullptr,
    nullptr};
constexpr Needs kColumnsNeeds = {
    kAwqU4,
    kWordsConditions | needs(C::kCodesAligned4, C::kZerosAligned4, C::kN8),
    1,
    kGrid * 2,
    int64_t{1} << 30,
    int64_t{1} << 31,
    80,
    kNewest,
    nullptr,
    nullptr};

constexpr Conditions kLanesConditions =
    kScaleWords | needs(C::kScaleCodeAligned4, C::kFlatBy8, C::kGroupsOf8);
constexpr Needs kLanesNeeds = {kRow4 | kCodes8, kLanesConditions, 1, kGrid,
                               kNoLimit,        int64_t{1} << 34, 0, kNewest,
                               nullptr,         nullptr};

// ---- Any weight

constexpr Needs kDenseNeeds = {kAnyWeight & ~kDenseOther,
                               needs(C::kXAligned16, C::kYAligned16, C::kDenseAligned16,
                                     C::kXRows16Bytes, C::kYRows16Bytes, C::kLibrary),
                               1,
                               (int64_t{1} << 31) - 1,
                               int64_t{1} << 31,
                               int64_t{1} << 31,
                               0,
                               kNewest,
                               nullptr,
                               needs_bytes::dense_slab};
constexpr Needs kGenericNeeds = {kAnyWeight,       0, 1,       kNoLimit, kNoLimit,
                                 int64_t{1} << 34, 0, kNewest, nullptr,  nullptr};

}  // namespace qk::cuda

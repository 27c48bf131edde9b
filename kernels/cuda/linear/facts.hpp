// What is known of a product before a kernel is chosen. Making them is the only place that asks
// about alignment, groups and layouts; select.hpp then compares bits.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"

namespace qk::cuda {

// A weight's codes and how they are stored. Row: row after row (ROW, ROW_HIGH, AWQ_GEMV, WORD).
enum WeightKind : uint32_t {
    kPackedU4 = 1u << 0,
    kPackedLut4 = 1u << 1,
    kRowU4 = 1u << 2,
    kRowLut4 = 1u << 3,
    kGptqU4 = 1u << 4,
    kGptqLut4 = 1u << 5,
    kAwqU4 = 1u << 6,  // AWQ_GEMM
    kAwqLut4 = 1u << 7,
    kRowS8 = 1u << 8,
    kRowLut8 = 1u << 9,
    kDense = 1u << 10,          // of x's type
    kDenseOther = 1u << 11,     // of another one
    kPackedLowered = 1u << 12,  // with minima: packed
    kRowLowered = 1u << 13,     // row after row, 8-bit codes too
    kOtherLowered = 1u << 14,
    kRecords = 1u << 15,  // of a GGUF file
};

constexpr uint32_t kPacked4 = kPackedU4 | kPackedLut4;
constexpr uint32_t kRow4 = kRowU4 | kRowLut4;
constexpr uint32_t kStored4 = kRow4 | kGptqU4 | kGptqLut4 | kAwqU4 | kAwqLut4;
constexpr uint32_t kCodes8 = kRowS8 | kRowLut8;
constexpr uint32_t kAnyWeight = (kRecords << 1) - 1;

// What a product may be besides y = x . transpose(w) + bias over rows without gaps, y in x's type.
// A kernel runs those alone that its needs name.
enum Extra : uint32_t {
    kStridedX = 1u << 0,
    kStridedY = 1u << 1,
    kWideY = 1u << 2,  // f32 from 16-bit x
    kAccumulates = 1u << 3,
    kTransposed = 1u << 4,
    kExpertsOfW = 1u << 5,  // w has several, each row of x its own
};
constexpr uint32_t kAnyExtra = (kTransposed << 1) - 1;  // of one weight

// What a kernel may ask of a case. A kernel that was not taken is told by the first condition that
// it misses, so what a caller can mend comes first. Sentences: select.cpp.
enum class Condition : uint8_t {
    kXIs16Bits,
    kXIs16BitsForLut4,
    kXIs32Bits,
    kXAligned16,
    kYAligned,  // to its values
    kYAligned16,
    kCodesAligned16,
    kCodesAligned4,
    kCodesAlignedToRepack,  // what reads each layout: GPTQ by 4 bytes, the others by 8
    kCodesAlignedToWords,   // GPTQ by 16 bytes, the others by 4
    kDenseAligned16,        // where w is dense
    kScalesAligned16,
    kScalesAligned4,
    kScalesAligned,   // to their values
    kZerosAligned16,  // zeros or minima
    kZerosAligned4,
    kNestedAligned16,    // second scales, code and bias
    kSecondAligned4,     // second scales, those of minima too
    kScaleCodeAligned4,  // nested: code
    kScaleBiasAligned4,  // nested: bias
    kTableAligned4,
    kK8,
    kK16,
    kK32,
    kK256,
    kXRows4Bytes,   // rows of x are whole words, aligned to them
    kXRows16Bytes,  // rows of x are multiples of 16 bytes
    kYRows16Bytes,
    kN4InGptq,  // n is a multiple of 4 where the layout is GPTQ
    kN8,
    kN32,
    kN16InAwq,          // n is a multiple of 16 where the layout is AWQ_GEMM
    kGroupsAlongK,      // or runs of k whose ends no group crosses
    kFlatBy8,           // groups along k, or k and groups multiples of 8
    kGroupsPowerOfTwo,  // or one group a row, as in the others
    kGroups16To128,     // exactly
    kGroupsOf64,        // multiples of
    kNestedGroupsOf64,  // multiples of 64 where scales have second ones, more than one
    kFloatGroupsOf32,   // multiples of 32 where scales of looked-up codes are f32
    kGroupsOf32,
    kGroupsOf16,
    kGroupsOf8,
    kScalesPlain,     // f16, bf16 or f32
    kScalesMultiply,  // none is divided by a global one
    kTableKnown,      // lut4: w does not bring its own
    kSecondPowerOfTwo,
    kSecondFitsSlabs,  // no second scale's groups are in two slabs
    kFewGroups32,      // less than 2^32, with one second scale 2^31
    kFewGroups31,      // less than 2^31, padding included
    kFewTiles28,       // tiles and groups less than 2^28
    kWhole,            // all rows of w are here, not a slab of them
    kExpertTiles,      // experts, or their gate and up, are whole rows of tiles
    kFewSlots,         // added up of a token, no more than a block has rows of tiles for
    kFewExperts,       // and rows of x: their counters fit a block, numbers 32 bits
    kSecondOfRows,     // second groups are rows, or powers of two
    kLibrary,          // cuBLASLt
    kSm90a,            // the build has code for sm_90a
    kCount
};

using Conditions = uint64_t;
template <class... C>
constexpr Conditions needs(C... conditions) {
    return ((Conditions{1} << int(conditions)) | ... | 0);
}
static_assert(int(Condition::kCount) <= 64);

struct Facts {
    int64_t m, n, k;
    int64_t all_n;  // of the weight that these n rows are a slab of; else n
    int64_t group_size, groups_per_row, second_group;  // second_group 0: scales are not coded
    int64_t slab_rows, slab_bytes;                     // 4-bit w packed in the workspace: of a slab
    uint32_t weight;                                   // one of WeightKind
    uint32_t packed;                                   // what `weight` is once packed; 0: dense
    uint32_t extras;                                   // Extra
    int32_t scale_bits;
    int64_t tokens, slots, experts, y_columns;  // of products with experts, else 0
    bool summed;                                // slots are added up
    bool f32;                                   // x
    bool e2m1, e4m3;                            // w
    bool coded;                                 // scales are codes that need no table (view.cuh)
    bool one_slab;                              // packed, all_n rows would be one slab
    Conditions met;

    constexpr bool meets(Condition c) const { return (met >> int(c) & 1) != 0; }
    constexpr bool nested() const { return second_group > 0; }
    constexpr bool lut4() const {
        return (weight & (kPackedLut4 | kRowLut4 | kGptqLut4 | kAwqLut4)) != 0;
    }
    // What cuBLASLt sums in the workspace, in f32, before it becomes y.
    constexpr bool through_sums() const {
        return (extras & (kWideY | kAccumulates | kTransposed)) != 0;
    }
    constexpr int64_t sums_bytes() const {
        const int64_t columns = (extras & kTransposed) != 0 ? k : n;
        return through_sums() ? round_up(m * columns * 4, 256) : 0;
    }
    constexpr int64_t value_bytes() const { return f32 ? 4 : 2; }  // of x and y
};

Facts facts_of(const LinearArgs &args, const Device &device);

// The facts of the same product with w as the workspace holds it once it is packed.
constexpr Facts repacked(const Facts &f) {
    Facts g = f;
    g.weight = f.lut4() ? kPackedLut4 : kPackedU4;
    g.met |=
        needs(Condition::kCodesAligned16, Condition::kScalesAligned16, Condition::kZerosAligned16);
    return g;
}

}  // namespace qk::cuda

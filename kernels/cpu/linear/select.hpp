// Which kernel multiplies on the CPU: one table of all processors, by facts, sets and modes.
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/built.hpp"

namespace qk::cpu {

// What a kernel may ask of a case.
using Conditions = uint64_t;
enum Condition : Conditions {
    kLaneSums = 1ull << 0,         // of x one row or two: sums are in lanes
    kBlockSums = 1ull << 1,        // of x three rows or more: sums are of blocks
    kFewRows = 1ull << 2,          // of x: up to 6
    kFourRows = 1ull << 3,         // of x, at least: from here on decoding once for all pays
    kAvx2Rows = 1ull << 4,         // the same for AVX2, by format
    kU4 = 1ull << 5,               // U4_AFFINE
    kS8 = 1ull << 6,               // S8
    kColumnLayout = 1ull << 7,     // AWQ_GEMM, GPTQ: neighbours are rows of w
    kAlongK = 1ull << 8,           // groups do not straddle rows
    kPacked = 1ull << 9,           // by qk_repack
    kQuantized = 1ull << 10,       // not dense
    kIntegerEntries = 1ull << 11,  // entries are 8-bit integers times a unit, if need be rounded
    kGroups16 = 1ull << 12,        // of a multiple of 16 codes, or one a row, as the next three
    kGroupsWhole = 1ull << 13,     // 16, 32, 64, or a multiple of 128
    kGroups128 = 1ull << 14,       // a multiple of 128
    kGroups64 = 1ull << 15,        // 64 or more
    kBlocks128 = 1ull << 16,       // a multiple of 128, a group that is a whole row as well
    kEightRowsOfW = 1ull << 17,    // at least
    kWholeBytes = 1ull << 18,      // rows of w start at bytes
    kFourBits = 1ull << 19,        // a code; what qk_repack packs
    kScalesMultiply = 1ull << 20,  // none is divided by a number of its row
    kExactIntegers = 1ull << 21,   // U4_AFFINE and FP4_E2M1: entries are integers times a unit
    kSmallGroups = 1ull << 22,     // 16, 32, 64
    kNoMinimum = 1ull << 23,       // nothing is taken off entry * scale
    kInPlanes = 1ull << 24,        // scales are, not between the codes of records
    kUpToFourRows = 1ull << 25,    // of x
    kUpToEightRows = 1ull << 26,   // of x
    kNibblesByRow = 1ull << 27,    // 4 bits, packed or row after row
    kNibbles = 1ull << 28,         // the same, or column after column
    kEightRows = 1ull << 29,       // of x, at least
    kOneCut = 1ull << 30,          // no group ends within 16 columns, or its scale alone differs
    kGroupsOfLut8 = 1ull << 31,    // as kGroups16, or of any size and codes of LUT8
    kTwoRows = 1ull << 32,         // of x, at least
    kTileRows = 1ull << 33,        // of x, at least, by the groups: tiles of 16 pay from here on
    kUpTo32Rows = 1ull << 34,      // of x
    kVnniRows = 1ull << 35,        // of x, at least, by the layout: AVX-512 gathers columns
    kSteps = 1ull << 36,           // groups are along k, or nibbles' that end after whole 16s
    kGroupsOfMode = 1ull << 37,    // as kGroupsWhole, or straddle rows in whole 16s
};

// Conditions that are the case itself: their kernels are no faster ones for another case.
constexpr Conditions kOfTheCase =
    kLaneSums | kBlockSums | kTwoRows | kFewRows | kFourRows | kAvx2Rows | kUpToFourRows |
    kUpToEightRows | kEightRows | kUpTo32Rows | kVnniRows | kTileRows | kU4 | kS8 | kColumnLayout |
    kFourBits | kNibbles | kNibblesByRow | kExactIntegers | kBlocks128 | kSmallGroups;

// What a case without it is; conditions of the case itself are never said.
static constexpr const char *lacking_text(Conditions condition) {
    switch (condition) {
        case kPacked: return "w is not packed (qk_repack)";
        case kQuantized: return "w is dense";
        case kIntegerEntries: return "int8 mode takes no lut4, lut8 and e4m3 weights";
        case kScalesMultiply: return "scales of w are divided by a number of their row";
        case kNoMinimum: return "weights have minima";
        case kInPlanes: return "w is in a GGUF file's records (qk_repack)";
        case kAlongK: return "groups of w straddle rows";
        case kSteps: return "groups of w straddle rows, and end within 16 columns or are of bytes";
        case kOneCut: return "groups of w straddle rows within 16 columns";
        case kGroups16:
        case kGroupsOfLut8: return "the group size is not a multiple of 16";
        case kGroupsOfMode:
        case kGroupsWhole: return "the group size is not 16, 32, 64 or a multiple of 128";
        case kGroups64: return "the group size is less than 64";
        case kGroups128: return "the group size is not a multiple of 128";
        case kEightRowsOfW: return "w has fewer than 8 rows";
        case kWholeBytes: return "rows of w do not start at whole bytes";
        default: return "";
    }
}

struct LinearRow {
    const Kernel<LinearArgs> *kernel;
    const char *name;
    uint32_t mode;          // QK_CONTEXT_..., or kBf16Tiles, that allow it; 0: exact
    uint32_t sets;          // QK_ISA_... that it runs
    Conditions conditions;  // that the case fulfils
};

constexpr uint32_t kInt8Mode = QK_CONTEXT_INT8_ACTIVATIONS, kBf16Mode = QK_CONTEXT_BF16_PRODUCTS;
constexpr uint32_t kBf16Tiles = 1u << 31;  // bf16 mode where vectors are slow at it
constexpr uint32_t kVnniVbmi = QK_ISA_AVX512_VNNI | QK_ISA_AVX512_VBMI;
// What vectors take; the generic kernel takes all. Minima not everywhere.
constexpr Conditions kLowered = kScalesMultiply | kInPlanes, kScaled = kLowered | kNoMinimum;
constexpr Conditions kInt8Case = kQuantized | kSteps | kIntegerEntries;
constexpr Conditions kInt8Blocks = kInt8Case | kNibbles | kGroupsOfMode | kLowered;
constexpr Conditions kInt8Columns = kInt8Blocks | kColumnLayout | kUpTo32Rows;
constexpr Conditions kInt8Bytes = kInt8Case | kAlongK | kS8 | kGroupsWhole | kLowered;
constexpr Conditions kInt8Rows = kInt8Bytes | kEightRowsOfW;
constexpr Conditions kBf16Batch = kQuantized | kNibbles | kGroupsOfMode | kScaled | kEightRows;
constexpr Conditions kBf16Case =
    kQuantized | kFourBits | kPacked | kAlongK | kGroupsWhole | kScaled;
constexpr Conditions kIntegersCase =
    kLaneSums | kU4 | kNibblesByRow | kAlongK | kBlocks128 | kScaled;
constexpr Conditions kSmallGroupsCase =
    kLaneSums | kExactIntegers | kNibblesByRow | kAlongK | kSmallGroups | kLowered;
constexpr Conditions kGemvCase =
    kLaneSums | kQuantized | kNibblesByRow | kOneCut | kGroupsWhole | kScalesMultiply;
constexpr Conditions kColumnsCase = kLaneSums | kColumnLayout | kGroups16 | kScaled;
constexpr Conditions kLoweredColumnsCase =
    kLaneSums | kColumnLayout | kSmallGroups | kExactIntegers | kLowered;
constexpr Conditions kSingleCase = kLaneSums | kQuantized | kGroups16 | kLowered;
constexpr Conditions kRowsCase = kLaneSums | kQuantized | kGroupsOfLut8 | kLowered;
constexpr Conditions kBatchCase = kBlockSums | kQuantized | kGroupsOfLut8 | kLowered;

// Best first: the first row that the context allows and whose conditions hold runs.
constexpr LinearRow kLinearTable[] = {
    {QK_ON_X86(kLinearInt8AmxBatch), "amx int8 batch", kInt8Mode, kVnniVbmi | QK_ISA_AMX_INT8,
     kInt8Blocks | kTileRows},
    {QK_ON_X86(kLinearInt8VnniBatch), "avx512 vnni int8 batch", kInt8Mode, kVnniVbmi,
     kInt8Blocks | kVnniRows},
    {QK_ON_X86(kLinearInt8ColumnsAvx2), "avx2 int8 columns", kInt8Mode, QK_ISA_AVX2, kInt8Columns},
    {QK_ON_X86(kLinearInt8Vnni), "avx512 vnni int8", kInt8Mode, kVnniVbmi, kInt8Blocks},
    {QK_ON_X86(kLinearInt8AmxBytesBatch), "amx int8 bytes batch", kInt8Mode,
     kVnniVbmi | QK_ISA_AMX_INT8, kInt8Bytes | kTileRows},
    {QK_ON_X86(kLinearInt8VnniBytesBatch), "avx512 vnni int8 bytes batch", kInt8Mode, kVnniVbmi,
     kInt8Bytes | kEightRows},
    {QK_ON_X86(kLinearInt8VnniRows), "avx512 vnni int8 rows", kInt8Mode, kVnniVbmi, kInt8Rows},
    {QK_ON_AVX_VNNI(kLinearInt8AvxVnniBatch), "avx vnni int8 batch", kInt8Mode, QK_ISA_AVX_VNNI,
     kInt8Blocks | kFourRows},
    {QK_ON_AVX_VNNI(kLinearInt8AvxVnni), "avx vnni int8", kInt8Mode, QK_ISA_AVX_VNNI, kInt8Blocks},
    {QK_ON_AVX_VNNI(kLinearInt8AvxVnniBytesBatch), "avx vnni int8 bytes batch", kInt8Mode,
     QK_ISA_AVX_VNNI, kInt8Bytes | kEightRows},
    {QK_ON_AVX_VNNI(kLinearInt8AvxVnniRows), "avx vnni int8 rows", kInt8Mode, QK_ISA_AVX_VNNI,
     kInt8Rows},
    {QK_ON_X86(kLinearInt8Avx2Batch), "avx2 int8 batch", kInt8Mode, QK_ISA_AVX2,
     kInt8Blocks | kAvx2Rows},
    {QK_ON_X86(kLinearInt8Avx2), "avx2 int8", kInt8Mode, QK_ISA_AVX2, kInt8Blocks},
    {QK_ON_X86(kLinearInt8Avx2BytesBatch), "avx2 int8 bytes batch", kInt8Mode, QK_ISA_AVX2,
     kInt8Bytes | kAvx2Rows},
    {QK_ON_X86(kLinearInt8Avx2Rows), "avx2 int8 rows", kInt8Mode, QK_ISA_AVX2, kInt8Rows},
    {QK_ON_ARM64(kLinearInt8I8mm), "i8mm int8", kInt8Mode, QK_ISA_I8MM,
     kInt8Blocks | kAlongK | kPacked | kTwoRows | kGroups64 | kNoMinimum},
    {QK_ON_ARM64(kLinearInt8DotprodBatch), "dotprod int8 batch", kInt8Mode, QK_ISA_DOTPROD,
     kInt8Blocks | kFourRows},
    {QK_ON_ARM64(kLinearInt8Dotprod), "dotprod int8", kInt8Mode, QK_ISA_DOTPROD, kInt8Blocks},
    {QK_ON_ARM64(kLinearInt8DotprodBytesBatch), "dotprod int8 bytes batch", kInt8Mode,
     QK_ISA_DOTPROD, kInt8Bytes | kEightRows},
    {QK_ON_ARM64(kLinearInt8DotprodRows), "dotprod int8 rows", kInt8Mode, QK_ISA_DOTPROD,
     kInt8Rows},
    {QK_ON_ARM(kLinearInt8Neon), "neon int8", kInt8Mode, QK_ISA_NEON, kInt8Blocks},
    {QK_ON_ARM(kLinearInt8NeonRows), "neon int8 rows", kInt8Mode, QK_ISA_NEON, kInt8Rows},
    {&kLinearInt8Generic, "generic int8", kInt8Mode, QK_ISA_GENERIC, kInt8Case},

    {QK_ON_X86(kLinearBf16AmxBatch), "amx bf16 batch", kBf16Mode | kBf16Tiles,
     QK_ISA_AVX512_BF16 | QK_ISA_AMX_BF16, kBf16Batch | kSteps},
    {QK_ON_X86(kLinearBf16Batch), "avx512 bf16 batch", kBf16Mode, QK_ISA_AVX512_BF16, kBf16Batch},
    {QK_ON_X86(kLinearBf16), "avx512 bf16", kBf16Mode, QK_ISA_AVX512_BF16, kBf16Case},

    {QK_ON_X86(kLinearIntegerRowsVnni), "avx512 vnni rows", 0, kVnniVbmi,
     kIntegersCase | kWholeBytes | kEightRowsOfW},
    {QK_ON_X86(kLinearGroupRowsVnni), "avx512 vnni rows of groups", 0, kVnniVbmi,
     kSmallGroupsCase | kWholeBytes | kEightRowsOfW},
    {QK_ON_X86(kLinearIntegersVnni), "avx512 vnni integers", 0, QK_ISA_AVX512_VNNI, kIntegersCase},
    {QK_ON_X86(kLinearGroupsVnni), "avx512 vnni groups", 0, kVnniVbmi, kSmallGroupsCase},
    {QK_ON_ARM64(kLinearIntegersDotprod), "dotprod integers", 0, QK_ISA_DOTPROD, kIntegersCase},
    {QK_ON_ARM64(kLinearGroupsDotprod), "dotprod groups", 0, QK_ISA_DOTPROD, kSmallGroupsCase},
    {QK_ON_X86(kLinearRowsAvx512), "avx512 rows", 0, QK_ISA_AVX512_VBMI,
     kRowsCase | kEightRowsOfW | kWholeBytes},
    {QK_ON_X86(kLinearGemvAvx512), "avx512 gemv", 0, QK_ISA_AVX512, kGemvCase},
    {QK_ON_X86(kLinearColumnsVnni), "avx512 vnni columns", 0, QK_ISA_AVX512_VNNI, kColumnsCase},
    {QK_ON_X86(kLinearLoweredColumnsVnni), "avx512 vnni columns with minima", 0, QK_ISA_AVX512_VNNI,
     kLoweredColumnsCase},
    {QK_ON_X86(kLinearColumnsAvx2), "avx2 columns", 0, QK_ISA_AVX2, kColumnsCase},
    {QK_ON_X86(kLinearLoweredColumnsAvx2), "avx2 columns with minima", 0, QK_ISA_AVX2,
     kLoweredColumnsCase},
    {QK_ON_X86(kLinearSingleAvx512), "avx512 single", 0, QK_ISA_AVX512, kSingleCase},
    {QK_ON_X86(kLinearFewAvx512), "avx512 few rows", 0, QK_ISA_AVX512,
     kBatchCase | kOneCut | kFewRows | kNibblesByRow},
    {QK_ON_X86(kLinearBatchAvx512), "avx512 batch", 0, QK_ISA_AVX512, kBatchCase},
    {QK_ON_X86(kLinearGemvAvx2), "avx2 gemv", 0, QK_ISA_AVX2, kGemvCase},
    {QK_ON_X86(kLinearSingleAvx2), "avx2 single", 0, QK_ISA_AVX2, kSingleCase},
    {QK_ON_X86(kLinearFewAvx2), "avx2 few rows", 0, QK_ISA_AVX2,
     kBatchCase | kOneCut | kUpToFourRows | kNibblesByRow},
    {QK_ON_X86(kLinearBatchAvx2), "avx2 batch", 0, QK_ISA_AVX2, kBatchCase},
    {QK_ON_ARM(kLinearGemvNeon), "neon gemv", 0, QK_ISA_NEON, kGemvCase},
    {QK_ON_ARM(kLinearSingleNeon), "neon single", 0, QK_ISA_NEON, kSingleCase},
    {QK_ON_ARM(kLinearBatchNeon), "neon batch", 0, QK_ISA_NEON, kBatchCase},
    {QK_ON_RVV(kLinearGemvRvv), "rvv gemv", 0, QK_ISA_RVV, kGemvCase},
    {QK_ON_RVV(kLinearSingleRvv), "rvv single", 0, QK_ISA_RVV, kSingleCase},
    {QK_ON_RVV(kLinearBatchRvv), "rvv batch", 0, QK_ISA_RVV, kBatchCase},
    {&kLinearGeneric, "generic", 0, QK_ISA_GENERIC, 0},
};

// The same of y = x . w, which has no modes.
constexpr Conditions kTransposedCase =
    kQuantized | kAlongK | kGroups16 | kScalesMultiply | kInPlanes;
constexpr Conditions kTransposedFewCase =
    kUpToEightRows | kQuantized | kFourBits | kPacked | kAlongK | kGroupsWhole | kScalesMultiply;
constexpr LinearRow kTransposedTable[] = {
    {QK_ON_X86(kTransposedFewAvx512), "avx512 transposed few rows", 0, QK_ISA_AVX512,
     kTransposedFewCase},
    {QK_ON_X86(kTransposedAvx512), "avx512 transposed", 0, QK_ISA_AVX512, kTransposedCase},
    {QK_ON_X86(kTransposedFewAvx2), "avx2 transposed few rows", 0, QK_ISA_AVX2, kTransposedFewCase},
    {QK_ON_X86(kTransposedAvx2), "avx2 transposed", 0, QK_ISA_AVX2, kTransposedCase},
    {QK_ON_ARM(kTransposedFewNeon), "neon transposed few rows", 0, QK_ISA_NEON, kTransposedFewCase},
    {QK_ON_ARM(kTransposedNeon), "neon transposed", 0, QK_ISA_NEON, kTransposedCase},
    {QK_ON_RVV(kTransposedFewRvv), "rvv transposed few rows", 0, QK_ISA_RVV, kTransposedFewCase},
    {QK_ON_RVV(kTransposedRvv), "rvv transposed", 0, QK_ISA_RVV, kTransposedCase},
    {&kTransposedGeneric, "generic transposed", 0, QK_ISA_GENERIC, 0},
};

// The number of a row; no constant where there is none of that name.
static constexpr int32_t row_in(const LinearRow *table, const char *name) {
    for (int32_t row = 0;; ++row) {
        const char *a = table[row].name, *b = name;
        while (*a == *b && *a != 0) ++a, ++b;
        if (*a == *b) return row;
    }
}
static constexpr int32_t row_of(const char *name) { return row_in(kLinearTable, name); }
static constexpr int32_t transposed_row_of(const char *name) {
    return row_in(kTransposedTable, name);
}

static constexpr bool allows(uint32_t modes, const LinearRow &row) {
    return row.mode == 0 || (row.mode & modes) != 0;
}

// Modes that make products faster. Where vectors are slow at bf16 products, tiles alone do.
static constexpr uint32_t faster_modes(uint32_t modes, const Device &device) {
    const bool tiles_alone = (modes & kBf16Mode) != 0 && device.slow_bf16_vectors;
    return tiles_alone ? (modes & ~kBf16Mode) | kBf16Tiles : modes;
}

static constexpr int32_t first_exact_row() {
    int32_t row = 0;
    while (kLinearTable[row].mode != 0) ++row;
    return row;
}
constexpr const LinearRow *kExactRows = kLinearTable + first_exact_row();

static constexpr const LinearRow &select_from(const LinearRow *row, Conditions facts, uint32_t sets,
                                              uint32_t modes) {
    while (!allows(modes, *row) || (row->sets & ~sets) != 0 || (row->conditions & ~facts) != 0) {
        ++row;  // the last one takes everything
    }
    return *row;
}
static constexpr const LinearRow &select_linear(Conditions facts, uint32_t sets, uint32_t modes) {
    return select_from(modes == 0 ? kExactRows : kLinearTable, facts, sets, modes);
}

Conditions linear_facts(const LinearArgs &args);
// The context's sets and the generic one; without tiles that a mode may use and the system keeps.
uint32_t usable_sets(const Device &device, uint32_t modes, Conditions facts);
LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation);
// The same of products with experts.
LinearPlan plan_experts(const LinearArgs &args, const Device &device, const Allowance &allowed,
                        Explanation *explanation);
bool takes_linear(uint32_t sets, Conditions conditions, const LinearArgs &args,
                  const Device &device);

// A kernel as its row describes it.
template <int32_t row>
static constexpr Kernel<LinearArgs> linear_kernel(
    Status (*run)(const LinearArgs &, const Launch &),
    size_t (*workspace_bytes)(const LinearArgs &, const Device &) = nullptr) {
    const auto can_run = [](const LinearArgs &args, const Device &device) {
        constexpr LinearRow of = kLinearTable[row];
        return !args.transposed && takes_linear(of.sets, of.conditions, args, device);
    };
    return {kLinearTable[row].name, can_run, workspace_bytes, run};
}
template <int32_t row>
static constexpr Kernel<LinearArgs> transposed_kernel(Status (*run)(const LinearArgs &,
                                                                    const Launch &)) {
    const auto can_run = [](const LinearArgs &args, const Device &device) {
        constexpr LinearRow of = kTransposedTable[row];
        return args.transposed && takes_linear(of.sets, of.conditions, args, device);
    };
    return {kTransposedTable[row].name, can_run, nullptr, run};
}

// Sets of one processor's kind.
constexpr uint32_t kX86Sets = QK_ISA_GENERIC | QK_ISA_AVX2 | QK_ISA_AVX512 | QK_ISA_AVX512_VBMI |
                              QK_ISA_AVX512_VNNI | QK_ISA_AVX512_BF16 | QK_ISA_AMX_INT8 |
                              QK_ISA_AMX_BF16 | QK_ISA_AVX_VNNI;
constexpr uint32_t kArmSets = QK_ISA_GENERIC | QK_ISA_NEON | QK_ISA_DOTPROD | QK_ISA_I8MM;
constexpr uint32_t kRiscvSets = QK_ISA_GENERIC | QK_ISA_RVV;

struct Faster {
    const LinearRow *row;  // null: none
    const char *reason;    // why it does not run; ""
    const char *set;       // that the context has not, where that is why; else ""
};

static constexpr const char *set_name(uint32_t set) {
    switch (set) {
        case QK_ISA_AVX2: return "avx2";
        case QK_ISA_AVX512: return "avx512";
        case QK_ISA_AVX512_VBMI: return "avx512_vbmi";
        case QK_ISA_AVX512_VNNI: return "avx512_vnni";
        case QK_ISA_AVX512_BF16: return "avx512_bf16";
        case QK_ISA_AMX_INT8: return "amx_int8";
        case QK_ISA_AMX_BF16: return "amx_bf16";
        case QK_ISA_AVX_VNNI: return "avx_vnni";
        case QK_ISA_NEON: return "neon";
        case QK_ISA_DOTPROD: return "dotprod";
        case QK_ISA_I8MM: return "i8mm";
        case QK_ISA_RVV: return "rvv";
        default: return "";
    }
}

template <class Bits>
static constexpr Bits lowest(Bits bits) {
    return bits & (~bits + 1);
}
// Without the builtin, which is a call into the compiler's library where no instruction counts.
static constexpr int32_t count_bits(Conditions bits) {
    int32_t count = 0;
    for (; bits != 0; bits &= bits - 1) ++count;
    return count;
}

// The row above the chosen one that lacks least, and what; not one for another case or another kind
// of processor. An instruction set weighs more than what a program can change.
static constexpr Faster faster_than(const LinearRow &chosen, const LinearRow *table,
                                    Conditions facts, uint32_t sets, uint32_t modes,
                                    uint32_t kind) {
    const LinearRow *best = nullptr;
    int32_t least = 0;
    Conditions condition = 0;
    uint32_t set = 0;
    for (const LinearRow *row = table; row != &chosen; ++row) {
        const Conditions lacking = row->conditions & ~facts;
        const uint32_t no_sets = row->sets & ~sets;
        if (!allows(modes, *row) || (lacking & kOfTheCase) != 0 || (row->sets & ~kind)) continue;
        // Kernels of rows as files store them are none for packed blocks and for columns.
        if ((lacking & kWholeBytes) != 0 && (facts & (kPacked | kColumnLayout)) != 0) continue;
        const int32_t weight = count_bits(lacking) + (no_sets != 0 ? 2 : 0);
        if (best != nullptr && weight >= least) continue;
        best = row;
        least = weight;
        condition = lowest(lacking);
        set = lacking != 0 ? 0u : lowest(no_sets);
    }
    // The same kernel, or one of packed blocks, is faster where codes need not be gathered.
    const bool unpacked = (facts & (kFourBits | kPacked)) == kFourBits;
    if (best == nullptr && unpacked && chosen.sets != QK_ISA_GENERIC) {
        return {&chosen, lacking_text(kPacked), ""};
    }
    return {best, lacking_text(condition), set_name(set)};
}

// Why bf16 mode is exact; "": it is not, or no vectors would take the case.
static constexpr const char *slow_bf16_text(Conditions facts, uint32_t sets, uint32_t modes,
                                            const Device &device) {
    const LinearRow &asked = select_linear(facts, sets, modes);
    const LinearRow &chosen = select_linear(facts, sets, faster_modes(modes, device));
    if (&asked == &chosen) return "";
    return "bf16 vectors are slower than exact products on this processor";
}

// `modes`: those of the context.
static constexpr Faster faster_linear(Conditions facts, uint32_t sets, uint32_t modes,
                                      const Device &device, uint32_t kind) {
    const uint32_t faster = faster_modes(modes, device);
    const Faster found =
        faster_than(select_linear(facts, sets, faster), kLinearTable, facts, sets, faster, kind);
    if (found.row != nullptr) return found;
    return {nullptr, slow_bf16_text(facts, sets, modes, device), ""};
}

}  // namespace qk::cpu

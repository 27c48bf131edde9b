// The CPU's answer to op: facts of the case, a row of the table, the kernel behind it.
#include <stdio.h>

#include "cpu/linear/row_of_x.hpp"
#include "cpu/linear/rows_facts.hpp"

namespace qk::cpu {
namespace {

constexpr Conditions when(bool holds, Conditions condition) { return holds ? condition : 0; }

bool has_integer_entries(const Format &format) {
    return format.kind != FormatKind::kLut8 && format.id != QK_FORMAT_LUT4;
}

// Rows of x from which on decoding once for all pays on AVX2.
int64_t rows_for_avx2(const Weight &w) {
    switch (w.format->kind) {
        case FormatKind::kLut4: return 4;
        case FormatKind::kS8: return w.geometry.group_size < 128 ? 13 : 24;
        default: return 5;
    }
}

// Rows of x from which on AVX-512's batches, which gather columns, take less time than AVX2 where
// these are stored. Rows are worth a batch from four on; where groups straddle rows from the first
// one, or from two on if codes have to be gathered.
int64_t rows_for_vnni(const Weight &w) {
    if (w.layout == nullptr) return 4;
    if (w.geometry.flat) return w.layout->id == kLayoutRows8 ? 1 : 2;
    switch (w.layout->id) {
        case QK_LAYOUT_AWQ_GEMM: return 13;
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return w.format->kind == FormatKind::kLut4 ? 7 : 9;
        default: return 4;
    }
}

// Rows of x from which on tiles take less time than vectors in int8 mode: what a group costs beside
// its products is the same for both.
int64_t tile_rows(const Geometry &s) {
    if (s.group_size >= min64(64, s.k)) return 13;
    return s.group_size >= 32 ? 25 : 80;
}

Conditions facts_of_x(const LinearArgs &args) {
    Conditions facts = 0;
    for (const RowsFact &fact : rows_facts(args.w).of) {
        facts |= when((args.x.rows > fact.last) == fact.past, fact.condition);
    }
    return facts;
}

Conditions facts_of_groups(const Geometry &s) {
    const int64_t size = s.group_size;
    const bool one_a_row = size >= s.k, blocks = size % 128 == 0;
    const bool whole = one_a_row || size == 16 || size == 32 || size == 64 || blocks;
    return when(!s.flat, kAlongK) | when(one_a_row || size % 16 == 0, kGroups16 | kGroupsOfLut8) |
           when(whole, kGroupsWhole) |
           when(whole || (s.flat && has_whole_steps(s)), kGroupsOfMode) |
           when(one_a_row || blocks, kGroups128) | when(one_a_row || size >= 64, kGroups64) |
           when(blocks, kBlocks128) | when(size == 16 || size == 32 || size == 64, kSmallGroups);
}

#if defined(QK_CPU_X86)
constexpr uint32_t kKind = kX86Sets;
#elif defined(QK_CPU_ARM)
constexpr uint32_t kKind = kArmSets;
#elif defined(QK_CPU_RVV)
constexpr uint32_t kKind = kRiscvSets;
#else
constexpr uint32_t kKind = QK_ISA_GENERIC;
#endif

struct Rows {
    int32_t first, last;
};

// Rows of x for which a row of y has the bits of this call. bf16 mode's batches begin with 8 rows,
// also where fewer rows run exact.
Rows rows_alike(const LinearArgs &args, const Device &device, uint32_t sets, uint32_t modes,
                const LinearRow &row) {
    if (args.transposed || row.mode == kInt8Mode) return {1, INT32_MAX};
    const bool exact = row.mode == 0;
    if (exact && args.x.rows <= kLaneRows) return {1, int32_t(kLaneRows)};
    if (!exact && args.x.rows >= 8) return {8, INT32_MAX};
    LinearArgs batch = args;
    batch.x.rows = 8;
    const Conditions facts = linear_facts(batch);
    const uint32_t mode = select_linear(facts, sets, faster_modes(modes, device)).mode;
    const bool rounds = (mode & kBf16Mode) != 0;
    return {exact ? int32_t(kLaneRows) + 1 : 1, rounds ? 7 : INT32_MAX};
}

void explain(const LinearArgs &args, const Device &device, Conditions facts, uint32_t sets,
             uint32_t modes, const LinearRow &row, Explanation *out) {
    const Rows alike = rows_alike(args, device, sets, modes, row);
    out->batch_first = alike.first;
    out->batch_last = alike.last;
    const Faster faster = args.transposed
                              ? faster_than(row, kTransposedTable, facts, sets, 0, kKind)
                              : faster_linear(facts, sets, modes, device, kKind);
    const bool is_set = *faster.set != 0;
    snprintf(out->reason, sizeof out->reason, "%s%s",
             is_set ? "the context's instruction sets lack " : faster.reason, faster.set);
}

}  // namespace

RowsFacts rows_facts(const Weight &w) {
    constexpr bool past = true, up_to = false;
    return {{
        {kLaneSums, kLaneRows, up_to},
        {kBlockSums, kLaneRows, past},
        {kTwoRows, 1, past},
        {kFewRows, 6, up_to},
        {kFourRows, 3, past},
        {kAvx2Rows, rows_for_avx2(w) - 1, past},
        {kVnniRows, rows_for_vnni(w) - 1, past},
        {kUpToFourRows, 4, up_to},
        {kUpToEightRows, 8, up_to},
        {kEightRows, 7, past},
        {kUpTo32Rows, 32, up_to},
        {kTileRows, tile_rows(geometry_of_blocks(w.geometry)) - 1, past},
    }};
}

// Tiles are asked for where a mode may use them: once they are allowed, the system wants larger
// stacks for signals.
uint32_t usable_sets(const Device &device, uint32_t modes, Conditions facts) {
    const uint32_t sets = device.instruction_sets | QK_ISA_GENERIC;
    const bool int8 = (modes & kInt8Mode) != 0 && (facts & kTileRows) != 0;
    const bool bf16 = (modes & kBf16Mode) != 0 && (facts & kEightRows) != 0;
    const uint32_t wanted = sets & ((int8 ? kAmxInt8 : 0) | (bf16 ? kAmxBf16 : 0));
    return wanted != 0 && !tiles_allowed() ? sets & ~wanted : sets;
}

Conditions linear_facts(const LinearArgs &args) {
    const Weight &w = args.w;
    Conditions facts = facts_of_x(args) | facts_of_groups(w.geometry) |
                       when(w.format->kind == FormatKind::kU4, kU4 | kExactIntegers) |
                       when(w.format->id == QK_FORMAT_FP4_E2M1, kExactIntegers) |
                       when(w.format->kind == FormatKind::kS8, kS8) |
                       when(w.format->kind == FormatKind::kLut8, kGroupsOfLut8) |
                       when(has_integer_entries(*w.format), kIntegerEntries) |
                       when(!w.scale.divides, kScalesMultiply) | when(!has_minimum(w), kNoMinimum) |
                       when(!is_records(w), kInPlanes) |
                       when(has_whole_steps(w.geometry) || scales_steps(w), kOneCut) |
                       when(w.geometry.n >= 8, kEightRowsOfW);
    if (w.layout == nullptr) return facts;
    const qk_layout id = w.layout->id;
    const bool bytes = w.layout->bits == 8;
    const bool by_columns =
        id == QK_LAYOUT_AWQ_GEMM || id == QK_LAYOUT_GPTQ || id == QK_LAYOUT_GPTQ_V1;
    const bool packed = id == kLayoutRows8;
    const bool by_row = run_pad(w) > 0, nibbles = !bytes && !is_records(w);
    const bool steps = has_whole_steps(w.geometry) && (nibbles || !w.geometry.flat);
    return facts | kQuantized | when(steps, kSteps) | when(packed, kPacked) |
           when(!bytes, kFourBits) | when(by_columns, kColumnLayout) |
           when(bytes || has_rows_of_bytes(w), kWholeBytes) |
           when(nibbles && (packed || by_row), kNibblesByRow) |
           when(nibbles && (packed || by_row || by_columns), kNibbles);
}

bool takes_linear(uint32_t sets, Conditions conditions, const LinearArgs &args,
                  const Device &device) {
    return (sets & ~(device.instruction_sets | QK_ISA_GENERIC)) == 0 &&
           (conditions & ~linear_facts(args)) == 0;
}

LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation) {
    if (args.experts != nullptr) return plan_experts(args, device, allowed, explanation);
    const Conditions facts = linear_facts(args);
    const uint32_t sets = usable_sets(device, allowed.modes, facts);
    const uint32_t modes = faster_modes(allowed.modes, device);
    const LinearRow &row = args.transposed ? select_from(kTransposedTable, facts, sets, 0)
                                           : select_linear(facts, sets, modes);
    if (explanation != nullptr) {
        explain(args, device, facts, sets, allowed.modes, row, explanation);
    }
    // A mode is allowed for its speed: no slower kernel stands in for a workspace.
    const Kernel<LinearArgs> *const kernel = row.kernel;
    const size_t bytes = workspace_of(*kernel, args, device);
    const bool fits = bytes <= allowed.workspace_bytes;
    return {fits ? kernel : nullptr, fits ? bytes : 0, kernel, bytes};
}

}  // namespace qk::cpu

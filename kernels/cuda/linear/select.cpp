// What there is to say of a choice: its batch class, and why it is not a faster one.
#include "cuda/linear/select.hpp"

#include <stdio.h>

namespace qk::cuda {
namespace {

using ll = long long;

Facts at(const Facts &f, int64_t m) {
    Facts g = f;
    g.m = m;
    if (f.tokens > 0) g.tokens = max64(m * f.tokens / f.m, 1);  // x has a row a token, or a slot
    return g;
}

// ---- Batches

BatchClass blocks_of(int64_t m) {
    if (m <= 64) return {1, 64};
    const int64_t last = round_up(m, 128);
    return {last == 128 ? 65 : last - 127, last};
}

// Rows of x on one side of `m`, up to `limit`, for which row number `row` is selected, too. Between
// two numbers of rows that the table knows, kernels drop out one after the other as what they ask
// of the workspace grows: what is selected changes at one place at most to each side.
int64_t reach(const Facts &f, const Device &d, int64_t workspace, int32_t row, int64_t limit) {
    const auto same = [&](int64_t m) { return select(at(f, m), d, workspace).row == row; };
    const int64_t step = limit < f.m ? -1 : 1;
    int64_t reached = f.m;
    while (reached != limit) {
        int64_t end = limit;  // of the numbers of rows that the table tells apart no more
        const auto stop = [&](int64_t m) {
            if ((m - reached) * step > 0 && (end - m) * step > 0) end = m;
        };
        for (const Row &other : kLinearTable) {
            for (const int64_t first : {other.first, other.needs.first}) {
                stop(step > 0 ? first - 1 : first);
                stop(step > 0 ? first : first - 1);
            }
            for (const int64_t last : {other.last, other.needs.most}) {
                if (last == INT64_MAX) continue;
                stop(step > 0 ? last : last + 1);
                stop(step > 0 ? last + 1 : last);
            }
        }
        for (const int64_t crossover : {2, 4, 8, 32, 48, 64, 512}) {  // of namespace wanted
            stop(step > 0 ? crossover : crossover + 1);
            stop(step > 0 ? crossover + 1 : crossover);
        }
        if (!same(end)) {
            int64_t in = reached, out = end;
            while ((out - in) * step > 1) {
                const int64_t middle = in + (out - in) / 2;
                (same(middle) ? in : out) = middle;
            }
            return in;
        }
        reached = end;
    }
    return reached;
}

// ---- Reasons

struct Sentence {
    Condition condition;
    const char *text;
};

constexpr Sentence kSentences[] = {
    {C::kXIs16Bits, "x is F32, not F16 or BF16"},
    {C::kXIs16BitsForLut4, "x is F32, not F16 or BF16"},
    {C::kXIs32Bits, "x is not F32"},
    {C::kXAligned16, "x is not 16-byte aligned"},
    {C::kYAligned, "y is not aligned to its values"},
    {C::kYAligned16, "y is not 16-byte aligned"},
    {C::kCodesAligned16, "w is not 16-byte aligned"},
    {C::kCodesAligned4, "w is not 4-byte aligned"},
    {C::kCodesAlignedToRepack, "w is not 8-byte aligned"},
    {C::kCodesAlignedToWords, "w is not aligned to its words"},
    {C::kDenseAligned16, "w is not 16-byte aligned"},
    {C::kScalesAligned16, "w's scales are not 16-byte aligned"},
    {C::kScalesAligned4, "w's scales are not 4-byte aligned"},
    {C::kScalesAligned, "w's scales are not aligned to their values"},
    {C::kZerosAligned16, "w's zeros or minima are not 16-byte aligned"},
    {C::kZerosAligned4, "w's zeros or minima are not 4-byte aligned"},
    {C::kNestedAligned16, "w's second scales, their code or bias are not 16-byte aligned"},
    {C::kSecondAligned4, "w's second scales are not 4-byte aligned"},
    {C::kScaleCodeAligned4, "the code of w's scales is not 4-byte aligned"},
    {C::kScaleBiasAligned4, "the bias of w's scales is not 4-byte aligned"},
    {C::kTableAligned4, "w's table is not 4-byte aligned"},
    {C::kK8, "k is not a multiple of 8"},
    {C::kK16, "k is not a multiple of 16"},
    {C::kK32, "k is not a multiple of 32"},
    {C::kK256, "k is not a multiple of 256"},
    {C::kXRows4Bytes, "rows of x are not whole words of 4 bytes, aligned to them"},
    {C::kXRows16Bytes, "rows of x are not multiples of 16 bytes"},
    {C::kYRows16Bytes, "rows of y are not multiples of 16 bytes"},
    {C::kN4InGptq, "n is not a multiple of 4"},
    {C::kN8, "n is not a multiple of 8"},
    {C::kScalesPlain, "w's scales are codes"},
    {C::kN32, "n is not a multiple of 32"},
    {C::kN16InAwq, "n is not a multiple of 16"},
    {C::kGroupsAlongK, "groups run across the rows of w"},
    {C::kFlatBy8, "groups run across the rows of w"},
    {C::kGroupsPowerOfTwo, "groups of %lld are not a power of two"},
    {C::kGroups16To128, "groups of %lld are neither 16, 32, 64 nor 128"},
    {C::kGroupsOf64, "groups of %lld are not a multiple of 64"},
    {C::kNestedGroupsOf64, "groups of %lld, whose scales are nested, are not a multiple of 64"},
    {C::kFloatGroupsOf32, "groups of %lld, whose scales are f32, are not a multiple of 32"},
    {C::kGroupsOf32, "groups of %lld are not a multiple of 32"},
    {C::kGroupsOf16, "groups of %lld are not a multiple of 16"},
    {C::kGroupsOf8, "groups of %lld are not a multiple of 8"},
    {C::kScalesMultiply, "w's scales are divided by its GLOBAL plane"},
    {C::kTableKnown, "w brings a table of its own"},
    {C::kSecondPowerOfTwo, "second groups are not a power of two"},
    {C::kSecondFitsSlabs, "second groups do not end where slabs of w do"},
    {C::kFewGroups32, "w has 2^32 groups or more, or 2^31 with one second scale"},
    {C::kFewGroups31, "w has 2^31 groups or more"},
    {C::kFewTiles28, "w is too large to be repacked"},
    {C::kWhole, "only a slab of w is there"},
    {C::kExpertTiles, "rows of an expert, or of its halves, are not a multiple of 16"},
    {C::kFewSlots, "a token has too many slots"},
    {C::kFewExperts, "w has too many experts"},
    {C::kSecondOfRows, "second groups are neither rows nor powers of two"},
    {C::kLibrary, "cuBLASLt was not found"},
    {C::kSm90a, "this build has no code for sm_90a"},
};
static_assert(sizeof(kSentences) / sizeof(kSentences[0]) == size_t(Condition::kCount));

// 33,554,432
struct Thousands {
    char text[32] = {};

    explicit Thousands(int64_t value) {
        char digits[24];
        const int count = snprintf(digits, sizeof(digits), "%lld", ll(value));
        for (int i = 0, to = 0; i < count; ++i) {
            if (i > 0 && (count - i) % 3 == 0) text[to++] = ',';
            text[to++] = digits[i];
        }
    }
};

// What a product is that a kernel does not run.
const char *sentence_of(uint32_t extra) {
    switch (extra & (~extra + 1)) {
        case kStridedX: return "rows of x are apart";
        case kStridedY: return "rows of y are apart";
        case kWideY: return "y is F32, not in x's type";
        case kAccumulates: return "the product accumulates";
        case kTransposed: return "the product is transposed";
        default: return "w has experts";
    }
}

// Whether the row misses something that can be told; it is not for weights of other formats.
bool tell(const Row &row, const Facts &f, const Device &d, char *text, size_t size) {
    const Needs &n = row.needs;
    if ((n.only & ~f.extras) != 0) return false;
    if ((n.weights & f.weight) == 0) {
        if ((n.weights & f.packed) == 0) return false;
        return snprintf(text, size, "w is not packed") > 0;
    }
    if (const uint32_t missed = f.extras & ~n.takes; missed != 0) {
        return snprintf(text, size, "%s", sentence_of(missed)) > 0;
    }
    if (const Conditions missed = n.conditions & ~f.met; missed != 0) {
        return snprintf(text, size, sentence_of(Condition(__builtin_ctzll(missed))),
                        ll(f.group_size)) > 0;
    }
    if (d.capability < n.least_capability || d.capability > n.most_capability) {
        return snprintf(text, size, "needs a GPU and code of compute capability %d.%d",
                        n.least_capability / 10, n.least_capability % 10) > 0;
    }
    if (f.m < n.first || f.m > n.most) return snprintf(text, size, "x has too many rows") > 0;
    if (f.k <= n.k_above) return snprintf(text, size, "k is too small") > 0;
    if (f.k >= n.k_below) return snprintf(text, size, "k is too large") > 0;
    if (f.n >= n.n_below) return snprintf(text, size, "n is too large") > 0;
    const int64_t shared = n.shared == nullptr ? 0 : n.shared(f, d);
    if (shared > d.shared_bytes) {
        return snprintf(text, size, "a block has %d bytes of shared memory, wants %lld",
                        d.shared_bytes, ll(shared)) > 0;
    }
    return false;
}

}  // namespace

BatchClass batch_class(const Facts &f, const Device &d, int64_t workspace) {
    const int32_t selected = select(f, d, workspace).row;
    if (selected < 0) return {f.m, f.m};
    const Row &row = kLinearTable[selected];
    BatchClass bits = {1, INT32_MAX};
    if (row.batch == Batch::kAlone) return {f.m, f.m};
    if (row.batch == Batch::kBlocks) bits = blocks_of(f.m);
    if (row.batch == Batch::kRepacked) bits = batch_class(repacked(f), d, 0);
    return {reach(f, d, workspace, selected, min64(bits.first, f.m)),
            reach(f, d, workspace, selected, max64(bits.last, f.m))};
}

const char *sentence_of(Condition condition) {
    for (const Sentence &sentence : kSentences) {
        if (sentence.condition == condition) return sentence.text;
    }
    return "";
}

void explain(const Facts &f, const Device &d, int64_t workspace, char *text, size_t size) {
    text[0] = 0;
    const int32_t selected = select(f, d, workspace).row;
    int32_t faster = kLinearTableRows;  // the rows in front of this one
    if (selected >= 0 && is_wanted(kLinearTable[selected], f, d)) faster = selected;
    for (int32_t i = 0; i < faster; ++i) {  // what the caller mends without another weight
        const Row &row = kLinearTable[i];
        const bool runs = is_wanted(row, f, d) && are_met(row.needs, f, d);
        if (!runs || workspace_of(row, f, d) <= workspace) continue;
        snprintf(text, size, "workspace %s, wants %s", Thousands(workspace).text,
                 Thousands(workspace_of(row, f, d)).text);
        return;
    }
    for (int32_t i = 0; i < faster; ++i) {
        const Row &row = kLinearTable[i];
        if (is_wanted(row, f, d) && tell(row, f, d, text, size)) return;
    }
}

}  // namespace qk::cuda

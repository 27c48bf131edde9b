// Scales, zeros and minima of packed tiles, a thread those of rows r and r + 8 of a tile.
#pragma once
#include "cuda/convert/parts.cuh"
#include "cuda/tile/row_pair.cuh"

namespace qk::cuda {
namespace {

// Of rows r and r + 8.
template <Entries kind>
struct Group;
template <>
struct Group<Entries::kTable> {
    float2 scale;
};
template <>
struct Group<Entries::kNumbers> {
    float2 scale, zero;  // zero: as a biased code
};
template <>
struct Group<Entries::kLowered> {
    float2 scale, minimum;
};

// As stored.
template <Entries kind>
struct RawGroup {
    RawPair scale;
    RawPair minimum;  // kLowered
    uint32_t zero;    // kNumbers: two nibbles
};

// kAligned: whether second scales are.
template <Entries kind, bool kAligned = true>
__device__ RawGroup<kind> load_group(const WeightView &w, int32_t second_shift, int64_t row_tile,
                                     int quad, int64_t group) {
    RawGroup<kind> raw = {};
    raw.scale = load_pair<kAligned>(w, w.scale, w.second, second_shift, row_tile, quad, group);
    if (kind == Entries::kLowered) {
        raw.minimum = load_pair<kAligned>(w, w.minimum, w.minimum_second, second_shift, row_tile,
                                          quad, group);
    } else if (kind == Entries::kNumbers) {
        const int64_t at = (row_tile * w.geometry.groups_per_row + group) * 8 + quad;
        raw.zero = w.zero == nullptr ? 0x88 : w.zero[at];
    }
    return raw;
}

template <Entries kind, class CodeValue>
__device__ Group<kind> group_of(const WeightView &w, const RawGroup<kind> &raw, float bias,
                                const CodeValue &code_value) {
    const float2 scale = pair_value(w, raw.scale, bias, code_value);
    if constexpr (kind == Entries::kLowered) {
        return {scale, pair_value(w, raw.minimum, bias, code_value)};
    } else if constexpr (kind == Entries::kNumbers) {
        return {scale, {biased(raw.zero), biased(raw.zero >> 4)}};
    } else {
        return {scale};
    }
}

// The value of a code of row r (`high` 0) or r + 8 (1).
template <Entries kind>
__device__ float value_of(const float *entries, const Group<kind> &group, uint32_t code, int high) {
    const float scale = high == 0 ? group.scale.x : group.scale.y;
    if constexpr (kind == Entries::kTable) {
        return __fmul_rn(entries[code], scale);
    } else if constexpr (kind == Entries::kNumbers) {
        return __fmul_rn(__fadd_rn(biased(code), high == 0 ? -group.zero.x : -group.zero.y), scale);
    } else {
        const float minimum = high == 0 ? group.minimum.x : group.minimum.y;
        return __fadd_rn(__fmul_rn(__fadd_rn(biased(code), -biased(0)), scale), -minimum);
    }
}

// run.operator()<kind>() for what the codes of tiles are.
template <class Run>
Status run_by_entries(const WeightView &w, const Run &run) {
    if (w.lowered) return run.template operator()<Entries::kLowered>();
    return w.layout == kLayoutTilesPairs ? run.template operator()<Entries::kTable>()
                                         : run.template operator()<Entries::kNumbers>();
}

// How many a thread of a block with 4096 codes a warp asks for before it waits: all of them down to
// groups of 16, of 32 where a group has a zero or a minimum.
template <Entries kind>
constexpr uint32_t kGroupsAhead = kind == Entries::kTable ? 4 : 2;

}  // namespace
}  // namespace qk::cuda

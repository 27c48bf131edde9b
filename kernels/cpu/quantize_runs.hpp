// How a run of numbers is scanned and coded. The same arithmetic for every instruction set
// (format/group_scale.hpp): folders that include this compile loops without branches, which their
// compilers turn into vectors, so the bytes are the generic kernel's.
#pragma once
#include "cpu/access.hpp"
#include "format/group_scale.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kQuantizeBlock = 256;

// Largest, smallest and largest magnitude by 16 lanes; no order changes them.
inline void scan_run(const float *__restrict x, int64_t count, GroupRange *range) {
    float low[16] = {}, high[16] = {};
    uint32_t most[16] = {}, nan[16] = {};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int lane = 0; lane < 16; ++lane) {
            const float value = x[i + lane];
            const uint32_t magnitude = f32_bits(value) & 0x7fffffffu;
            low[lane] = value < low[lane] ? value : low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
            const bool number = magnitude <= 0x7f800000u;
            most[lane] = number && magnitude > most[lane] ? magnitude : most[lane];
            nan[lane] |= number ? 0u : 1u;
        }
    }
    for (int lane = 0; lane < 16; ++lane) {
        range->add(low[lane]);
        range->add(high[lane]);
        const float magnitude = f32_from_bits(most[lane]);
        range->absmax = magnitude > range->absmax ? magnitude : range->absmax;
        range->nan |= nan[lane] != 0;
    }
    for (; i < count; ++i) range->add(x[i]);
}

template <class Code>
__attribute__((always_inline)) inline void code_each(const float *__restrict x, int64_t count,
                                                     uint8_t *__restrict codes, const Code &code) {
    for (int64_t i = 0; i < count; ++i) codes[i] = code(x[i]);
}

// Counts thresholds below, as nf4_code and fp4_bnb_code do.
struct Thresholds {
    float value[15];
};
template <float threshold(int)>
constexpr Thresholds thresholds() {
    Thresholds all = {};
    for (int i = 0; i < 15; ++i) all.value[i] = threshold(i);
    return all;
}

template <float threshold(int)>
__attribute__((noinline)) void rank_each(const float *__restrict x, int64_t count, float multiplier,
                                         float divisor, uint8_t *__restrict codes) {
    float s[kQuantizeBlock];
    if (divisor != 0) {
        for (int64_t i = 0; i < count; ++i) s[i] = clamp_to_one(x[i] / divisor);
    } else {
        for (int64_t i = 0; i < count; ++i) s[i] = clamp_to_one(x[i] * multiplier);
    }
    constexpr Thresholds all = thresholds<threshold>();
    for (int64_t i = 0; i < count; ++i) {
        int32_t rank = 0;
        _Pragma("GCC unroll 15") for (int t = 0; t < 15; ++t) rank += !(s[i] <= all.value[t]);
        codes[i] = uint8_t(rank);
    }
}

// code_of_value for `count` numbers, at most kQuantizeBlock.
inline void code_run(const QuantizeRule &rule, const GroupScale &group, const float *table,
                     const float *__restrict x, int64_t count, uint8_t *__restrict codes) {
    const bool usual = group.scale == group.scale && group.divisor == group.divisor;
    if (usual && rule.kind == FormatKind::kTable && rule.largest == 1) {
        if (rule.format == QK_FORMAT_NF4) {
            return rank_each<nf4_threshold>(x, count, group.multiplier, group.divisor, codes);
        }
        rank_each<fp4_bnb_threshold>(x, count, group.multiplier, group.divisor, codes);
        for (int64_t i = 0; i < count; ++i) codes[i] = fp4_bnb_order(codes[i]);
        return;
    }
    if (usual && rule.kind == FormatKind::kAffine && group.divisor != 0) {
        const float zero = float(group.zero), divisor = group.divisor;
        const int low = rule.has_zero ? 0 : -8, high = low + 15, add = -low;
        const float offset = rule.has_zero ? zero : 0.0f;
        return code_each(x, count, codes, [=](float value) {
            const float rounded = round_half_even(value / divisor) + offset;
            return uint8_t(clamp_to_int(rounded, low, high) + add);
        });
    }
    code_each(x, count, codes,
              [&](float value) { return code_of_value(rule, value, group, table); });
}

}  // namespace
}  // namespace qk::cpu

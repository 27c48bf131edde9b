// How a run of numbers is scanned and coded. The same arithmetic for every instruction set
// (format/group_scale.hpp): folders that include this compile loops without branches, which their
// compilers turn into vectors, so the bytes are the generic kernel's. Included after scan_run(),
// rank_run(), affine_run() and bisect_run().
#pragma once
#include "cpu/access.hpp"
#include "cpu/quantize_round.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kQuantizeBlock = 256;

// Thresholds below, as nf4_code and fp4_bnb_code count them, and the codes of the counts.
struct Ranks {
    float threshold[16];  // the last one is not looked at
    uint8_t code[16];
};
constexpr Ranks nf4_ranks() {
    Ranks ranks = {};
    for (int i = 0; i < 16; ++i) ranks.code[i] = uint8_t(i);
    for (int i = 0; i < 15; ++i) ranks.threshold[i] = nf4_threshold(i);
    return ranks;
}
constexpr Ranks fp4_bnb_ranks() {
    Ranks ranks = {};
    for (int i = 0; i < 16; ++i) ranks.code[i] = fp4_bnb_order(i);
    for (int i = 0; i < 15; ++i) ranks.threshold[i] = fp4_bnb_threshold(i);
    return ranks;
}
constexpr Ranks kNf4Ranks = nf4_ranks(), kFp4BnbRanks = fp4_bnb_ranks();

__attribute__((noinline)) void rank_each(const Ranks &ranks, const float *__restrict x,
                                         int64_t count, const GroupScale &group,
                                         uint8_t *__restrict codes) {
    float s[kQuantizeBlock];
    const float multiplier = group.multiplier, divisor = group.divisor;
    if (divisor != 0) {
        for (int64_t i = 0; i < count; ++i) s[i] = clamp_to_one(x[i] / divisor);
    } else {
        for (int64_t i = 0; i < count; ++i) s[i] = clamp_to_one(x[i] * multiplier);
    }
    rank_run(ranks.threshold, ranks.code, s, count, codes);
}

// Halfway between LUT8's neighbours: the thresholds of lut8_code's bisection, which has the same
// eight steps for any value, as a tree: node i goes on to 2 i, or to 2 i + 1 where it is below.
struct Middles {
    alignas(64) int32_t node[256];  // from 1 on, ordered_bits

    void load(const float *table) {
        node[0] = 0;
        for (int i = 1; i < 256; ++i) {
            const int level = 31 - __builtin_clz(unsigned(i)), half = 128 >> level;
            const int at = (i - (1 << level)) * 2 * half + half - 1;
            const float value = 0.5f * (table[at] + table[at + 1]);
            node[i] = value == value ? ordered_bits(value) : INT32_MAX;  // NaN is below nothing
        }
    }
};

struct Coder {
    QuantizeRule rule;
    float table[256];
    Middles middles;
};

// code_of_value for `count` numbers, at most kQuantizeBlock.
__attribute__((noinline)) void code_run(const Coder &coder, const GroupScale &group,
                                        const float *__restrict x, int64_t count,
                                        uint8_t *__restrict codes) {
    const QuantizeRule &rule = coder.rule;
    const bool usual = group.scale == group.scale && group.divisor == group.divisor;
    const float divisor = group.divisor;
    if (usual && rule.kind == FormatKind::kTable && rule.largest == 1) {
        return rank_each(rule.format == QK_FORMAT_NF4 ? kNf4Ranks : kFp4BnbRanks, x, count, group,
                         codes);
    }
    if (usual && rule.kind == FormatKind::kStored && group.scale != 0) {
        return bisect_run(coder.middles.node, x, count, group.multiplier, codes);
    }
    if (!usual || divisor == 0) {
        return code_each(x, count, codes, [&](float value) {
            return code_of_value(rule, value, group, coder.table);
        });
    }
    switch (rule.kind) {
        case FormatKind::kAffine:
            return affine_run(x, count, divisor, rule.has_zero ? group.zero : -1, codes);
        case FormatKind::kSigned:
            return code_each(x, count, codes, [=](float value) {
                return uint8_t(round_and_clamp(value / divisor, 0.0f, -127.0f, 127.0f));
            });
        default:
            return code_each(x, count, codes, [=](float value) {
                return fp4_e2m1_code(with_sign_of(value / divisor, value));
            });
    }
}

}  // namespace
}  // namespace qk::cpu

// How numbers become codes, at most kQuantizeBlock at a time. The same arithmetic for every
// instruction set (format/group_scale.hpp), in loops without branches that compilers turn into
// vectors, so the bytes are the generic kernel's.
#pragma once
#include "cpu/access.hpp"
#include "cpu/isa.hpp"
#include "cpu/shared/fallbacks.hpp"
#include "format/group_scale.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kQuantizeBlock = 256;

// What the quantizer asks of an instruction set.
template <class Isa>
concept QuantizerIsa = requires(const Dense &from, const float *x, const float *thresholds,
                                const uint8_t *of_rank, int64_t count, GroupRange *range, float *to,
                                uint8_t *codes) {
    Isa::kFeature + 0u;                   // bits of cpu/kernels.hpp
    Isa::widen(from, count, count, to);   // from a first element on, to f32
    Isa::scan(x, count, range);           // extends the range
    Isa::scan_magnitudes(x, count) + 0u;  // the largest, as bits; a NaN is larger than any number
    // The codes of how many of 15 thresholds, which ascend, are below; a NaN is above all of them.
    Isa::rank(thresholds, of_rank, x, count, codes);
    Isa::round_u4(x, count, 0.5f, -1, codes);  // by a divisor; the zero, -1 where there is none
    Isa::round_s8(x, count, 0.5f, codes);      // by a divisor
};

template <class Code>
QK_INLINE inline void code_each(const float *__restrict x, int64_t count, uint8_t *__restrict codes,
                                const Code &code) {
    for (int64_t i = 0; i < count; ++i) codes[i] = code(x[i]);
}

// clamp_to_int(round_half_even(value) + add, low, high), both ways of each choice computed.
QK_INLINE inline int32_t round_and_clamp(float value, float add, float low, float high) {
    constexpr float magic = 12582912.0f, limit = 4194304.0f;
    const float rounded = (value + magic) - magic;
    const bool small = bool(int(value > -limit) & int(value < limit));
    float result = (small ? rounded : value) + add;
    result = result == result ? result : 0.0f;
    result = result < low ? low : result;
    return int32_t(result > high ? high : result);
}

QK_INLINE inline void round_s8_each(const float *__restrict x, int64_t count, float divisor,
                                    uint8_t *__restrict codes) {
    code_each(x, count, codes, [=](float value) {
        return uint8_t(round_and_clamp(value / divisor, 0.0f, -127.0f, 127.0f));
    });
}

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
// Numbers past 1 have the rank of 1, so that none is clamped.
constexpr bool within_one(const Ranks &ranks) {
    for (int i = 0; i < 15; ++i) {
        if (!(ranks.threshold[i] >= -1 && ranks.threshold[i] < 1)) return false;
    }
    return true;
}
static_assert(within_one(kNf4Ranks) && within_one(kFp4BnbRanks));

template <class Isa>
QK_NOINLINE void rank_lut4(const Ranks &ranks, const float *__restrict x, int64_t count,
                           const GroupScale &group, uint8_t *__restrict codes) {
    float s[kQuantizeBlock];
    const float multiplier = group.multiplier, divisor = group.divisor;
    if (divisor != 0) {
        for (int64_t i = 0; i < count; ++i) s[i] = x[i] / divisor;
    } else {
        for (int64_t i = 0; i < count; ++i) s[i] = x[i] * multiplier;
    }
    Isa::rank(ranks.threshold, ranks.code, s, count, codes);
}

// lut8_code of every point of its grid, and the code of a NaN behind them.
class Lut8Points {
  public:
    static constexpr int64_t kWorth = 384;  // numbers: fewer are coded sooner than all points

    explicit Lut8Points(const float *table) : table_(table) {
        fill(0, 255, 0, kLut8Points);
        code[kLut8Points] = 0;
    }

    uint8_t code[kLut8Points + 1];

  private:
    // Points first .. last come to lut8_code's interval of codes.
    void fill(int32_t low, int32_t high, int32_t first, int32_t last) {
        if (first == last) return;
        if (low == high) return void(memset(code + first, low, size_t(last - first)));
        const int32_t middle = (low + high) / 2;
        const float threshold = lut8_threshold(table_, middle);
        int32_t above = first, end = last;  // the first point above the threshold
        while (above < end) {
            const int32_t at = (above + end) / 2;
            threshold < lut8_point_value(at) ? end = at : above = at + 1;
        }
        fill(low, middle, first, above);
        fill(middle + 1, high, above, last);
    }

    const float *table_;
};

// lut8_code of numbers times `multiplier`.
inline void code_lut8(const Lut8Points *points, const float *table, float multiplier,
                      const float *__restrict x, int64_t count, uint8_t *__restrict codes) {
    for (; points == nullptr && count > 0; --count) {
        *codes++ = lut8_code(clamp_to_one(*x++ * multiplier), table);
    }
    constexpr float kBehind = 1.0f + 0x1p-15f;  // in the place of a NaN
    static_assert(lut8_point(kBehind) == kLut8Points);
    while (count > 0) {  // in loops that compilers turn into vectors, all but the look-up
        float s[kQuantizeBlock];
        int32_t point[kQuantizeBlock];
        const int64_t some = min64(count, kQuantizeBlock);
        for (int64_t i = 0; i < some; ++i) s[i] = clamp_to_one(x[i] * multiplier);
        for (int64_t i = 0; i < some; ++i) s[i] = s[i] == s[i] ? s[i] : kBehind;
        for (int64_t i = 0; i < some; ++i) point[i] = lut8_point(s[i]);
        for (int64_t i = 0; i < some; ++i) codes[i] = points->code[point[i]];
        x += some, codes += some, count -= some;
    }
}

struct Coder {
    QuantizeRule rule;
    float table[256];          // LUT8's
    const Lut8Points *points;  // of it, or null
};

// Codes of the quotients by the group's divisor, as code_of_value has them: code(s).
template <class Code>
QK_INLINE inline void code_quotients(const QuantizeRule &rule, const float *__restrict x,
                                     int64_t count, float divisor, uint8_t *__restrict codes,
                                     const Code &code) {
    // bf16 numbers are what most weights are; f16 rounds in a loop that is no vectors.
    switch (rule.by == Rule::kNvfp4Divides || rule.by == Rule::kNvfp4Multiplies
                ? qk_format{QK_FORMAT_F32}
                : rule.from_format) {
        case QK_FORMAT_BF16:
            return code_each(x, count, codes, [=](float value) {
                return code(f32_from_bf16(bf16_from_f32(value / divisor)));
            });
        case QK_FORMAT_F16:
            return code_each(x, count, codes, [=](float value) {
                return code(f32_from_f16(f16_from_f32(value / divisor)));
            });
        default:
            return code_each(x, count, codes, [=](float value) { return code(value / divisor); });
    }
}

// code_of_value for `count` numbers, at most kQuantizeBlock.
template <class Isa>
QK_NOINLINE void code_values(const Coder &coder, const GroupScale &group, const float *__restrict x,
                             int64_t count, uint8_t *__restrict codes) {
    const QuantizeRule &rule = coder.rule;
    const bool usual = group.scale == group.scale && group.divisor == group.divisor;
    const float divisor = group.divisor;
    if (usual && rule.by == Rule::kAbsmax) {
        return rank_lut4<Isa>(rule.format == QK_FORMAT_NF4 ? kNf4Ranks : kFp4BnbRanks, x, count,
                              group, codes);
    }
    if (usual && rule.by == Rule::kLut8 && group.scale != 0) {
        return code_lut8(coder.points, coder.table, group.multiplier, x, count, codes);
    }
    if (usual && (rule.by == Rule::kQ4_0 || rule.by == Rule::kQ8_0)) {
        const float multiplier = group.multiplier;
        if (rule.by == Rule::kQ4_0) {
            return code_each(x, count, codes, [=](float v) { return q4_0_code(v * multiplier); });
        }
        return code_each(x, count, codes, [=](float v) { return q8_0_code(v * multiplier); });
    }
    if (!usual || divisor == 0) {
        return code_each(x, count, codes, [&](float value) {
            return code_of_value(rule, value, group, coder.table);
        });
    }
    switch (rule.by) {
        case Rule::kAffine: return Isa::round_u4(x, count, divisor, group.zero, codes);
        case Rule::kSymmetric: return Isa::round_u4(x, count, divisor, -1, codes);
        case Rule::kS8: return Isa::round_s8(x, count, divisor, codes);
        case Rule::kE2m1:
            return code_each(x, count, codes, [=](float value) {
                return fp4_e2m1_code(with_sign_of(value / divisor, value));
            });
        case Rule::kInt8:
            return code_quotients(rule, x, count, divisor, codes, [](float s) {
                return uint8_t(round_and_clamp(s, 0.0f, -128.0f, 127.0f));
            });
        default:
            if (rule.format == QK_FORMAT_E4M3) {
                return code_quotients(rule, x, count, divisor, codes,
                                      [](float s) { return e4m3_code(s + 0.0f); });
            }
            return code_quotients(rule, x, count, divisor, codes,
                                  [](float s) { return fp4_e2m1_code_below_zero(s); });
    }
}

// Stores codes of a row: whole bytes or words where the layout has them for neighbours in a row.
// Planes of nibbles are zeroed first.
// Pairs of codes to bytes; the first is the low nibble unless `high_first`.
inline void join_pairs(const uint8_t *__restrict codes, int64_t count, bool high_first,
                       uint8_t *__restrict to) {
    const int first = high_first ? 4 : 0, second = 4 - first;
    for (int64_t i = 0; i < count; ++i) {
        const uint16_t pair = load_as<uint16_t>(codes, i);
        to[i] = uint8_t((pair & 0xff) << first | (pair >> 8) << second);
    }
}

inline uint32_t join_eight(const uint8_t *codes) {
    uint64_t x = load_as<uint64_t>(codes, 0);
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return uint32_t(x | x >> 16);
}

// How many of the codes were stored; the rest is for the layout's own function.
inline int64_t store_run(const Weight &w, int64_t row, int64_t column, int64_t count,
                         const uint8_t *codes) {
    const Geometry &s = w.geometry;
    uint8_t *const data = static_cast<uint8_t *>(w.data);
    if (is_records(w)) return 0;
    if (w.layout->bits == 8) {
        memcpy(data + row * s.k + column, codes, size_t(count));
        return count;
    }
    const int64_t pad = run_pad(w), at = row * round_up(s.k, pad > 0 ? pad : 1) + column;
    if (pad > 0 && at % 2 == 0) {
        join_pairs(codes, count / 2, w.layout->id == QK_LAYOUT_ROW_HIGH, data + at / 2);
        return count / 2 * 2;
    }
    int64_t done = 0;
    if (w.layout->id == kLayoutRows8 && column % 16 == 0) {
        while (done + 16 <= count) {
            const int64_t c = column + done, some = min64(128 - c % 128, (count - done) & ~15);
            uint8_t *const chunk =
                data + ((row / 8 * ceil_div(s.k, 128) + c / 128) * 8 + row % 8) * 64;
            uint8_t nibbles[64] = {};
            uint64_t packed[8], there[8];
            join_pairs(codes + done, some / 2, false, nibbles + c % 128 / 2);
            pack_chunk_bytes<false>(nibbles, reinterpret_cast<uint8_t *>(packed));
            memcpy(there, chunk, 64);
            for (int i = 0; i < 8; ++i) there[i] |= packed[i];
            memcpy(chunk, there, 64);
            done += some;
        }
    }
    return done;
}

}  // namespace
}  // namespace qk::cpu

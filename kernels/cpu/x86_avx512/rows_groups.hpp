// One row of x as integers over rows as files store them, in groups of 16, 32 or 64
// (docs/formats.md, "Order of sums"). Words of codes in sequence have eight columns, those of a
// lane, so a word's nibbles are looked up one after the other as words of packed codes are; x is in
// two halves, whose products are exact in f32:
//
//     4096 * high + low, less the zero times the sum of x; sum = fma(that, unit * scale, sum)
//
// Sums have the order of words until the last block of a row is added.
#pragma once
#include "cpu/linear/gemv.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

// Word w has the columns of this lane.
constexpr int64_t lane_of_word(int64_t w) { return w / 2 + w % 2 * 8; }

// A block of x: nibble i of word w in [i][w]. `high_first`: of nibbles whose pairs are swapped.
template <bool high_first>
struct XWordHalves {
    alignas(64) float high[8][16], low[8][16];
    alignas(64) float high_sum[16], low_sum[16];
    float unit;

    void place(const int32_t *q) {
        XHalves halves;
        halves.place(q);
        memset(high_sum, 0, sizeof(high_sum));
        memset(low_sum, 0, sizeof(low_sum));
        for (int i = 0; i < 8; ++i) {
            for (int w = 0; w < 16; ++w) {
                const int column = 8 * w + (high_first ? i ^ 1 : i);
                high_sum[w] += high[i][w] = halves.high[column];
                low_sum[w] += low[i][w] = halves.low[column];
            }
        }
    }
};

// What the words of a row's block are multiplied by, and their zeros.
struct WordFactors {
    alignas(64) float scale[16];
    alignas(64) float zero[16];

    // Of `groups` groups, of which the first `there` are: scale_at(group), zero_at(group). What
    // others have leaves a sum as it is.
    template <class ScaleAt, class ZeroAt>
    QK_INLINE void fill(int64_t groups, int64_t there, float unit, const ScaleAt &scale_at,
                        const ZeroAt &zero_at) {
        switch (groups) {
            case 8: return fill_words<2>(there, unit, scale_at, zero_at);
            case 4: return fill_words<4>(there, unit, scale_at, zero_at);
            default: return fill_words<8>(there, unit, scale_at, zero_at);
        }
    }

  private:
    template <int kWords, class ScaleAt, class ZeroAt>
    QK_INLINE void fill_words(int64_t there, float unit, const ScaleAt &scale_at,
                              const ZeroAt &zero_at) {
        QK_UNROLL
        for (int64_t group = 0; group < 16 / kWords; ++group) {
            const bool is = group < there;
            const float factor = is ? unit * scale_at(group) : -0.0f;
            const float of_zero = is ? float(zero_at(group)) : 0.0f;
            for (int64_t w = kWords * group; w < kWords * (group + 1); ++w) {
                scale[w] = factor;
                zero[w] = of_zero;
            }
        }
    }
};

class WordProducts {
  public:
    explicit WordProducts(const Weight &w)
        : unit(1 / integer_steps(*w.format)), has_zeros_(w.zero != nullptr) {
        float entries[16];
        entries_of(w, has_zeros_ ? 0 : common_zero(w), entries);
        for (float &entry : entries) entry *= integer_steps(*w.format);
        table_ = Avx512::load_table(entries);
    }

    // A row's block: 64 bytes of codes in sequence.
    template <class X>
    QK_INLINE void add(const uint8_t *codes, const X &x, const WordFactors &factors,
                       Lanes<Avx512> &sum) const {
        const Words<Avx512> words = Avx512::load_words(codes);
        Lanes<Avx512> high = Avx512::zero_lanes(), low = Avx512::zero_lanes();
        for_each_step([&]<int step>() QK_INLINE {
            const Lanes<Avx512> entry = Avx512::template look_up<step>(table_, words);
            high = Avx512::fma(entry, Avx512::load_f32(x.high[step]), high);
            low = Avx512::fma(entry, Avx512::load_f32(x.low[step]), low);
        });
        if (has_zeros_) {
            const Lanes<Avx512> minus =
                Avx512::mul(Avx512::load_f32(factors.zero), Avx512::splat(-1));
            high = Avx512::fma(minus, Avx512::load_f32(x.high_sum), high);
            low = Avx512::fma(minus, Avx512::load_f32(x.low_sum), low);
        }
        const Lanes<Avx512> dot = Avx512::fma(high, Avx512::splat(4096), low);
        sum = Avx512::fma(dot, Avx512::load_f32(factors.scale), sum);
    }

    const float unit;  // of entries

  private:
    const bool has_zeros_;
    Table<Avx512> table_;
};

// Sums of words to sums of lanes.
inline void words_to_lanes(Sums<Avx512> &sums) {
    for (Lanes<Avx512> &row : sums.row) {
        alignas(64) float words[16], lanes[16];
        Avx512::store_f32(words, row);
        for (int64_t w = 0; w < 16; ++w) lanes[lane_of_word(w)] = words[w];
        row = Avx512::load_f32(lanes);
    }
}

}  // namespace
}  // namespace qk::cpu

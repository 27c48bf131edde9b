// One row of x as integers over codes that are integers, in groups of 16, 32 or 64
// (docs/formats.md, "Order of sums"): the form that any instruction set runs. Words of codes in
// sequence have eight columns, those of a lane, so a word's nibbles are looked up one after the
// other as words of packed codes are; x is in two halves, whose products are exact in f32:
//
//     4096 * high + low, less the zero times the sum of x; sum = fma(that, unit * scale, sum)
//
// Sums have the order of words until the last block of a row is added.
#pragma once
#include "cpu/linear/gemv.hpp"

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

template <class Isa>
class WordProducts {
  public:
    explicit WordProducts(const Weight &w)
        : unit(1 / integer_steps(*w.format)), has_zeros_(w.zero != nullptr) {
        float entries[16];
        entries_of(w, has_zeros_ ? 0 : 8, entries);
        for (float &entry : entries) entry *= integer_steps(*w.format);
        table_ = Isa::load_table(entries);
    }

    // A row's block: 64 bytes of codes in sequence.
    template <class X>
    QK_INLINE void add(const uint8_t *codes, const X &x, const WordFactors &factors,
                       Lanes<Isa> &sum) const {
        const Words<Isa> words = Isa::load_words(codes);
        Lanes<Isa> high = Isa::zero_lanes(), low = Isa::zero_lanes();
        for_each_step([&]<int step>() QK_INLINE {
            const Lanes<Isa> entry = Isa::template look_up<step>(table_, words);
            high = Isa::fma(entry, Isa::load_f32(x.high[step]), high);
            low = Isa::fma(entry, Isa::load_f32(x.low[step]), low);
        });
        if (has_zeros_) {
            const Lanes<Isa> minus = Isa::mul(Isa::load_f32(factors.zero), Isa::splat(-1));
            high = Isa::fma(minus, Isa::load_f32(x.high_sum), high);
            low = Isa::fma(minus, Isa::load_f32(x.low_sum), low);
        }
        const Lanes<Isa> dot = Isa::fma(high, Isa::splat(4096), low);
        sum = Isa::fma(dot, Isa::load_f32(factors.scale), sum);
    }

    const float unit;  // of entries

  private:
    const bool has_zeros_;
    Table<Isa> table_;
};

// Sums of words to sums of lanes.
template <class Isa>
inline void words_to_lanes(Sums<Isa> &sums) {
    for (Lanes<Isa> &row : sums.row) {
        alignas(64) float words[16], lanes[16];
        Isa::store_f32(words, row);
        for (int64_t w = 0; w < 16; ++w) lanes[lane_of_word(w)] = words[w];
        row = Isa::load_f32(lanes);
    }
}

template <class Isa>
class RowsOfGroups {
  public:
    RowsOfGroups(const LinearArgs &args, const Device &device)
        : args_(args), x_(args.x), scales_(args.w, device), products_(args.w),
          chunks_(chunk_count(args.w.geometry)), groups_(kBlock / args.w.geometry.group_size) {}

    void run(int64_t row_block) {
        Sums<Isa> sums;
        for (Lanes<Isa> &lanes : sums.row) lanes = Isa::zero_lanes();
        for (int64_t chunk = 0; chunk < chunks_; chunk += kPanelChunks) {
            add_panel(row_block, chunk, min64(chunk + kPanelChunks, chunks_), sums);
        }
        words_to_lanes<Isa>(sums);
        store_rows<Isa>(args_, row_block, sums);
    }

  private:
    QK_NOINLINE void add_panel(int64_t row_block, int64_t first, int64_t last, Sums<Isa> &sums) {
        const Geometry &s = args_.w.geometry;
        const int64_t group = first * groups_;
        int64_t there = min64(last * groups_, s.groups_per_row) - group;
        const char *scales = scales_.load(row_block, group, there);
        const uint8_t *zeros = packed_zeros(args_.w, row_block, group);
        const uint8_t *codes = packed_chunk(args_.w, row_block * chunks_ + first);
        if (first % kRowChunks == 0) panel_ = x_.panel(first * kBlock);
        for (int64_t i = first; i < last; ++i, there -= groups_) {
            const auto &x = panel_[i % kRowChunks];
            // Of all rows first: a row's would wait for what it has just stored.
            alignas(64) uint8_t in_sequence[8][64];
            WordFactors factors[8];
            for (int row = 0; row < 8; ++row, codes += 64) {
                prefetch_stream(codes + kAhead);
                Isa::unpack_chunk(codes, in_sequence[row]);
            }
            for (int row = 0; row < 8; ++row) {
                factors[row].fill(
                    groups_, there, x.unit * products_.unit,
                    [&](int64_t g) { return load_as<float>(scales, 8 * g + row); },
                    [&](int64_t g) {
                    const bool none = zeros == nullptr;
                    return none ? 0 : zeros[4 * g + (row >> 1)] >> (row & 1) * 4 & 15;
                    });
            }
            for (int row = 0; row < 8; ++row) {
                products_.add(in_sequence[row], x, factors[row], sums.row[row]);
            }
            scales += groups_ * 32;
            if (zeros != nullptr) zeros += groups_ * 4;
        }
    }

    static constexpr int64_t kRowChunks = kPanelOfX / kBlock;

    const LinearArgs &args_;
    BlocksOfX<Isa, XWordHalves<false>> x_;
    const XWordHalves<false> *panel_ = nullptr;
    ScalePanel<Isa> scales_;
    WordProducts<Isa> products_;
    const int64_t chunks_, groups_;
};

// `IntegerRows`: 8 rows at a time where x is taken as integers and groups are blocks or more.
template <class Isa, class IntegerRows>
Status run_gemv(const LinearArgs &args, const Launch &launch) {
    if (sums_integers<Isa>(args)) {
        in_small_groups(args.w.geometry)
            ? run_blocks<RowsOfGroups<Isa>>(args, launch, launch.device)
            : run_blocks<IntegerRows>(args, launch, launch.device);
    } else if (has_minimum(args.w)) {
        run_blocks<RowBlocks<Isa, LoweredCodes<Isa>>>(args, launch, launch.device);
    } else if (args.w.zero != nullptr) {
        run_blocks<RowBlocks<Isa, AffineCodes<Isa>>>(args, launch, launch.device);
    } else {
        run_blocks<RowBlocks<Isa, TableCodes<Isa>>>(args, launch, launch.device);
    }
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu

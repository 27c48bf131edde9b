// 8 rows of w stored row by row, and what every kernel over them needs: the addresses of codes,
// scales and zeros ready to multiply, nibbles in the lanes of a vector.
#pragma once
#include "cpu/x86_avx512/isa.hpp"

#include "cpu/linear/gemv.hpp"
#include "cpu/x86_avx512/scales_in_rows.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kRun = 4096;                 // columns whose scales are widened at once
constexpr int64_t kRunGroups = kRun / 16 + 1;  // of 16 columns or more, one cut

// The codes of 8 rows from a column on. Three places and a stride reach them all.
struct Codes8 {
    const uint8_t *third[3];
    int64_t stride;

    Codes8(const uint8_t *from, int64_t bytes)
        : third{from, from + 3 * bytes, from + 6 * bytes}, stride(bytes) {}
    QK_INLINE const uint8_t *row(int i) const { return third[i / 3] + i % 3 * stride; }
    QK_INLINE void advance(int64_t bytes) {
        for (const uint8_t *&at : third) at += bytes;
    }
};

// Scales as f32 and zeros of 8 rows, a run of groups; or minima in the place of scales.
class Groups8 {
  public:
    explicit Groups8(const Weight &w) : Groups8(w, w.scale) {}
    // `plane`: the weight's scales or its minima, perhaps none.
    Groups8(const Weight &w, const ScalePlane &plane)
        : w_(w), plane_(plane), group_of_code_(w.geometry),
          few_fills_((traits() & kFewFills) != 0) {
        if (plane.format == nullptr) return;
        const bool looked_up = has_coded_scales(plane) && plane.format->id != QK_FORMAT_I8;
        if (looked_up) load_nested_code(plane.code, &nested_);
        if (w.zero == nullptr) memset(zero, 0, sizeof(zero));
    }

    // Those of columns column .. end of rows row .. row + 7, each row's from its own first one on;
    // what the next call wants is fetched, and `bytes` of codes, an eighth in each row's turn.
    QK_NOINLINE void load(int64_t row, int64_t column, int64_t end, const uint8_t *codes = nullptr,
                          int64_t bytes = 0) {
        const Geometry &s = w_.geometry;
        GroupIndex first = group_of(s, row, column);
        int64_t count = group_of(s, row, end - 1).group - first.group + 1;
        for (int64_t i = 0; i < 8; ++i) {
            for (int64_t at = 0; at < bytes / 8; at += 64) {
                fetch_later(codes + i * (bytes / 8) + at, few_fills_);
            }
            if (s.flat) {
                const int64_t of_row = (row + i) * s.k;
                first.group = group_of_code_(of_row + column);
                count = group_of_code_(of_row + end - 1) - first.group + 1;
                fetch(group_of_code_(of_row + 8 * s.k), count);
            } else {
                first.row = row + i;
                fetch(w_.layout->scale_at(s, end < s.k ? GroupIndex{row + i, first.group + count}
                                                       : GroupIndex{row + 8 + i, 0}),
                      count);
            }
            const int64_t at = s.flat ? first.group : w_.layout->scale_at(s, first);
            if (has_coded_scales(plane_)) {
                load_nested(first, count, at, scale[i]);
            } else {
                widen_x<Avx512>({plane_.format, 1, count, plane_.data}, at, count, scale[i]);
            }
            if (w_.zero != nullptr && !words_of_zeros(row)) load_zeros(first, count, zero[i]);
        }
        if (w_.zero != nullptr && words_of_zeros(row)) load_zero_words(row, first.group, count);
    }

    alignas(64) float scale[8][kRunGroups + 15];
    uint8_t zero[8][kRunGroups + 15];

  private:
    void load_nested(GroupIndex first, int64_t count, int64_t at, float *to) const {
        const uint8_t *const from = static_cast<const uint8_t *>(plane_.data) + at;
        const bool integers = plane_.format->id == QK_FORMAT_I8;
        const int64_t number = group_number(w_.geometry, first), size = plane_.second_group;
        const bool power = (size & (size - 1)) == 0;  // divisions are slow
        int64_t second = power ? number >> __builtin_ctzll(uint64_t(size)) : number / size;
        int64_t end = min64(count, (second + 1) * size - number);
        if (integers && number == second * size && (size == 8 || size % 16 == 0)) {
            return scale_whole_groups(from, count, second, to);
        }
        for (int64_t i = 0; i < count; ++second) {
            const float by = load_as<float>(plane_.second, second);
            if (integers) {
                scale_integers(from + i, end - i, by, to + i);
            } else {
                kLookUpBytesVbmi(nested_, from + i, end - i, by, to + i);
            }
            i = end;
            end = min64(count, end + plane_.second_group);
        }
        if (integers) return;
        const Lanes<Avx512> bias = Avx512::splat(load_as<float>(plane_.bias, 0));
        for (int64_t i = 0; i < count; i += 16)
            Avx512::store_f32(to + i, Avx512::add(Avx512::load_f32(to + i), bias));
    }

    // From a second group's start on, of 8 scales or whole 16s, into whole runs of 16. What the row
    // 8 further on will take of the second scales is fetched, too short a piece for a processor's
    // own prefetching.
    void scale_whole_groups(const uint8_t *from, int64_t count, int64_t second, float *to) const {
        const int64_t size = plane_.second_group;
        const char *by = static_cast<const char *>(plane_.second) + second * 4;
        const int64_t bytes = ceil_div(count, size) * 4;
        prefetch_lines(by, bytes, w_.geometry.groups_per_row / size * 32);
        for (int64_t i = 0, left = size; i < count; i += 16) {
            const __mmask16 there = Avx512::first_lanes(count - i).v;
            const __m512i codes = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, from + i));
            __m512 scale = _mm512_set1_ps(load_as<float>(by, 0));
            if (size == 8) {
                if (count - i > 8) {
                    const __m512 next = _mm512_set1_ps(load_as<float>(by, 1));
                    scale = _mm512_mask_mov_ps(scale, 0xff00, next);
                }
                by += 8;
            } else if ((left -= 16) == 0) {
                by += 4;
                left = size;
            }
            _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale));
        }
    }

    static void scale_integers(const uint8_t *from, int64_t count, float by, float *to) {
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 there = Avx512::first_lanes(count - i).v;
            const __m512i codes = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, from + i));
            _mm512_mask_storeu_ps(to + i, there,
                                  _mm512_mul_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(by)));
        }
    }

    void fetch(int64_t at, int64_t count) const {
        const int64_t size = plane_.format->bits / 8;
        const uint8_t *const from = static_cast<const uint8_t *>(plane_.data) + at * size;
        for (int64_t i = 0; i < count * size; i += 64) fetch_later(from + i, few_fills_);
    }

    // Whether the 8 rows have a word of zeros for each group.
    bool words_of_zeros(int64_t row) const {
        return w_.layout->id == QK_LAYOUT_WORD && row % 8 == 0 && !w_.geometry.flat;
    }
    void load_zero_words(int64_t row, int64_t group, int64_t count) {
        const int64_t at = w_.layout->zero_at(w_.geometry, {row, group}) / 8;
        for (int64_t g = 0; g < count; g += 16) {
            const __mmask16 there = Avx512::first_lanes(count - g).v;
            const __m512i words =
                _mm512_maskz_loadu_epi32(there, static_cast<const char *>(w_.zero) + (at + g) * 4);
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                const __m512i nibbles =
                    _mm512_and_si512(_mm512_srli_epi32(words, 4 * i), _mm512_set1_epi32(15));
                _mm_mask_storeu_epi8(zero[i] + g, there, _mm512_cvtepi32_epi8(nibbles));
            }
        }
    }

    // Nibbles of a row's groups are equally far apart, counted from either end of their bytes.
    void load_zeros(GroupIndex first, int64_t count, uint8_t *to) const {
        const Geometry &s = w_.geometry;
        const int64_t high = w_.layout->id == QK_LAYOUT_ROW_HIGH ? 1 : 0;
        const int64_t start = w_.layout->zero_at(s, first) ^ high;
        const int64_t next = (w_.layout->zero_at(s, {first.row, first.group + 1}) ^ high) - start;
        const uint8_t *const zeros = static_cast<const uint8_t *>(w_.zero);
        int64_t g = 0;
        if (next == 1 && start % 2 == 0) {
            for (; g + 16 <= count; g += 16) {
                const __m128i pairs =
                    _mm_loadl_epi64(reinterpret_cast<const __m128i *>(zeros + (start + g) / 2));
                const __m128i low = _mm_and_si128(pairs, _mm_set1_epi8(15));
                const __m128i upper = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
                _mm_storeu_si128(
                    reinterpret_cast<__m128i *>(to + g),
                    high != 0 ? _mm_unpacklo_epi8(upper, low) : _mm_unpacklo_epi8(low, upper));
            }
        }
        for (int64_t at = start + g * next; g < count; ++g, at += next) {
            to[g] = uint8_t(zeros[at >> 1] >> ((at ^ high) & 1) * 4 & 15);
        }
    }

    const Weight &w_;
    const ScalePlane &plane_;
    const GroupOfCode group_of_code_;
    const bool few_fills_;
    NestedCode nested_;
};

// Which columns the lanes of 16 nibbles have, and where these stand in 32 bits.
struct NibbleOrder {
    __m512i shift;

    explicit NibbleOrder(const Weight &w) {
        const __m512i one = _mm512_set1_epi32(1), seven = _mm512_set1_epi32(7);
        const __m512i nibble = _mm512_and_si512(columns(), seven);
        const bool high = w.layout->id == QK_LAYOUT_ROW_HIGH;
        shift = _mm512_slli_epi32(high ? _mm512_xor_si512(nibble, one) : nibble, 2);
    }
    static __m512i columns() {
        return _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    static Lanes<Avx512> permute(Lanes<Avx512> x) {
        return {_mm512_permutexvar_ps(columns(), x.v)};
    }
    static Lanes<Avx512> restore(Lanes<Avx512> x) {
        const __m512i lane =
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        return {_mm512_permutexvar_ps(lane, x.v)};
    }
    static Mask<Avx512> mask(int64_t count) {
        return {_mm512_cmplt_epi32_mask(columns(), _mm512_set1_epi32(int(count)))};
    }
    QK_INLINE Lanes<Avx512> look_up(const Table<Avx512> &table, const uint8_t *from) const {
        const __m512i words = _mm512_set1_epi64(load_as<int64_t>(from, 0));
        return {_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table.v)};
    }
};

// A run of columns of 8 rows.
struct Run {
    int64_t row, first, last;  // columns
    int64_t group;             // of the first column, where groups do not straddle rows
};

// x of a run, f32: a place of each row.
struct XOfRun {
    const char *row[kLaneRows];

    QK_INLINE void advance(int64_t bytes) {
        for (const char *&at : row) at += bytes;
    }
    QK_INLINE XOfRun from(int64_t column) const {
        XOfRun x = *this;
        x.advance(4 * column);
        return x;
    }
};

// The rows of x of a product as f32, a run at a time.
class RunsOfX {
  public:
    explicit RunsOfX(const Dense &x) : rows_(x.rows), x_(x) {}

    // Past the last row the first repeats.
    XOfRun of(const Run &run) {
        if (run.first % kPanelOfX == 0) {
            for (int64_t j = 0; j < rows_; ++j) panel_.row[j] = x_[j].panel(run.first);
            for (int64_t j = rows_; j < kLaneRows; ++j) panel_.row[j] = panel_.row[0];
        }
        return panel_.from(run.first % kPanelOfX);
    }

  private:
    const int64_t rows_;
    EachRow<RowOfX<Avx512>> x_;
    XOfRun panel_ = {};
};

class Rows8 {
  public:
    explicit Rows8(const LinearArgs &args)
        : args_(args), groups_(args.w), codes_(args.w), order_(args.w),
          paged_(args.w.layout->bits == 8 && (traits() & kPagedStreams) != 0),
          few_fills_((traits() & kFewFills) != 0), lowered_(has_minimum(args.w)),
          scales_in_rows_(args.w, args.w.scale), minima_in_rows_(args.w, args.w.minimum) {
        const int64_t k = args.w.geometry.k;
        in_rows_ = args.w.format->kind == FormatKind::kS8 && !paged_ && scales_in_rows_.reads() &&
                   (!lowered_ || minima_in_rows_.reads());
        stride_ = args.w.layout->bits == 8 ? k : round_up(k, run_pad(args.w)) / 2;
        run_ = args.w.geometry.group_size < 16 ? kRunGroups - 1 : kRun;
    }

  protected:
    // y of 8 rows: add(run, sums) adds runs of columns up in order, sums of each row of x,
    // restore(sums) puts them in the order of lanes, lower(x_row, row, y) takes minima off. The
    // last block starts early enough to be whole.
    template <class Add, class Restore, class Lower>
    QK_INLINE void sum_runs(int64_t block, const Add &add, const Restore &restore,
                            const Lower &lower) {
        const Geometry &s = args_.w.geometry;
        const int64_t row = min64(block * 8, s.n - 8);
        SumsOf<Avx512, kLaneRows> sums;
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            for (Lanes<Avx512> &sum : sums[j].row) sum = Avx512::zero_lanes();
        }
        for (int64_t first = 0; first < s.k; first += run_) {
            const Run run = {row, first, min64(first + run_, s.k), first / s.group_size};
            if (!in_rows_) load_scales(run);
            add(run, sums);
        }
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            restore(sums[j]);
            float y[8];
            Avx512::fold_rows(sums[j].row, y);
            lower(j, row, y);
            store_8(args_, j, block, y + (block * 8 - row));
        }
    }

    template <class Add>
    QK_INLINE void sum_runs(int64_t block, const Add &add) {
        const auto restore = [&](Sums<Avx512> &sums) QK_INLINE {
            if (args_.w.layout->bits == 8) return;
            for (Lanes<Avx512> &sum : sums.row) sum = NibbleOrder::restore(sum);
        };
        sum_runs(block, add, restore, [](int64_t, int64_t, float *) {});
    }

    const uint8_t *codes_at(int64_t row, int64_t byte) const {
        return static_cast<const uint8_t *>(args_.w.data) + row * stride_ + byte;
    }
    // The codes of the next 8 rows are fetched in sequence, a run's part of them in its turn: a
    // quarter while its scales are read, when nothing else would keep memory busy, the rest by the
    // loops, from codes_ahead on. LUT8's fetch them all, and so do S8's where streams are paged or
    // scales are read where they are used.
    void load_scales(const Run &run) {
        groups_.load(run.row, run.first, run.last, next_codes(run), quarter(run));
    }
    const uint8_t *next_codes(const Run &run) const {
        return codes_at(run.row + 8, run.first * args_.w.layout->bits);
    }
    const uint8_t *codes_ahead(const Run &run) const { return next_codes(run) + quarter(run); }

    const LinearArgs &args_;
    Groups8 groups_;
    AffineCodes<Avx512> codes_;
    NibbleOrder order_;
    int64_t stride_;  // bytes
    int64_t run_;     // columns at once
    const bool paged_;
    const bool few_fills_;
    const bool lowered_;
    const ScalesInRows scales_in_rows_, minima_in_rows_;
    bool in_rows_;  // S8: scales and minima are read where they are used

  private:
    int64_t quarter(const Run &run) const {
        return paged_ || in_rows_ ? 0 : (run.last - run.first) * args_.w.layout->bits / 4;
    }
};

}  // namespace
}  // namespace qk::cpu

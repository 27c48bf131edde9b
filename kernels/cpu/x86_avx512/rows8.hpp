// 8 rows of w stored row by row, and what every kernel over them needs: the addresses of codes,
// scales and zeros ready to multiply, nibbles in the lanes of a vector.
#pragma once
#include "cpu/x86_avx512/isa.hpp"

#include "cpu/linear/gemv.hpp"
#include "cpu/x86_avx512/groups8.hpp"
#include "cpu/x86_avx512/scales_in_rows.hpp"

namespace qk::cpu {
namespace {

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

    // Groups of a run from a column on, one after the other: body(group of the run, first, end of
    // its columns), whole steps of 16.
    template <class Body>
    QK_INLINE void for_each_group(const Run &run, int64_t column, const Body &body) const {
        const int64_t size = args_.w.geometry.group_size, last = run.last & ~int64_t{15};
        int64_t number = column / size;
        for (int64_t end = (number + 1) * size; column < last; end += size, ++number) {
            const int64_t here = min64(end, last);
            body(number - run.group, column, here);
            column = here;
        }
    }

    // A weight of 16 columns of one row of w by each row of x.
    template <int kCount>
    QK_INLINE static void add_products(Lanes<Avx512> weight, const Lanes<Avx512> (&x)[kCount],
                                       int row, SumsOf<Avx512, kCount> &sums) {
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            sums[j].row[row] = Avx512::fma(weight, x[j], sums[j].row[row]);
        }
    }

    int64_t last_group(const Run &run) const {
        return (run.last - 1) / args_.w.geometry.group_size - run.group;
    }

    const uint8_t *codes_at(int64_t row, int64_t byte) const {
        return static_cast<const uint8_t *>(args_.w.data) + row * stride_ + byte;
    }
    // The codes of the next 8 rows are fetched in sequence, a run's part of them in its turn: a
    // quarter while its scales are read, when nothing else would keep memory busy, the rest by the
    // loops, from codes_ahead on. Loops over nibbles, whose scales take too little time, fetch
    // all of them unless groups straddle rows; so do LUT8's, and S8's where streams are paged or
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
    bool in_rows_;  // scales and minima are read where they are used

  private:
    int64_t quarter(const Run &run) const {
        const bool by_loops =
            paged_ || in_rows_ || (args_.w.layout->bits == 4 && !args_.w.geometry.flat);
        return by_loops ? 0 : (run.last - run.first) * args_.w.layout->bits / 4;
    }
};

}  // namespace
}  // namespace qk::cpu

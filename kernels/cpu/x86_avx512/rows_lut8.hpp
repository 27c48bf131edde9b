// 8 rows of LUT8 against one or two rows of x, in groups of any size. 64 codes take 33
// instructions, most of them byte permutes; the table fills half of the registers. Four rows take
// turns, so that no sum waits for itself: the 64 products of a row are four additions, one after
// the other.
//
// Where groups are whole steps of 64 columns, a row has one scale for all of them. Elsewhere each
// column gets a scale of its own: 64 columns at a time where a group ends among them, which leaves
// the others as they are; in groups of fewer than 64 columns 256 at a time.
#pragma once
#include "cpu/x86_avx512/look_up_blends.hpp"
#include "cpu/x86_avx512/rows8.hpp"

namespace qk::cpu {
namespace {

class Lut8Rows8 : Rows8 {
  public:
    explicit Lut8Rows8(const LinearArgs &args)
        : Rows8(args), x_(args.x), group_of_code_(args.w.geometry) {
        const Geometry &s = args.w.geometry;
        whole_ = !s.flat && (s.group_size % 64 == 0 || s.groups_per_row == 1);
        load_nested_code(args.w.table, &table_);
        if ((traits() & kOneShuffle) == 0) return;
        kind_ = is_mirrored(table_.value) ? TableKind::kMirrored : TableKind::kBlends;
    }

    void run(int64_t block) {
        sum_runs(block, [&](const Run &run, Sums<Avx512> *sums) QK_INLINE {
            switch (kind_) {
                case TableKind::kMirrored: return add_as<TableKind::kMirrored>(run, sums);
                case TableKind::kBlends: return add_as<TableKind::kBlends>(run, sums);
                default: return add_as<TableKind::kAny>(run, sums);
            }
        });
    }

  private:
    template <TableKind kind>
    void add_as(const Run &run, Sums<Avx512> *sums) {
        args_.x.rows == 1 ? add_run<kind, 1>(run, x_.of(run), sums)
                          : add_run<kind, 2>(run, x_.of(run), sums);
    }
    template <TableKind kind, int kCount>
    void add_run(const Run &run, const XOfRun &x, Sums<Avx512> *sums) const {
        for (int i = 0; i < 8; i += kTogether) {
            if (whole_) {
                add_whole<kind, kCount>(run, i, x, sums);
            } else if (args_.w.geometry.group_size >= 64) {
                add_ends<kind, kCount>(run, i, x, sums);
            } else {
                add_any<kind, kCount>(run, i, x, sums);
            }
        }
    }

    static constexpr int kTogether = 4;      // rows
    static constexpr int64_t kSpread = 256;  // columns whose scales are spread at a time

    // A multiple of 64 columns, or a row's last: of rows `first` and on. scale(row, column) is
    // asked once for 64 columns, and what it returns for each 16 of them, by their number.
    template <int kCount>
    using SumsTogether = Lanes<Avx512>[kCount][kTogether];

    template <TableKind kind, int kCount, class ScaleOf>
    QK_INLINE void add(const Plane (&planes)[4], const uint8_t *codes, const uint8_t *ahead,
                       const XOfRun &x, int64_t columns, const ScaleOf &scale,
                       SumsTogether<kCount> &sum) const {
        int64_t c = 0;
        for (; c + 64 <= columns; c += 64) {
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                prefetch_stream(ahead + kTogether * c + 64 * i);
                if (kind != TableKind::kAny) prefetch(codes + i * stride_ + c + 256);
                const auto of_64 = scale(i, c);
                look_up_64_as<kind>(planes, _mm512_loadu_si512(codes + i * stride_ + c),
                                    [&](__m512i bits, int quarter) QK_INLINE {
                    const int64_t at = c + 16 * quarter;
                    const Lanes<Avx512> weight =
                        Avx512::mul({_mm512_castsi512_ps(bits)}, of_64(quarter));
                    QK_UNROLL
                    for (int j = 0; j < kCount; ++j) {
                        const Lanes<Avx512> of_x = Avx512::load_f32(x.row[j] + 4 * at);
                        sum[j][i] = Avx512::fma(weight, of_x, sum[j][i]);
                    }
                });
            }
        }
        if (c == columns) return;
        const __mmask64 mask = (__mmask64(1) << (columns - c)) - 1;
        for (int i = 0; i < kTogether; ++i) {
            const auto of_64 = scale(i, c);
            look_up_64_as<kind>(planes, _mm512_maskz_loadu_epi8(mask, codes + i * stride_ + c),
                                [&](__m512i bits, int quarter) QK_INLINE {
                const int64_t at = c + 16 * quarter;
                const Mask<Avx512> some = {__mmask16(mask >> 16 * quarter)};
                const Lanes<Avx512> weight =
                    Avx512::mul({_mm512_castsi512_ps(bits)}, of_64(quarter));
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Avx512> of_x = Avx512::load_f32(x.row[j] + 4 * at, some);
                    sum[j][i] = Avx512::fma_where(some, weight, of_x, sum[j][i]);
                }
            });
        }
    }

    template <TableKind kind, int kCount>
    QK_NOINLINE void add_whole(const Run &run, int first, const XOfRun &x,
                               Sums<Avx512> *sums) const {
        const int64_t size = args_.w.geometry.group_size, columns = run.last - run.first;
        const uint8_t *const codes = codes_at(run.row + first, run.first);
        const uint8_t *const ahead = codes_at(run.row + 8, run.first * 8) + first * columns;
        Plane planes[4];
        for (int p = 0; p < 4; ++p) planes[p] = load_plane(table_.plane[p]);
        SumsTogether<kCount> sum;
        take<kCount>(sums, first, sum);
        int64_t end = (run.group + 1) * size - run.first;
        for (int64_t at = 0, group = 0; at < columns; end += size, ++group) {
            const int64_t next = min64(end, columns);
            const auto scale = [&](int i, int64_t) QK_INLINE {
                const float *const of_group = groups_.scale[first + i] + group;
                return [=](int) QK_INLINE { return Avx512::splat(*of_group); };
            };
            add<kind, kCount>(planes, codes + at, ahead + kTogether * at, x.from(at), next - at,
                              scale, sum);
            at = next;
        }
        give<kCount>(sum, first, sums);
    }

    // A row's scales, 64 columns after the other, in groups of 64 columns and more. Past a run's
    // last one there is room, and lanes that nothing takes have what is there.
    struct Walk {
        int64_t left;        // columns of the group
        const float *scale;  // the group's
        alignas(64) float of_group[64];
        alignas(64) float of_both[64];  // of two groups

        void start(const float *from, int64_t columns) {
            left = columns, scale = from;
            put_group();
        }
        QK_INLINE const float *next_64(int64_t size) {
            if (left >= 64) {
                left -= 64;
                return of_group;
            }
            const uint64_t past = ~uint64_t{0} << left;
            const __m512 first = _mm512_set1_ps(scale[0]), second = _mm512_set1_ps(scale[1]);
            QK_UNROLL
            for (int quarter = 0; quarter < 4; ++quarter) {
                _mm512_store_ps(
                    of_both + 16 * quarter,
                    _mm512_mask_blend_ps(__mmask16(past >> 16 * quarter), first, second));
            }
            left += size - 64;
            ++scale;
            put_group();
            return of_both;
        }

      private:
        void put_group() {
            for (int quarter = 0; quarter < 4; ++quarter) {
                _mm512_store_ps(of_group + 16 * quarter, _mm512_set1_ps(*scale));
            }
        }
    };

    template <TableKind kind, int kCount>
    QK_NOINLINE void add_ends(const Run &run, int first, const XOfRun &x,
                              Sums<Avx512> *sums) const {
        const Geometry &s = args_.w.geometry;
        const int64_t size = s.group_size, columns = run.last - run.first;
        Walk walk[kTogether];
        for (int i = 0; i < kTogether; ++i) {
            const int64_t at = (s.flat ? (run.row + first + i) * s.k : 0) + run.first;
            walk[i].start(groups_.scale[first + i], (group_of_code_(at) + 1) * size - at);
        }
        Plane planes[4];
        for (int p = 0; p < 4; ++p) planes[p] = load_plane(table_.plane[p]);
        SumsTogether<kCount> sum;
        take<kCount>(sums, first, sum);
        const auto scale = [&](int i, int64_t) QK_INLINE {
            const float *const from = walk[i].next_64(size);
            return [=](int quarter) QK_INLINE { return Avx512::load_f32(from + 16 * quarter); };
        };
        add<kind, kCount>(planes, codes_at(run.row + first, run.first),
                          codes_at(run.row + 8, run.first * 8) + first * columns, x, columns, scale,
                          sum);
        give<kCount>(sum, first, sums);
    }

    template <TableKind kind, int kCount>
    QK_NOINLINE void add_any(const Run &run, int first, const XOfRun &x, Sums<Avx512> *sums) const {
        const int64_t columns = run.last - run.first;
        const uint8_t *const codes = codes_at(run.row + first, run.first);
        const uint8_t *const ahead = codes_at(run.row + 8, run.first * 8) + first * columns;
        float room[kTogether][kSpread + 16];
        SumsTogether<kCount> sum;
        take<kCount>(sums, first, sum);
        for (int64_t at = 0; at < columns; at += kSpread) {
            const int64_t some = min64(kSpread, columns - at);
            for (int i = 0; i < kTogether; ++i) spread(run, first + i, at, some, room[i]);
            Plane planes[4];
            for (int p = 0; p < 4; ++p) planes[p] = load_plane(table_.plane[p]);
            const auto scale = [&](int i, int64_t column) QK_INLINE {
                const float *const from = room[i] + column;
                return [=](int quarter) QK_INLINE { return Avx512::load_f32(from + 16 * quarter); };
            };
            add<kind, kCount>(planes, codes + at, ahead + kTogether * at, x.from(at), some, scale,
                              sum);
        }
        give<kCount>(sum, first, sums);
    }

    template <int kCount>
    QK_INLINE static void take(const Sums<Avx512> *sums, int first, SumsTogether<kCount> &to) {
        for (int j = 0; j < kCount; ++j) {
            for (int i = 0; i < kTogether; ++i) to[j][i] = sums[j].row[first + i];
        }
    }
    template <int kCount>
    QK_INLINE static void give(const SumsTogether<kCount> &sum, int first, Sums<Avx512> *to) {
        for (int j = 0; j < kCount; ++j) {
            for (int i = 0; i < kTogether; ++i) to[j].row[first + i] = sum[j][i];
        }
    }

    // The scale of each of `count` columns of a run, from its column `at` on; past them anything.
    // A group starts where the one before is overwritten.
    void spread(const Run &run, int row, int64_t at, int64_t count, float *to) const {
        const Geometry &s = args_.w.geometry;
        const int64_t start = (s.flat ? (run.row + row) * s.k : 0) + run.first;
        const int64_t group = group_of_code_(start + at);
        const float *scale = groups_.scale[row] + group - group_of_code_(start);
        int64_t next = (group + 1) * s.group_size - start - at;
        for (int64_t c = 0; c < count; ++scale, next += s.group_size) {
            for (; c < min64(next, count); c += 16)
                Avx512::store_f32(to + c, Avx512::splat(*scale));
            c = next;
        }
    }

    RunsOfX x_;
    const GroupOfCode group_of_code_;
    bool whole_;
    TableKind kind_ = TableKind::kAny;
    NestedCode table_;
};

}  // namespace
}  // namespace qk::cpu

// One or two rows of x over rows as files store them whose groups straddle them (flat): each of the
// 8 rows walked side by side has its own columns where a group ends, in the middle of a step of 16
// too. How codes of a kind become weights is a Codes':
//
//     Codes::Group, what weights of a group take; Codes::kStepBytes, of 16 columns
//     group(row, number), weights(group, codes), x_of(x), first(columns), a mask
//
// One row of x takes signed bytes in groups of 64 columns and more 64 columns of a row at a time, a
// line of memory: whether a group ends among them is asked once. Two have no registers for that.
#pragma once
#include "cpu/x86_avx512/look_up_planes.hpp"
#include "cpu/x86_avx512/rows8.hpp"

namespace qk::cpu {
namespace {

// Nibbles: 16 weights to be looked up.
class FlatNibbles {
  public:
    using Group = Table<Avx512>;
    static constexpr int64_t kStepBytes = 8;
    static constexpr bool kTakesLines = false;

    FlatNibbles(const Weight &w, const Groups8 &scales, const Groups8 &minima)
        : scales_(scales), minima_(minima), codes_(w), order_(w), lowered_(has_minimum(w)) {}

    QK_INLINE Group group(int row, int64_t number) const {
        const Group entries = codes_.of_zero(scales_.zero[row][number]);
        const Group weights = Avx512::scale_table(entries, scales_.scale[row][number]);
        return lowered_ ? Avx512::lower_table(weights, minima_.scale[row][number]) : weights;
    }
    QK_INLINE Lanes<Avx512> weights(const Group &group, const uint8_t *codes) const {
        return order_.look_up(group, codes);
    }
    static Lanes<Avx512> x_of(Lanes<Avx512> x) { return NibbleOrder::permute(x); }
    static Mask<Avx512> first(int64_t columns) { return NibbleOrder::mask(columns); }

  private:
    const Groups8 &scales_, &minima_;
    const AffineCodes<Avx512> codes_;
    const NibbleOrder order_;
    const bool lowered_;
};

// Signed bytes.
template <bool lowered>
class FlatBytes {
  public:
    struct Group {
        Lanes<Avx512> scale, minus;
    };
    static constexpr int64_t kStepBytes = 16;
    static constexpr bool kTakesLines = true;

    FlatBytes(const Weight &, const Groups8 &scales, const Groups8 &minima)
        : scales_(scales), minima_(minima) {}

    QK_INLINE Group group(int row, int64_t number) const {
        const Lanes<Avx512> scale = Avx512::splat(scales_.scale[row][number]);
        return {scale, lowered ? Avx512::splat(-minima_.scale[row][number]) : scale};
    }
    QK_INLINE Lanes<Avx512> weights(const Group &group, const uint8_t *codes) const {
        const Lanes<Avx512> weights = Avx512::mul(Avx512::load_s8(codes), group.scale);
        return lowered ? Avx512::add(weights, group.minus) : weights;
    }
    static Group mix(__mmask16 next, const Group &group, const Group &of_next) {
        return {{_mm512_mask_blend_ps(next, group.scale.v, of_next.scale.v)},
                {_mm512_mask_blend_ps(next, group.minus.v, of_next.minus.v)}};
    }
    static Lanes<Avx512> x_of(Lanes<Avx512> x) { return x; }
    static Mask<Avx512> first(int64_t columns) { return Avx512::first_lanes(columns); }

  private:
    const Groups8 &scales_, &minima_;
};

template <class Codes>
class FlatRows8 : Rows8 {
  public:
    explicit FlatRows8(const LinearArgs &args)
        : Rows8(args), minima_(args.w, args.w.minimum), x_(args.x),
          of_codes_(args.w, groups_, minima_) {}

    void run(int64_t block) {
        sum_runs(block, [&](const Run &run, Sums<Avx512> *sums) QK_INLINE {
            if (has_minimum(args_.w)) minima_.load(run.row, run.first, run.last);
            args_.x.rows == 1 ? add<1>(run, x_.of(run), sums) : add<2>(run, x_.of(run), sums);
        });
    }

  private:
    static constexpr int64_t kStepBytes = Codes::kStepBytes;
    using Group = typename Codes::Group;

    // Where a row is in its groups.
    struct Place {
        int64_t left[8];  // columns of the group
        int64_t number[8];
    };

    // At the run's column `first`.
    QK_INLINE Place place_of(const Run &run, int64_t first) const {
        const Geometry &s = args_.w.geometry;
        const GroupOfCode group_of_code(s);
        Place place;
        QK_UNROLL
        for (int i = 0; i < 8; ++i) {
            const int64_t row = (run.row + i) * s.k, group = group_of_code(row + first);
            place.left[i] = (group + 1) * s.group_size - row - first;
            place.number[i] = group - group_of_code(row + run.first);
        }
        return place;
    }

    template <int kCount>
    void add(const Run &run, const XOfRun &x, Sums<Avx512> *total) const {
        int64_t done = 0;
        if constexpr (Codes::kTakesLines && kCount == 1) {
            if (args_.w.geometry.group_size >= 64) {
                done = (run.last - run.first) / 64 * 64;
                add_lines(run, x.row[0], done / 64, total);
            }
        }
        if (run.first + done < run.last) {
            add_steps<kCount>(run, run.first + done, x.from(done), total);
        }
    }

    // 64 columns of each row, one after the other: one scale, or two.
    QK_NOINLINE void add_lines(const Run &run, const char *x, int64_t lines,
                               Sums<Avx512> *total) const {
        const int64_t size = args_.w.geometry.group_size;
        Codes8 codes(codes_at(run.row, run.first), stride_);
        const uint8_t *ahead = codes_ahead(run);
        Place place = place_of(run, run.first);
        Sums<Avx512> sums = *total;  // a copy that nothing points to stays in registers
        for (; lines > 0; --lines, ahead += paged_ ? 512 : 384) {
            Lanes<Avx512> of_x[4];
            QK_UNROLL
            for (int step = 0; step < 4; ++step) of_x[step] = Avx512::load_f32(x + 64 * step);
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                if (i < 6 || paged_) fetch_later(ahead + 64 * i, few_fills_);  // or three quarters
                const auto add_step = [&](int step, const Group &group) QK_INLINE {
                    const Lanes<Avx512> weights =
                        of_codes_.weights(group, codes.row(i) + 16 * step);
                    sums.row[i] = Avx512::fma(weights, of_x[step], sums.row[i]);
                };
                const Group group = of_codes_.group(i, place.number[i]);
                if (place.left[i] >= 64) {
                    QK_UNROLL
                    for (int step = 0; step < 4; ++step) add_step(step, group);
                } else {
                    const uint64_t past = ~uint64_t{0} << place.left[i];
                    const Group next = of_codes_.group(i, ++place.number[i]);
                    QK_UNROLL
                    for (int step = 0; step < 4; ++step) {
                        add_step(step, Codes::mix(__mmask16(past >> 16 * step), group, next));
                    }
                    place.left[i] += size;
                }
                place.left[i] -= 64;
            }
            codes.advance(64);
            x += 256;
        }
        *total = sums;
    }

    template <int kCount>
    QK_NOINLINE void add_steps(const Run &run, int64_t first, XOfRun x, Sums<Avx512> *total) const {
        Codes8 codes(codes_at(run.row, first / 16 * kStepBytes), stride_);
        const uint8_t *ahead = codes_ahead(run) + (first - run.first) / 16 * 6 * kStepBytes;
        Place place = place_of(run, first);
        Group group[8];
        QK_UNROLL
        for (int i = 0; i < 8; ++i) group[i] = of_codes_.group(i, place.number[i]);
        SumsOf<Avx512, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        int64_t column = first;
        for (; column + 16 <= run.last; column += 16, ahead += 6 * kStepBytes) {
            for (int64_t i = 0; i < 8 * kStepBytes; i += 64) fetch_later(ahead + i, few_fills_);
            Lanes<Avx512> of_x[kCount];
            for (int j = 0; j < kCount; ++j) of_x[j] = Codes::x_of(Avx512::load_f32(x.row[j]));
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                add_products(step(codes.row(i), i, 16, place, group[i]), of_x, i, sums);
            }
            codes.advance(kStepBytes);
            x.advance(64);
        }
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
        const int64_t count = run.last - column;
        if (count == 0) return;
        const Mask<Avx512> mask = Codes::first(count);
        for (int i = 0; i < 8; ++i) {
            uint8_t bytes[16] = {};
            memcpy(bytes, codes.row(i), size_t(ceil_div(count * kStepBytes, 16)));
            const Lanes<Avx512> weights = step(bytes, i, count, place, group[i]);
            for (int j = 0; j < kCount; ++j) {
                const Lanes<Avx512> of_x =
                    Codes::x_of(Avx512::load_f32(x.row[j], Avx512::first_lanes(count)));
                total[j].row[i] = Avx512::fma_where(mask, weights, of_x, total[j].row[i]);
            }
        }
    }

    // The weights of a row's next `count` columns. No step has more than one place where a group
    // ends: groups are of 16 columns or more, or of a row and more.
    QK_INLINE Lanes<Avx512> step(const uint8_t *codes, int row, int64_t count, Place &place,
                                 Group &group) const {
        const Lanes<Avx512> weights = of_codes_.weights(group, codes);
        int64_t &left = place.left[row];
        if (left >= count) {
            left -= count;
            return weights;
        }
        const Mask<Avx512> before = Codes::first(left);
        group = of_codes_.group(row, ++place.number[row]);
        left += args_.w.geometry.group_size - count;
        const Lanes<Avx512> next = of_codes_.weights(group, codes);
        return {_mm512_mask_blend_ps(before.v, next.v, weights.v)};
    }

    Groups8 minima_;
    RunsOfX x_;
    const Codes of_codes_;
};

}  // namespace
}  // namespace qk::cpu

// One or two rows of x over rows as files store them whose groups straddle them (flat): each of the
// 8 rows walked side by side has its own columns where a group ends, in the middle of a step of 16
// too. How codes of a kind become weights is a Codes':
//
//     Codes::Group, what weights of a group take; Codes::kStepBytes, of 16 columns
//     group(row, number), weights(group, codes), x_of(x), first(columns), a mask
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

    template <int kCount>
    QK_NOINLINE void add(const Run &run, XOfRun x, Sums<Avx512> *total) const {
        const Geometry &s = args_.w.geometry;
        Codes8 codes(codes_at(run.row, run.first / 16 * kStepBytes), stride_);
        const uint8_t *ahead = codes_ahead(run);
        const GroupOfCode group_of_code(s);
        Place place;
        Group group[8];
        QK_UNROLL
        for (int i = 0; i < 8; ++i) {
            const int64_t at = (run.row + i) * s.k + run.first;
            place.left[i] = (group_of_code(at) + 1) * s.group_size - at;
            place.number[i] = 0;
            group[i] = of_codes_.group(i, 0);
        }
        SumsOf<Avx512, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        int64_t column = run.first;
        for (; column + 16 <= run.last; column += 16, ahead += 6 * kStepBytes) {
            for (int64_t i = 0; i < 8 * kStepBytes; i += 64) prefetch(ahead + i);
            Lanes<Avx512> of_x[kCount];
            for (int j = 0; j < kCount; ++j) of_x[j] = Codes::x_of(Avx512::load_f32(x.row[j]));
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                const Lanes<Avx512> weights = step(codes.row(i), i, 16, place, group[i]);
                for (int j = 0; j < kCount; ++j) {
                    sums[j].row[i] = Avx512::fma(weights, of_x[j], sums[j].row[i]);
                }
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

// What minima take off a row of x as integers (docs/formats.md, "One row of integers"): a group's
// minimum times the sum of x over its columns, in four sums of a row, one for every fourth group.
// Minima come as f32 [group][8 rows], so 16 lanes are two groups. From where is a Source's:
//
//     Source(weight, plane, device), kMost;  load(row, first, count)      groups of 8 rows
#pragma once
#include "cpu/linear/row_of_x.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
class PackedMinima {
  public:
    static constexpr int64_t kMost = kPanelGroups;

    PackedMinima(const Weight &w, const ScalePlane &plane, const Device &device)
        : w_(w), plane_(plane), panel_(w, plane, device) {}
    // A row's panels are read one right after the other, so it is the next row's that are fetched.
    const char *load(int64_t row, int64_t first, int64_t count) {
        const int64_t group = (row / 8 + 1) * w_.geometry.groups_per_row + first;
        const int64_t bytes = plane_.format->bits;  // of 8 rows
        const uint8_t *const next = static_cast<const uint8_t *>(plane_.data) + group * bytes;
        for (int64_t i = 0; i < count * bytes; i += 64) prefetch_stream(next + i);
        return panel_.load(row / 8, first, count);
    }

  private:
    const Weight &w_;
    const ScalePlane &plane_;
    ScalePanel<Isa> panel_;
};

// What the columns of groups of a row of x add up to: computed once for all rows of w where all
// groups have room.
template <class Isa>
class SumsOfGroups {
  public:
    explicit SumsOfGroups(const LinearArgs &args)
        : args_(args), most_(kMost / args.x.rows), whole_(args.w.geometry.groups_per_row < most_) {
        if (!has_minimum(args.w) || !whole_) return;
        for (int64_t j = 0; j < args.x.rows; ++j) fill(j, 0, args.w.geometry.groups_per_row);
    }

    // Of a run of groups, from the start of a block on, with a 0 after the last.
    const float *of(int64_t x_row, int64_t first, int64_t count) {
        if (!whole_) fill(x_row, first, count);
        return sums_of(x_row) + (whole_ ? first : 0);
    }

  private:
    static constexpr int64_t kMost = 2304;  // groups: 36864 columns in groups of 16

    float *sums_of(int64_t x_row) { return sums_ + x_row * most_; }

    QK_NOINLINE void fill(int64_t x_row, int64_t first, int64_t count) {
        const int64_t size = args_.w.geometry.group_size, end = args_.x.columns;
        const int64_t start = x_row * row_stride(args_.x);
        float *to = sums_of(x_row), *const last_one = to + count;
        for (int64_t column = first * size; to < last_one; column += kBlock) {
            alignas(64) float x[kBlock] = {};
            alignas(64) int32_t q[kBlock];
            widen_x<Isa>(args_.x, start + column, min64(kBlock, end - column), x);
            const float unit = integers_of(x, kBlock, q);
            for (int64_t c = 0; c < kBlock && to < last_one; ++to) {
                int32_t sum = 0;
                for (const int64_t last = c + size; c < last; ++c) sum += q[c];
                *to = unit * float(sum);
            }
        }
        *to = 0;
    }

    const LinearArgs &args_;
    const int64_t most_;  // groups of a row of x, and one that does not count
    const bool whole_;    // sums are kept for all rows of w
    float sums_[kMost];   // by twos: of an odd count's last two one counts
};

template <class Isa, class Source = PackedMinima<Isa>>
class MinimaOfGroups {
  public:
    MinimaOfGroups(const LinearArgs &args, const Device &device)
        : args_(args), lowered_(has_minimum(args.w)),
          source_(args.w, lowered_ ? args.w.minimum : args.w.scale, device), sums_(args) {}

    // Off y of 8 rows of w and one of x, where there are minima.
    void take_off(int64_t x_row, int64_t row, float *y) {
        const int64_t groups = args_.w.geometry.groups_per_row;
        if (!lowered_) return;
        Lanes<Isa> low[2] = {Isa::zero_lanes(), Isa::zero_lanes()};
        for (int64_t first = 0; first < groups; first += Source::kMost) {
            const int64_t count = min64(Source::kMost, groups - first);
            const float *const sums = sums_.of(x_row, first, count);
            add(source_.load(row, first, count), sums, count, low);
        }
        float both[16];
        Isa::store_f32(both, Isa::add(low[0], low[1]));
        for (int row = 0; row < 8; ++row) y[row] -= both[row] + both[row + 8];
    }

  private:
    static void add(const char *minima, const float *sums, int64_t count, Lanes<Isa> (&low)[2]) {
        int64_t left = count;
        for (; left >= 4; left -= 4, minima += 128, sums += 4) {
            low[0] = Isa::fma(Isa::load_f32(minima), Isa::splat_two(sums), low[0]);
            low[1] = Isa::fma(Isa::load_f32(minima + 64), Isa::splat_two(sums + 2), low[1]);
        }
        for (int i = 0; left > 0; ++i, left -= 2, minima += 64, sums += 2) {
            const Mask<Isa> mask = Isa::first_lanes(left * 8);
            low[i] =
                Isa::fma_where(mask, Isa::load_f32(minima, mask), Isa::splat_two(sums), low[i]);
        }
    }

    const LinearArgs &args_;
    const bool lowered_;
    Source source_;  // of the scales where there are no minima
    SumsOfGroups<Isa> sums_;
};

}  // namespace
}  // namespace qk::cpu

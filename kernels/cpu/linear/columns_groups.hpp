// Scales and zeros of a strip of rows of w in layouts that store them group by group, and how a
// tile multiplies them.
#pragma once
#include "base/fused.hpp"
#include "cpu/linear/columns_tile.hpp"
#include "cpu/linear/row_of_x.hpp"
#include "cpu/shared/transpose.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kStripRows = 1024;

// Dwords of 8 rows in order, and as the bytes of an awq_gemm word have them: low and high nibbles.
inline void to_awq_quads(Quad a, Quad b, Quad *low, Quad *high) {
    *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
inline void from_awq_quads(Quad low, Quad high, Quad *a, Quad *b) {
    *a = __builtin_shufflevector(low, high, 0, 2, 4, 6);
    *b = __builtin_shufflevector(low, high, 1, 3, 5, 7);
}

template <class Body>
QK_INLINE inline void for_each_quarter(const Body &body) {
    body.template operator()<0>();
    body.template operator()<1>();
    body.template operator()<2>();
    body.template operator()<3>();
}

// kRows: of x.
template <class Isa, class Layout, int64_t kRows>
class StripGroups {
  public:
    using Tile = TileGroup<Isa, Layout, kRows>;
    using Units = float[kRows];  // of each row of x
    static constexpr int64_t kTileRows = Isa::kWide * Layout::kRows;
    // Tiles whose lines are taken unit by unit, each a run. Fewer of gptq's, whose scales are held
    // four times.
    static constexpr int64_t kTilesTogether = (Layout::quads ? 128 : kStripRows) / kTileRows;

    StripGroups(const Weight &w, const Device &device, bool integers)
        : w_(w), widen_(pick_nested_widener<Isa>(device)) {
        const bool table = w.format->kind == FormatKind::kLut4;
        const uint32_t middle = has_minimum(w) ? 0 : 8;  // of integers without zeros
        zero_words_ = 0x11111111u * (!table ? middle : integers ? RaisedEntries::kRaise : 0);
        if (has_coded_scales(w.scale)) load_nested_code(w.scale.code, &code_);
    }

    void start(int64_t row, int64_t rows) {
        row_ = row;
        rows_ = rows;
        first_ = count_ = 0;
    }

    // Those of columns column .. end, a block.
    QK_NOINLINE void load(int64_t column, int64_t end) {
        const int64_t size = w_.geometry.group_size, k = w_.geometry.k;
        const int64_t first = column / size, count = ceil_div(end, size) - first;
        for (int64_t i = 0; i < 8; ++i) {
            of_step_[i] = min64(column + 16 * i, end - 1) / size - first;
        }
        if (first == first_ && count == count_) return;
        first_ = first;
        count_ = count;
        for (int64_t g = 0; g < count; ++g) load_group(first + g, &group_[g]);
        const int64_t next = min64(ceil_div(min64(end + kBlock, k), size), first + 2 * count);
        for (int64_t g = first + count; g < next; ++g) fetch(g);
    }

    // A group's numbers for `count` of the strip's tiles: zeros as integers' operands and scales
    // times `units`, or as floats.
    template <bool integers>
    const Tile *prepare(int64_t group, int64_t tile, int64_t count, const Units &units) {
        for (int64_t i = 0; i < count; ++i)
            prepare_tile<integers>(group, tile + i, units, &tile_[i]);
        return tile_;
    }
    // Of one tile, as floats, all groups of the block.
    const Tile *prepare_floats(int64_t tile) {
        for (int64_t g = 0; g < count_; ++g) prepare_tile<false>(g, tile, {0}, &tile_[g]);
        return tile_;
    }
    // The same of integers for rows in sequence, each once.
    QK_NOINLINE const Tile *prepare_rows(int64_t group, int64_t tile, int64_t count,
                                         const Units &units) {
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = (tile + i) * kTileRows;
            put<true>(Isa::load_wide(group_[group].scale + row),
                      Isa::nibbles_in_order(group_[group].zero, row), units, 0, &tile_[i]);
        }
        return tile_;
    }
    // A group's, and words of zeros, of the strip's rows.
    const float *scales(int64_t group) const { return group_[group].scale; }
    const uint32_t *zeros(int64_t group) const { return group_[group].zero; }
    const int64_t *of_step() const { return of_step_; }  // the group of each step of 16 columns

    // A group's numbers of the strip's rows, scales or minima, which have one code.
    void load_plane(const ScalePlane &plane, int64_t group, float *to) const {
        const int64_t at = group * w_.geometry.n + row_;
        if (has_coded_scales(plane)) {
            load_nested(plane, group, at, to);
        } else {
            widen_x<Isa>({plane.format, 1, rows_, plane.data}, at, rows_, to);
        }
    }

  private:
    // Of the strip, in order. One array of both: GCC 12 walks two by one counter where strides let
    // it, takes the base of 0 that this leaves for a null pointer and drops the code.
    struct Group {
        alignas(64) float scale[kStripRows + 128];
        alignas(64) uint32_t zero[kStripRows / 8 + 16];
    };

    void load_group(int64_t group, Group *to) const {
        load_plane(w_.scale, group, to->scale);
        const int64_t words = ceil_div(rows_, 8);
        if (w_.zero == nullptr) {
            for (int64_t i = 0; i < words; ++i) to->zero[i] = zero_words_;
            return;
        }
        const int64_t from = group * ceil_div(w_.geometry.n, 8) + row_ / 8;
        memcpy(to->zero, static_cast<const char *>(w_.zero) + from * 4, size_t(words) * 4);
        if (w_.layout->zero_offset == 0) return;
        for (int64_t i = 0; i < words; ++i) to->zero[i] = nibbles_plus_one(to->zero[i]);
    }

    // Second scales go by the group's number, which differs from row to row.
    void load_nested(const ScalePlane &s, int64_t group, int64_t at, float *to) const {
        int64_t done = 0;
        if (s.second_group == kOneSecond) {  // rows side by side, as the widener takes groups of 8
            const SecondRun all = {s.second, 0, kOneSecond, __builtin_ctzll(kOneSecond), 0, 0};
            widen_(code_, static_cast<const char *>(s.data) + at, rows_ / 8, all,
                   load_as<float>(s.bias, 0), reinterpret_cast<float(*)[8]>(to));
            done = rows_ / 8 * 8;
        }
        const int64_t seconds = w_.geometry.groups_per_row / s.second_group;  // from row to row
        const int64_t step = w_.geometry.groups_per_row % s.second_group;
        const int64_t number = group_number(w_.geometry, {row_ + done, group});
        int64_t second = number / s.second_group, rest = number % s.second_group;
        const float bias = load_as<float>(s.bias, 0);
        for (int64_t i = done; i < rows_; ++i, second += seconds, rest += step) {
            if (rest >= s.second_group) rest -= s.second_group, ++second;
            const float product =
                code_.value[load_as<uint8_t>(s.data, at + i)] * load_as<float>(s.second, second);
            to[i] = product + bias;
        }
    }

    void fetch(int64_t group) const {
        const int64_t size = w_.scale.format->bits / 8;
        fetch_run(w_.scale.data, (group * w_.geometry.n + row_) * size, rows_ * size);
        if (w_.zero == nullptr) return;
        fetch_run(w_.zero, (group * ceil_div(w_.geometry.n, 8) + row_ / 8) * 4, rows_ / 2);
    }
    // The first two lines are loaded: prefetched like the others, a run is not there in time.
    static void fetch_run(const void *plane, int64_t at, int64_t bytes) {
        const uint8_t *const from = static_cast<const uint8_t *>(plane) + at;
        for (int64_t i = 0; i < bytes; i += 64) i < 128 ? load_line(from + i) : prefetch(from + i);
    }
    static void load_line(const uint8_t *line) {
        const uint8_t byte = *line;
        asm volatile("" : : "r"(byte));
    }

    template <bool integers>
    QK_NOINLINE void prepare_tile(int64_t group, int64_t tile, const Units &units, Tile *to) const {
        const int64_t row = tile * kTileRows;
        const Group &from = group_[group];
        if constexpr (Layout::quads) {
            prepare_columns<integers>(from.scale + row, from.zero, row, units, to);
        } else {
            prepare_words<integers>(from.scale + row, from.zero + row / 8, units, to);
        }
    }

    template <bool integers>
    static void put(typename Isa::Floats scale, typename Isa::Bits zero, const Units &units,
                    int64_t vector, Tile *to) {
        for (int64_t j = 0; j < kRows; ++j) {
            Isa::store_wide(to->scale[j][vector],
                            integers ? Isa::splat_wide(units[j]) * scale : scale);
        }
        integers ? Isa::store_bits(to->zero[vector], Isa::minus_zero(zero))
                 : Isa::store_wide(to->zero[vector], Isa::numbers(zero));
    }

    // gptq: every row four times.
    template <bool integers>
    static void prepare_columns(const float *scales, const uint32_t *zeros, int64_t row,
                                const Units &units, Tile *to) {
        const typename Isa::Bits scale = Isa::load_bits(scales);
        const typename Isa::Bits zero = Isa::nibbles_in_order(zeros, row);
        for_each_quarter([&]<int i>() QK_INLINE {
            put<integers>(typename Isa::Floats(Isa::template repeat<i>(scale)),
                          Isa::template repeat<i>(zero), units, i, to);
        });
    }

    // awq_gemm: word 4 q + i to quad q of vectors 2 i and 2 i + 1.
    template <bool integers>
    static void prepare_words(const float *scales, const uint32_t *zeros, const Units &units,
                              Tile *to) {
        float(*const scale)[Isa::kWide] = to->scale[0];
        for (int64_t word = 0; word < Isa::kWide; ++word) {
            Quad a, b, low, high;
            memcpy(&a, scales + 8 * word, 16);
            memcpy(&b, scales + 8 * word + 4, 16);
            to_awq_quads(a, b, &low, &high);
            memcpy(scale[word % 4 * 2] + word / 4 * 4, &low, 16);
            memcpy(scale[word % 4 * 2 + 1] + word / 4 * 4, &high, 16);
        }
        const typename Isa::Bits words = Isa::load_bits(zeros);
        for_each_quarter([&]<int i>() QK_INLINE {
            const typename Isa::Bits word = Isa::template repeat<i>(words);
            put<integers>(Isa::load_wide(scale[2 * i]), Isa::template nibble_of_place<0>(word),
                          units, 2 * i, to);
            put<integers>(Isa::load_wide(scale[2 * i + 1]), Isa::template nibble_of_place<1>(word),
                          units, 2 * i + 1, to);
        });
    }

    const Weight &w_;
    uint32_t zero_words_;  // where there are none
    int64_t row_ = 0, rows_ = 0, first_ = 0, count_ = 0;
    const WidenNested widen_;
    NestedCode code_;
    Group group_[8] = {};
    int64_t of_step_[8] = {};
    Tile tile_[kTilesTogether > 8 ? kTilesTogether : 8];
};

// What minima take off a row of x as integers, as MinimaOfGroups has it: four sums of a row of w,
// one for every fourth group, here of a strip's rows side by side.
template <class Isa>
class StripMinima {
  public:
    explicit StripMinima(const LinearArgs &args) : args_(args) {}

    void start(int64_t row) {
        row_ = row;
        memset(low_, 0, sizeof(low_));
    }
    // Groups of columns column .. end, a block. Nothing is taken off where there are no minima.
    template <class Groups>
    QK_NOINLINE void add(const Groups &groups, int64_t column, int64_t end, int64_t rows) {
        if (!has_minimum(args_.w)) return;
        const int64_t size = args_.w.geometry.group_size;
        alignas(64) float x[kBlock] = {};
        alignas(64) int32_t q[kBlock];
        widen_x<Isa>(args_.x, column, end - column, x);
        const float unit = integers_of(x, kBlock, q);
        for (int64_t at = 0; column + at < end; at += size) {
            int32_t sum = 0;
            for (int64_t c = at; c < at + size; ++c) sum += q[c];
            const int64_t group = (column + at) / size;
            groups.load_plane(args_.w.minimum, group, minimum_);
            add_group(unit * float(sum), rows, low_[group % 4]);
        }
    }
    void take_off(int64_t row, int64_t count, float *y) const {
        for (int64_t i = 0, at = row - row_; i < count; ++i, ++at) {
            y[i] -= (low_[0][at] + low_[2][at]) + (low_[1][at] + low_[3][at]);
        }
    }

  private:
    void add_group(float sum, int64_t rows, float *low) const {
        for (int64_t i = 0; i < rows; ++i) low[i] = fused(minimum_[i], sum, low[i]);
    }

    const LinearArgs &args_;
    int64_t row_ = 0;
    alignas(64) float low_[4][kStripRows];
    alignas(64) float minimum_[kStripRows + 128];
};
struct NoStripMinima {
    explicit NoStripMinima(const LinearArgs &) {}
};

}  // namespace
}  // namespace qk::cpu

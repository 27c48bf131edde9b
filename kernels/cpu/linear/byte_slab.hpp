// A slab of 8-bit codes. Groups have any size, along k or straddling rows: a column has a vector of
// 16 rows' scales, which it shares with the other columns of its group where groups are along k.
#pragma once
#include "cpu/linear/slab.hpp"

namespace qk::cpu {
namespace {

// Scales of 16 rows, or minima, by columns.
template <class Isa>
class ScalesOfColumns {
  public:
    ScalesOfColumns(const Weight &w, const ScalePlane &plane)
        : s_(w.geometry), plane_(plane), read_(w, plane), any_scales_(w, plane, {}) {
        for (int64_t c = 0; c < kSlabColumns; ++c) of[c] = vector_[c];
    }

    // Of columns column .. end, at most kSlabColumns; those past the last have any.
    void load(int64_t row, int64_t rows, int64_t column, int64_t end) {
        if (!s_.flat) return load_along_k(row, rows, column, end);
        for_each_straddling(row, column, end,
                            [this](int64_t c, const Lanes<Isa> &scales)
                                QK_INLINE { Isa::store_f32(vector_[c], scales); });
    }
    // body(c, scales) of each column `column` + c, from registers where groups straddle rows.
    template <class Body>
    QK_INLINE void for_each(int64_t row, int64_t rows, int64_t column, int64_t end,
                            const Body &body) {
        if (s_.flat) return for_each_straddling(row, column, end, body);
        load_along_k(row, rows, column, end);
        for (int64_t c = 0; c < end - column; ++c) body(c, Isa::load_f32(of[c]));
    }

    const float *of[kSlabColumns];

  private:
    static constexpr int64_t kPiece = 8;  // groups

    QK_NOINLINE void load_along_k(int64_t row, int64_t rows, int64_t column, int64_t end) {
        const int64_t size = s_.group_size;
        if (column != column_) {  // divisions take time
            column_ = column, first_ = column / size, groups_ = ceil_div(end, size) - first_;
            int64_t group = 0, next = (first_ + 1) * size - column;
            for (int64_t c = 0; c < kSlabColumns; ++c) {
                if (c == next && group + 1 < groups_) ++group, next += size;
                of[c] = vector_[group];
            }
        }
        if (has_coded_scales(plane_)) {
            float of_row[kSlabColumns + 16];
            for (int64_t i = 0; i < rows; ++i) {
                read_.start(row + i);
                read_.read(first_, groups_, of_row);
                for (int64_t g = 0; g < groups_; ++g) vector_[g][i] = of_row[g];
            }
        } else {
            plane_.format->bits == 16 ? load_plain<uint16_t>(row, rows)
                                      : load_plain<float>(row, rows);
        }
    }
    template <class T>
    QK_INLINE void load_plain(int64_t row, int64_t rows) {
        const int64_t pitch = s_.groups_per_row, first = row * pitch + first_;
        for (int64_t g = 0; g < groups_; ++g) {
            T some[16] = {};
            for (int64_t i = 0; i < rows; ++i) {
                some[i] = load_as<T>(plane_.data, first + g + i * pitch);
            }
            widen_x<Isa>({plane_.format, 1, 16, some}, 0, 16, vector_[g]);
        }
        const uint8_t *const next =
            static_cast<const uint8_t *>(plane_.data) + (first + 16 * pitch) * int64_t(sizeof(T));
        for (int64_t i = 0; i < 16; ++i) prefetch(next + i * pitch * int64_t(sizeof(T)));
    }

    // Each row's groups from its own first one on; after ends[row] of a group's columns the next.
    // As many columns at a time as kPiece groups have.
    template <class Body>
    QK_NOINLINE void for_each_straddling(int64_t row, int64_t column, int64_t end,
                                         const Body &body) {
        const int64_t size = s_.group_size;
        alignas(64) float scale[kPiece + 1][16] = {};
        alignas(64) int32_t ends[16];
        for (int64_t from = column; from < end; from += kPiece * size) {
            const int64_t last = min64(from + kPiece * size, end);
            const int64_t groups = ceil_div(last - from - 1, size) + 1;
            for (int64_t i = 0; i < 16; i += 8) {
                const char *const scales =
                    any_scales_.load_straddling(row + i, from, groups, ends + i);
                for (int64_t g = 0; g < groups; ++g) memcpy(scale[g] + i, scales + g * 32, 32);
            }
            for (int64_t c = from, g = 0; c < last; c += size, ++g) {
                for_each_of_group(scale[g], ends, c - column, min64(size, last - c), body);
            }
        }
    }
    // Columns of a run of a group: 8 at a time are compared with constants.
    template <class Body>
    QK_INLINE static void for_each_of_group(const float *scale, const int32_t *ends, int64_t first,
                                            int64_t count, const Body &body) {
        typedef int32_t Ends __attribute__((vector_size(64)));
        const Lanes<Isa> now = Isa::load_f32(scale), next = Isa::load_f32(scale + 16);
        const int64_t past = first + count;
        Ends left;
        memcpy(&left, ends, sizeof(left));
        for (; first + 8 <= past; first += 8, left -= 8) {
            QK_UNROLL
            for (int32_t i = 0; i < 8; ++i) {
                body(first + i,
                     Isa::where_past(reinterpret_cast<const int32_t *>(&left), i, next, now));
            }
        }
        for (; first < past; ++first, left -= 1) {
            body(first, Isa::where_past(reinterpret_cast<const int32_t *>(&left), 0, next, now));
        }
    }

    const Geometry &s_;
    const ScalePlane &plane_;
    RowScales<Isa> read_;                           // along k
    ScaleBlock<Isa> any_scales_;                    // straddling rows
    int64_t column_ = -1, first_ = 0, groups_ = 0;  // of the columns that `of` is of
    alignas(64) float vector_[kSlabColumns][16] = {};
};

// LUT8's columns, 16 look-ups at a time.
template <class Isa>
void look_up_columns(const NestedCode &code, const uint8_t (*from)[16], int64_t columns,
                     const float *const *scale, float *to, int64_t pitch) {
    const typename Isa::WideTable table(code.value);
    for (int64_t c = 0; c < columns; ++c, to += pitch) {
        Isa::store_f32(to, Isa::mul(table.look_up(from[c]), Isa::load_f32(scale[c])));
    }
}

template <class Isa>
class ByteSlab {
  public:
    ByteSlab(const Weight &w, const Device &device)
        : w_(w), is_s8_(w.format->kind == FormatKind::kS8), lowered_(has_minimum(w)),
          scales_(w, w.scale), minima_(w, lowered_ ? w.minimum : w.scale) {
        const LookUpColumns wider = Isa::columns_lookup(device);
        look_up_ = wider != nullptr ? wider : look_up_columns<Isa>;
        if (w.format->kind == FormatKind::kLut8) load_nested_code(w.table, &table_);
    }

    // As SlabDecoder does.
    void decode(int64_t row, int64_t column, int64_t end, float *to) {
        for (int64_t i = 0; i < kSlab<Isa> && row + i < w_.geometry.n; i += 16) {
            decode_16(row + i, column, end, to + i);
        }
    }

  private:
    void decode_16(int64_t row, int64_t column, int64_t end, float *to) {
        const int64_t rows = min64(16, w_.geometry.n - row), columns = end - column;
        load_codes(row, rows, column, columns);
        if (is_s8_) {
            scales_.for_each(row, rows, column, end,
                             [&](int64_t c, const Lanes<Isa> &scales) QK_INLINE {
                Isa::store_f32(to + c * kSlab<Isa>, Isa::mul(Isa::load_s8(codes_[c]), scales));
            });
        } else {
            scales_.load(row, rows, column, end);
            look_up_(table_, codes_, round_up(columns, 4), scales_.of, to, kSlab<Isa>);
        }
        if (lowered_) lower(row, rows, column, end, to);
    }

    QK_NOINLINE void load_codes(int64_t row, int64_t rows, int64_t column, int64_t columns) {
        const int64_t k = w_.geometry.k;
        const uint8_t *from = static_cast<const uint8_t *>(w_.data) + row * k + column;
        int64_t stride = k;
        for (int64_t i = 0; i < rows; ++i) {
            prefetch_stream(from + i * k + kSlabColumns);
            prefetch_stream(from + i * k + kSlabColumns + 64);
        }
        uint8_t some[16][kSlabColumns];
        if (rows < 16 || columns < kSlabColumns) {
            memset(some, 0, sizeof(some));
            for (int64_t i = 0; i < rows; ++i) memcpy(some[i], from + i * k, size_t(columns));
            from = some[0], stride = kSlabColumns;
        }
        Isa::transpose_bytes(from, stride, codes_);
        if (columns > 64) Isa::transpose_bytes(from + 64, stride, codes_ + 64);
    }

    QK_NOINLINE void lower(int64_t row, int64_t rows, int64_t column, int64_t end, float *to) {
        minima_.load(row, rows, column, end);
        for (int64_t c = 0; c < end - column; ++c, to += kSlab<Isa>) {
            const Lanes<Isa> minus = Isa::mul(Isa::load_f32(minima_.of[c]), Isa::splat(-1));
            Isa::store_f32(to, Isa::add(Isa::load_f32(to), minus));
        }
    }

    const Weight &w_;
    const bool is_s8_, lowered_;
    LookUpColumns look_up_;
    NestedCode table_;  // where there is one
    ScalesOfColumns<Isa> scales_, minima_;
    alignas(64) uint8_t codes_[kSlabColumns][16];
};

}  // namespace
}  // namespace qk::cpu

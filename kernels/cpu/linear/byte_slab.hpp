// A slab of 8-bit codes. Groups have any size, along k or straddling rows: a column has a vector of
// 16 rows' scales, which it shares with its neighbours up to the next one in which a row's group
// starts.
#pragma once
#include "cpu/linear/slab.hpp"

namespace qk::cpu {
namespace {

// Scales of 16 rows, or minima, by columns.
template <class Isa>
class ScalesOfColumns {
  public:
    ScalesOfColumns(const Weight &w, const ScalePlane &plane)
        : s_(w.geometry), plane_(plane), read_(w, plane) {}

    // Of columns column .. end, at most kSlabColumns; those past the last have its own.
    void load(int64_t row, int64_t rows, int64_t column, int64_t end) {
        s_.flat ? load_straddling(row, rows, column, end) : load_along_k(row, rows, column, end);
    }

    const float *of[kSlabColumns];

  private:
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

    QK_NOINLINE void load_straddling(int64_t row, int64_t rows, int64_t column, int64_t end) {
        const int64_t columns = end - column;
        uint16_t starts[kSlabColumns] = {};  // a bit for each row whose next group starts there
        float of_row[16][kSlabColumns + 16];
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t at = (row + i) * s_.k + column, first = at / s_.group_size;
            read_.start(0);
            read_.read(first, (at + columns - 1) / s_.group_size - first + 1, of_row[i]);
            vector_[0][i] = of_row[i][0];
            const int64_t next = (first + 1) * s_.group_size - at;
            for (int64_t c = next; c < columns; c += s_.group_size) {
                starts[c] = uint16_t(starts[c] | 1u << i);
            }
        }
        int64_t now = 0, number[16] = {};
        for (int64_t c = 0; c < kSlabColumns; ++c) {
            if (starts[c] != 0) {
                memcpy(vector_[now + 1], vector_[now], sizeof(vector_[0]));
                ++now;
            }
            for (uint32_t some = starts[c]; some != 0; some &= some - 1) {
                const int i = __builtin_ctz(some);
                vector_[now][i] = of_row[i][++number[i]];
            }
            of[c] = vector_[now];
        }
    }

    const Geometry &s_;
    const ScalePlane &plane_;
    RowScales<Isa> read_;
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
        scales_.load(row, rows, column, end);
        if (is_s8_) {
            for (int64_t c = 0; c < columns; ++c) {
                Isa::store_f32(to + c * kSlab<Isa>,
                               Isa::mul(Isa::load_s8(codes_[c]), Isa::load_f32(scales_.of[c])));
            }
        } else {
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

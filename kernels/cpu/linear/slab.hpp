// A slab of w: 128 columns of kSlab rows as f32, a column's rows side by side, from any layout.
#pragma once
#include "cpu/linear/decode.hpp"
#include "cpu/shared/row_blocks.hpp"
#include "cpu/shared/transpose.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
constexpr int64_t kSlab = 16 * Isa::kTileVectors;  // rows
constexpr int64_t kSlabColumns = 128;              // a chunk of packed codes

// What the codes of packed weights are looked up in; zeros are added to it.
template <class Isa>
inline Table<Isa> packed_entries(const Weight &w) {
    float entries[16];
    entries_of(w, w.zero != nullptr ? 0 : common_zero(w), entries);
    return Isa::load_table(entries);
}
// Minus what 8 rows have: 8 f32, read as a transposition has written them, or 4 bytes, a nibble a
// row.
inline void minus_8(const char *from, float *to) {
    typedef float Four __attribute__((vector_size(16)));
    for (int64_t half = 0; half < 2; ++half) {
        const Four minus = -load_as<Four>(from, half);
        memcpy(to + 4 * half, &minus, sizeof(minus));
    }
}
inline void minus_zeros_8(const uint8_t *zeros, float *to) {
    typedef float Floats8 __attribute__((vector_size(32)));
    typedef uint32_t Words8 __attribute__((vector_size(32)));
    typedef int32_t Integers8 __attribute__((vector_size(32)));
    constexpr Words8 shift = {0, 4, 8, 12, 16, 20, 24, 28};
    const Words8 nibbles = load_as<uint32_t>(zeros, 0) >> shift & 15;
    const Floats8 minus = -__builtin_convertvector(Integers8(nibbles), Floats8);
    memcpy(to, &minus, sizeof(minus));
}

// Rows of nibbles in sequence, whose weights are looked up.
inline bool stores_rows(const Weight &w) {
    return w.layout->bits == 4 && run_pad(w) > 0 && !has_minimum(w);
}

template <class Isa>
class SlabDecoder {
  public:
    SlabDecoder(const Weight &w, const Device &device)
        : w_(w), s_(w.geometry),
          packed_(w.layout->id == kLayoutRows8 && (!w.geometry.flat || scales_steps(w))),
          cuts_(w.geometry.flat && w.geometry.k % 16 != 0),
          by_columns_(stores_columns(w) && !has_minimum(w)), by_rows_(stores_rows(w)),
          lowered_(has_minimum(w)), scales_(w, device),
          minima_(w, lowered_ ? w.minimum : w.scale, device), any_scales_(w), zeros_(w), codes_(w),
          decoder_(w), entries_(packed_entries<Isa>(w)) {
        for (auto &group : less_) {
            for (float &zero : group) zero = -0.0f;  // which leaves an entry of -0 as it is
        }
        for (int32_t &end : ends_) end = INT32_MAX;
    }

    // Columns column .. end from a multiple of 128 on, to[column][row of the slab]. Rows past the
    // last, and columns past `end` up to the next multiple of 16, are left as they are or anything.
    void decode(int64_t row, int64_t column, int64_t end, float *to) {
        number_groups(column, end);
        for (int64_t i = 0; i < kSlab<Isa> && row + i < w_.geometry.n; i += 16) {
            if (packed_) {
                decode_packed(row + i, column, to + i);
            } else if (by_columns_) {
                decode_columns(row + i, column, end, to + i);
            } else if (by_rows_) {
                decode_rows(row + i, column, end, to + i);
            } else {
                decode_any(row + i, column, end, to + i);
            }
        }
    }

  private:
    // Once a block of columns: divisions take time.
    void number_groups(int64_t column, int64_t end) {
        if (column == column_) return;
        const int64_t size = s_.group_size;
        column_ = column;
        group_ = column / size;
        groups_ = s_.flat ? ceil_div(end - column - 1, size) + 1 : ceil_div(end, size) - group_;
        steps_.place(s_.flat ? 0 : column % size, size, scale_, less_);
    }

    // 16 rows of any layout: decoded by rows, then transposed.
    void decode_any(int64_t row, int64_t column, int64_t end, float *to) {
        for (int64_t i = 0; i < 16 && row + i < w_.geometry.n; i += 8) {
            const char *const scales = any_scales_.load_columns(row + i, column, end);
            decoder_.decode(row + i, column, end, scales, weights_);
            decoder_.lower(row + i, column, end, weights_);
            for (int64_t step = 0; step * 16 < end - column; ++step) transpose(step, to + i);
        }
    }
    QK_NOINLINE void transpose(int64_t step, float *to) const {
        for (int64_t j = 0; j < 16; j += 4) {
            float *const at = to + (step * 16 + j) * kSlab<Isa>;
            transpose_4x4(&weights_[step][0][j], 64, at, kSlab<Isa> * 4);
            transpose_4x4(&weights_[step][4][j], 64, at + 4, kSlab<Isa> * 4);
        }
    }

    // 16 rows of nibbles in sequence: a word of every row side by side is 8 columns.
    void decode_rows(int64_t row, int64_t column, int64_t end, float *to) {
        constexpr int64_t kBytes = kSlabColumns / 2;
        const int64_t rows = min64(16, s_.n - row);
        alignas(64) uint8_t words[16][kBytes];
        const uint8_t *codes[2];  // one after the other
        const int64_t pitch = codes_.load_chunk(row / 8, 2, column / kSlabColumns, true, codes);
        for (int64_t i = 0; i < 16; ++i) prefetch(codes[0] + i * pitch + kBytes);
        Isa::transpose_block(codes[0], pitch, words, kBytes);
        load_row_groups(row, rows, column, end);
        const bool swapped = w_.layout->id == QK_LAYOUT_ROW_HIGH;
        if (s_.flat) {
            swapped ? put_rows<1, true>(words, end - column, to)
                    : put_rows<0, true>(words, end - column, to);
        } else {
            swapped ? put_rows<1, false>(words, end - column, to)
                    : put_rows<0, false>(words, end - column, to);
        }
    }
    QK_NOINLINE void load_row_groups(int64_t row, int64_t rows, int64_t column, int64_t end) {
        s_.flat ? load_straddling(row, rows, column) : load_scales_of_rows(row, rows, column, end);
        for (int64_t i = 0; i < rows && w_.zero != nullptr; ++i) {
            const GroupIndex first = group_of(s_, row + i, column);
            const int64_t last = group_of(s_, row + i, end - 1).group;
            for (int64_t g = 0; g <= last - first.group; ++g) {
                less_[g][i] = -float(zero_of(w_, {first.row, first.group + g}));
            }
        }
    }
    void load_scales_of_rows(int64_t row, int64_t rows, int64_t column, int64_t end) {
        for (int64_t i = 0; i < rows; i += 8) {
            const char *const scales = any_scales_.load_columns(row + i, column, end);
            for (int64_t g = 0; g < groups_; ++g) memcpy(scale_[g] + i, scales + g * 32, 32);
        }
    }
    // Each row's groups from its own first one on; after ends_[row] of a group's columns the next.
    void load_straddling(int64_t row, int64_t rows, int64_t column) {
        for (int64_t i = 0; i < rows; i += 8) {
            const char *const scales =
                any_scales_.load_straddling(row + i, column, groups_, ends_ + i);
            for (int64_t g = 0; g < groups_; ++g) memcpy(scale_[g] + i, scales + g * 32, 32);
        }
    }
    // `kSwapped`: neighbours of a byte have changed places.
    template <int kSwapped, bool flat>
    QK_NOINLINE void put_rows(const uint8_t (&words)[16][kSlabColumns / 2], int64_t columns,
                              float *to) const {
        const Table<Isa> table = entries_;
        for (int64_t column = 0; column < columns; column += 8) {
            const Words<Isa> eight = Isa::load_words(words[column / 8]);
            for_each_step([&]<int step>() QK_INLINE {
                put_column<(step ^ kSwapped), flat>(table, eight, column + step, to);
            });
        }
    }

    // 16 rows of codes stored by columns, a vector of rows at a time.
    void decode_columns(int64_t row, int64_t column, int64_t end, float *to) {
        const int64_t rows = min64(16, w_.geometry.n - row);
        load_column_groups(row, rows);
        w_.layout->id == QK_LAYOUT_AWQ_GEMM ? decode_words_of_rows(row, rows, column, end, to)
                                            : decode_words_of_columns(row, rows, column, end, to);
    }
    QK_NOINLINE void load_column_groups(int64_t row, int64_t rows) {
        if (has_coded_scales(w_.scale)) {
            for (int64_t i = 0; i < rows; i += 8) {
                const char *const scales = any_scales_.load(row + i, group_, groups_);
                for (int64_t g = 0; g < groups_; ++g) memcpy(scale_[g] + i, scales + g * 32, 32);
            }
        }
        for (int64_t g = 0; g < groups_; ++g) {
            const int64_t at = w_.layout->scale_at(w_.geometry, {row, group_ + g});
            if (!has_coded_scales(w_.scale)) {
                widen_x<Isa>({w_.scale.format, 1, rows, w_.scale.data}, at, rows, scale_[g]);
            }
            for (int64_t i = 0; i < rows && w_.zero != nullptr; i += 8) {
                const uint32_t word = zeros_.read((row + i) / 8, group_ + g);
                minus_zeros_8(reinterpret_cast<const uint8_t *>(&word), less_[g] + i);
            }
        }
    }
    template <int nibble, bool flat = false>
    QK_INLINE void put_column(const Table<Isa> &table, const Words<Isa> &words, int64_t column,
                              float *to) const {
        const int64_t step = column / 16;
        const auto of_rows = [&](const float *from) QK_INLINE {
            return flat ? steps_.template at_column<Isa>(from, step, int32_t(column % 16))
                        : Isa::load_f32(from);
        };
        const Lanes<Isa> entry =
            Isa::add(Isa::template look_up<nibble>(table, words), of_rows(steps_.less[step]));
        Isa::store_f32(to + column * kSlab<Isa>, Isa::mul(entry, of_rows(steps_.scale[step])));
    }

    // gptq: a word a row, 8 columns.
    QK_NOINLINE void decode_words_of_columns(int64_t row, int64_t rows, int64_t column, int64_t end,
                                             float *to) const {
        const int64_t pitch = w_.geometry.n * 4;
        const uint8_t *from = static_cast<const uint8_t *>(w_.data) + column / 8 * pitch + row * 4;
        const Table<Isa> table = entries_;  // a copy that nothing points to
        for (int64_t c = 0; c < end - column; c += 8, from += pitch) {
            uint8_t some[64] = {};
            prefetch(from + kSlabColumns / 8 * pitch);
            if (rows < 16) memcpy(some, from, size_t(rows) * 4);
            const Words<Isa> words = Isa::load_words(rows < 16 ? some : from);
            const auto put = [&]<int step>()
                                 QK_INLINE { put_column<step>(table, words, c + step, to); };
            for_each_step(put);
        }
    }

    // awq_gemm: a line a column, a word 8 rows.
    QK_NOINLINE void decode_words_of_rows(int64_t row, int64_t rows, int64_t column, int64_t end,
                                          float *to) const {
        constexpr Quad first = {0, 16, 4, 20}, last = {8, 24, 12, 28};
        const int64_t pitch = ceil_div(w_.geometry.n, 8) * 4;
        const uint8_t *from = static_cast<const uint8_t *>(w_.data) + column * pitch + row / 2;
        const Table<Isa> table = entries_;
        Quad codes[16][4];
        for (int64_t step = 0; step < end - column; step += 16) {
            const int64_t count = min64(16, end - column - step);
            for (int64_t c = 0; c < count; ++c, from += pitch) {
                const uint32_t low = load_as<uint32_t>(from, 0);
                const uint32_t high = rows > 8 ? load_as<uint32_t>(from, 1) : 0;
                codes[c][0] = low >> first;
                codes[c][1] = low >> last;
                codes[c][2] = high >> first;
                codes[c][3] = high >> last;
                prefetch(from + kSlabColumns * pitch);
            }
            for (int64_t c = 0; c < count; ++c) {  // not at once: wide loads wait for narrow stores
                const uint8_t *const words = reinterpret_cast<const uint8_t *>(codes[c]);
                put_column<0>(table, Isa::load_words(words), step + c, to);
            }
        }
    }

    // 16 packed rows: their codes are transposed, word j of every row side by side, then looked up.
    void decode_packed(int64_t row, int64_t column, float *to) {
        const int64_t chunks = ceil_div(s_.k, kSlabColumns);
        const int64_t blocks = row + 8 < s_.n ? 2 : 1;
        const uint8_t *codes[2];
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t block = row / 8 + b;
            codes[b] = packed_chunk(w_, block * chunks + column / kSlabColumns);
            if (!s_.flat) load_groups(block, 8 * b);
            for (int64_t at = 0; at < 512; at += 64) prefetch(codes[b] + 512 + at);
        }
        if (blocks == 1) codes[1] = codes[0];
        if (s_.flat) {
            load_straddling(row, 8 * blocks, column);
            cuts_ ? decode_words<false, true>(codes, to) : decode_words<false, false>(codes, to);
        } else {
            w_.zero != nullptr ? decode_words<true, false>(codes, to)
                               : decode_words<false, false>(codes, to);
        }
        if (lowered_) lower(row / 8, blocks, to);
    }

    QK_NOINLINE void lower(int64_t block, int64_t blocks, float *to) {
        alignas(64) float minimum[8][16] = {};
        for (int64_t b = 0; b < blocks; ++b) {
            const char *const minima = minima_.load(block + b, group_, groups_);
            for (int64_t g = 0; g < groups_; ++g) memcpy(minimum[g] + 8 * b, minima + g * 32, 32);
        }
        for (int64_t step = 0; step < 8; ++step) {
            const int64_t group = (steps_.scale[step] - scale_[0]) / 16;
            const Lanes<Isa> by = Isa::mul(Isa::load_f32(minimum[group]), Isa::splat(-1));
            for (int64_t c = 0; c < 16; ++c, to += kSlab<Isa>) {
                Isa::store_f32(to, Isa::add(Isa::load_f32(to), by));
            }
        }
    }

    // Scales and zeros of a block of 8 rows, to the rows' places.
    void load_groups(int64_t block, int64_t place) {
        const char *const scales = scales_.load(block, group_, groups_);
        for (int64_t g = 0; g < groups_; ++g) memcpy(scale_[g] + place, scales + g * 32, 32);
        prefetch(reinterpret_cast<const uint8_t *>(scales) + groups_ * 32);
        if (w_.zero == nullptr) return;
        const uint8_t *const zeros = packed_zeros(w_, block, group_);
        for (int64_t g = 0; g < groups_; ++g) minus_zeros_8(zeros + 4 * g, less_[g] + place);
    }

    template <bool zeros, bool cuts>
    QK_NOINLINE void decode_words(const uint8_t *const (&codes)[2], float *to) const {
        Isa::template look_up_transposed<zeros, cuts>(codes, entries_, steps_, to, kSlab<Isa>);
    }

    static constexpr int64_t kGroups = 9;  // of 128 columns that start anywhere

    const Weight &w_;
    const Geometry &s_;
    const bool packed_, cuts_;  // groups end within a step
    bool by_columns_, by_rows_, lowered_;
    ScalePanel<Isa> scales_;      // packed
    ScalePanel<Isa> minima_;      // packed; the scales where there are none
    ScaleBlock<Isa> any_scales_;  // every other layout
    ZeroWords zeros_;
    CodesOfBlocks<Isa, 2> codes_;
    Decoder<Isa> decoder_;
    Table<Isa> entries_;
    int64_t column_ = -1, group_ = 0, groups_ = 0;  // of the columns that are decoded
    alignas(64) int32_t ends_[16];
    StepsOf<16> steps_ = {{}, {}, {}, ends_};
    alignas(64) float scale_[kGroups + 1][16] = {};
    alignas(64) float less_[kGroups + 1][16];
    alignas(64) float weights_[kSlabColumns / 16][8][16] = {};
};

}  // namespace
}  // namespace qk::cpu

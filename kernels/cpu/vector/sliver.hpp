// A sliver of w: 128 columns of kSliver rows as f32, a column's rows side by side, from any layout.
// Included after an instruction set's codes.hpp and its look_up_turned().
#pragma once
#include "cpu/vector/decode.hpp"
#include "cpu/vector/turn.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kSliver = 16 * kTileVectors;  // rows
constexpr int64_t kSliverColumns = 128;         // a chunk of packed codes

// What the codes of packed weights are looked up in; zeros are added to it.
inline Table packed_entries(const Weight &w) {
    float entries[16];
    for (int code = 0; code < 16; ++code) {
        const bool table = w.format->kind == FormatKind::kTable;
        entries[code] = table ? w.format->value(code) : float(code - (w.zero != nullptr ? 0 : 8));
    }
    return load_table(entries);
}
// 4 bytes, a nibble a row.
inline void minus_zeros_8(const uint8_t *zeros, float *to) {
    for (int64_t i = 0; i < 8; ++i) to[i] = -float(zeros[i >> 1] >> (i & 1) * 4 & 15);
}

class SliverDecoder {
  public:
    explicit SliverDecoder(const Weight &w)
        : w_(w), packed_(w.layout->id == kLayoutRows8), scales_(w), any_scales_(w), decoder_(w),
          entries_(packed_entries(w)) {}

    // Columns column .. end from a multiple of 128 on, to[column][row of the sliver]. Rows past the
    // last, and columns past `end` up to the next multiple of 16, are left as they are or anything.
    void decode(int64_t row, int64_t column, int64_t end, float *to) {
        number_groups(column, end);
        for (int64_t i = 0; i < kSliver && row + i < w_.geometry.n; i += 16) {
            packed_ ? decode_packed(row + i, column, to + i)
                    : decode_any(row + i, column, end, to + i);
        }
    }

  private:
    // Once a block of columns: divisions take time.
    void number_groups(int64_t column, int64_t end) {
        if (column == column_) return;
        const int64_t size = w_.geometry.group_size;
        column_ = column;
        group_ = column / size;
        groups_ = ceil_div(end, size) - group_;
        for (int64_t step = 0; step < 8; ++step) {
            const int64_t group = min64(column + step * 16, end - 1) / size - group_;
            scale_of_step_[step] = scale_[group];
            zero_of_step_[step] = minus_zero_[group];
        }
    }

    // 16 rows of any layout: decoded by rows, then turned.
    void decode_any(int64_t row, int64_t column, int64_t end, float *to) {
        for (int64_t i = 0; i < 16 && row + i < w_.geometry.n; i += 8) {
            const char *const scales = any_scales_.load(row + i, group_, groups_);
            decoder_.decode(row + i, column, end, scales, weights_);
            for (int64_t step = 0; step * 16 < end - column; ++step) turn(step, to + i);
        }
    }
    QK_NOINLINE void turn(int64_t step, float *to) const {
        for (int64_t j = 0; j < 16; j += 4) {
            float *const at = to + (step * 16 + j) * kSliver;
            turn_4x4(&weights_[step][0][j], 64, at, kSliver * 4);
            turn_4x4(&weights_[step][4][j], 64, at + 4, kSliver * 4);
        }
    }

    // 16 packed rows: their codes are turned, word j of every row side by side, then looked up.
    void decode_packed(int64_t row, int64_t column, float *to) {
        const Geometry &s = w_.geometry;
        const int64_t chunks = ceil_div(s.k, kSliverColumns);
        const int64_t blocks = row + 8 < s.n ? 2 : 1;
        const uint8_t *codes[2];
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t block = row / 8 + b;
            codes[b] = static_cast<const uint8_t *>(w_.data) +
                       (block * chunks + column / kSliverColumns) * 512;
            load_groups(block, 8 * b);
            for (int64_t at = 0; at < 512; at += 64) prefetch(codes[b] + 512 + at);
        }
        if (blocks == 1) codes[1] = codes[0];
        w_.zero != nullptr ? decode_words<true>(codes, to) : decode_words<false>(codes, to);
    }

    // Scales and zeros of a block of 8 rows, to the rows' places.
    void load_groups(int64_t block, int64_t place) {
        const char *const scales = scales_.load(block, group_, groups_);
        for (int64_t g = 0; g < groups_; ++g) memcpy(scale_[g] + place, scales + g * 32, 32);
        prefetch(reinterpret_cast<const uint8_t *>(scales) + groups_ * 32);
        if (w_.zero == nullptr) return;
        const uint8_t *const zeros = static_cast<const uint8_t *>(w_.zero) +
                                     (block * w_.geometry.groups_per_row + group_) * 4;
        for (int64_t g = 0; g < groups_; ++g) minus_zeros_8(zeros + 4 * g, minus_zero_[g] + place);
    }

    template <bool zeros>
    QK_NOINLINE void decode_words(const uint8_t *const (&codes)[2], float *to) const {
        look_up_turned<zeros>(codes, entries_, scale_of_step_, zero_of_step_, to, kSliver);
    }

    const Weight &w_;
    bool packed_;
    ScalePanel scales_;      // packed
    ScaleBlock any_scales_;  // every other layout
    Decoder decoder_;
    Table entries_;
    int64_t column_ = -1, group_ = 0, groups_ = 0;  // of the columns that are decoded
    const float *scale_of_step_[8] = {}, *zero_of_step_[8] = {};
    alignas(64) float scale_[8][16] = {};
    alignas(64) float minus_zero_[8][16] = {};
    alignas(64) float weights_[kSliverColumns / 16][8][16] = {};
};

}  // namespace
}  // namespace qk::cpu

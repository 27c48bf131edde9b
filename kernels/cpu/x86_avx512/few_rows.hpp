// Few rows of x over nibbles, packed or row after row, AVX-512: 3 to 6.
//
//     a task: 64 rows of w for up to 4 rows of x, 32 for more: at least 8 chains of sums, as many
//     as two multipliers of four cycles need
//         for every chunk of 128 columns: words transposed, 16 rows a vector           2 or 4 KB
//             for every column: shift, look up, scale; multiply by every row of x
//
// A dword of a row has 8 columns, 16 apart where w is packed, in sequence elsewhere: which dword
// and which nibble a column is, is read from a table, so that layouts share the loop.
//
// 16 weights take 3 instructions and one more for each row of x; storing them would take two more.
#pragma once
#include "cpu/linear/few_rows.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

class Avx512FewRows {
  public:
    static constexpr bool kTakesRows = true;

    Avx512FewRows(const Weight &w, int64_t x_rows)
        : x_rows_(x_rows), vectors_(rows(x_rows) / 16), straddles_(w.geometry.flat),
          cuts_(straddles_ && w.geometry.k % 16 != 0), entries_(packed_entries<Avx512>(w)) {
        const bool packed = w.layout->id == kLayoutRows8;
        const uint32_t swapped = w.layout->id == QK_LAYOUT_ROW_HIGH ? 1 : 0;
        for (uint32_t c = 0; c < kSlabColumns; ++c) {
            word_[c] = uint16_t(packed ? c % 16 : c / 8);
            shift_[c] = 4 * (packed ? c / 16 : (c % 8) ^ swapped);
        }
    }

    static int64_t rows(int64_t x_rows) { return x_rows > 4 ? 32 : 64; }

    void add(const FewChunk &chunk, Less less, FewTotals &totals) {
        for (int64_t v = 0; v < vectors_; ++v) {
            transpose(chunk.codes[2 * v], chunk.codes[2 * v + 1], chunk.pitch, v);
        }
        switch (less) {
            case Less::kNothing:
                return cuts_ ? multiply<Less::kNothing, true>(chunk, totals)
                             : multiply<Less::kNothing, false>(chunk, totals);
            case Less::kZeros: return multiply<Less::kZeros, false>(chunk, totals);
            case Less::kMinima: return multiply<Less::kMinima, false>(chunk, totals);
        }
    }

  private:
    QK_NOINLINE void transpose(const uint8_t *low, const uint8_t *high, int64_t pitch, int64_t v) {
        const int64_t ahead = pitch == 64 ? kFewAhead : 4 * 64;  // a block, or chunks of a row
        __m512i rows[16];
        QK_UNROLL_ALL
        for (int i = 0; i < 16; ++i) {
            const uint8_t *const row = (i < 8 ? low : high) + i % 8 * pitch;
            rows[i] = _mm512_loadu_si512(row);
            prefetch(row + ahead);
        }
        Avx512::transpose_registers(rows,
                                    [&](int j, __m512i word) QK_INLINE { words_[j][v] = word; });
    }

    template <Less less, bool cuts>
    void multiply(const FewChunk &chunk, FewTotals &totals) const {
        switch (x_rows_) {
            case 3: return multiply<3, 4, less, cuts>(chunk, totals);
            case 4: return multiply<4, 4, less, cuts>(chunk, totals);
            default: return multiply<6, 2, less, cuts>(chunk, totals);
        }
    }

    // `cuts`: groups end within a step.
    template <int kCount, int kVectors, Less less, bool cuts>
    QK_NOINLINE void multiply(const FewChunk &chunk, FewTotals &totals) const {
        Lanes<Avx512> sum[kCount][kVectors];
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) sum[j][v] = Avx512::zero_lanes();
        }
        const Table<Avx512> entries = entries_;
        const bool straddles = cuts || straddles_;
        for (int64_t step = 0; 16 * step < chunk.columns; ++step) {
            const auto of_rows = [&](const float *from, int64_t c, int v) QK_INLINE {
                return straddles ? chunk.steps.at_column<Avx512>(from, step, int32_t(c), 16 * v)
                                 : Avx512::load_f32(from + 16 * v);
            };
            Lanes<Avx512> scale[kVectors], by[kVectors];
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                scale[v] = of_rows(chunk.steps.scale[step], 0, v);
                by[v] = less == Less::kNothing ? scale[v] : of_rows(chunk.steps.less[step], 0, v);
            }
            const int64_t end = min64(16 * step + 16, chunk.columns);
            for (int64_t c = 16 * step; c < end; ++c) {
                const __m512i *const words = words_[word_[c]];
                const __m512i shift = _mm512_set1_epi32(int(shift_[c]));
                Lanes<Avx512> weight[kVectors];
                QK_UNROLL
                for (int v = 0; v < kVectors; ++v) {
                    const Words<Avx512> codes = {_mm512_srlv_epi32(words[v], shift)};
                    Lanes<Avx512> number = Avx512::look_up<0>(entries, codes);
                    if (cuts) scale[v] = of_rows(chunk.steps.scale[step], c % 16, v);
                    if (less == Less::kZeros) number = Avx512::add(number, by[v]);
                    number = Avx512::mul(number, scale[v]);
                    if (less == Less::kMinima) number = Avx512::add(number, by[v]);
                    weight[v] = number;
                }
                QK_UNROLL
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Avx512> value = Avx512::splat(chunk.x[j][c]);
                    QK_UNROLL
                    for (int v = 0; v < kVectors; ++v) {
                        sum[j][v] = Avx512::fma(weight[v], value, sum[j][v]);
                    }
                }
            }
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                float *const total = totals[j] + 16 * v;
                Avx512::store_f32(total, Avx512::add(Avx512::load_f32(total), sum[j][v]));
            }
        }
    }

    const int64_t x_rows_, vectors_;  // of 16 rows of w
    const bool straddles_, cuts_;     // groups of w do, end within a step
    const Table<Avx512> entries_;
    uint16_t word_[kSlabColumns];   // where a column is
    uint32_t shift_[kSlabColumns];  // and its nibble
    alignas(64) __m512i words_[16][4];
};

}  // namespace
}  // namespace qk::cpu

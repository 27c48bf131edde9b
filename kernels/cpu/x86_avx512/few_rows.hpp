// Few rows of x over the packed layout, AVX-512: 2 to 6.
//
//     a task: 64 rows of w for up to 4 rows of x, 32 for more: at least 8 chains of sums, as many
//     as two multipliers of four cycles need
//         for every chunk of 128 columns: words transposed, 16 rows a vector           2 or 4 KB
//             for every column: shift, look up, scale; multiply by every row of x
//
// 16 weights take 3 instructions and one more for each row of x; storing them would take two more.
#pragma once
#include "cpu/linear/few_rows.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

class Avx512FewRows {
  public:
    Avx512FewRows(const Weight &w, int64_t x_rows)
        : x_rows_(x_rows), vectors_(rows(x_rows) / 16), entries_(packed_entries<Avx512>(w)) {}

    static int64_t rows(int64_t x_rows) { return x_rows > 4 ? 32 : 64; }

    void add(const FewChunk &chunk, Less less, FewTotals &totals) {
        for (int64_t v = 0; v < vectors_; ++v) {
            transpose(chunk.codes[2 * v], chunk.codes[2 * v + 1], v);
        }
        less == Less::kZeros ? multiply<true>(chunk, totals) : multiply<false>(chunk, totals);
    }

  private:
    QK_NOINLINE void transpose(const uint8_t *low, const uint8_t *high, int64_t v) {
        Words<Avx512> words[16];
        Avx512::transpose_words(low, high, words);
        QK_UNROLL_ALL
        for (int j = 0; j < 16; ++j) words_[j][v] = words[j];
        for (int64_t at = 0; at < 512; at += 64) {
            prefetch(low + kFewAhead + at);
            prefetch(high + kFewAhead + at);
        }
    }

    template <bool zeros>
    void multiply(const FewChunk &chunk, FewTotals &totals) const {
        switch (x_rows_) {
            case 2: return multiply<2, 4, zeros>(chunk, totals);
            case 3: return multiply<3, 4, zeros>(chunk, totals);
            case 4: return multiply<4, 4, zeros>(chunk, totals);
            default: return multiply<6, 2, zeros>(chunk, totals);
        }
    }

    template <int kCount, int kVectors, bool zeros>
    QK_NOINLINE void multiply(const FewChunk &chunk, FewTotals &totals) const {
        Lanes<Avx512> sum[kCount][kVectors];
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) sum[j][v] = Avx512::zero_lanes();
        }
        const Table<Avx512> entries = entries_;
        for_each_step([&]<int step>() QK_INLINE {
            Lanes<Avx512> scale[kVectors];
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                scale[v] = Avx512::load_f32(chunk.scale[step] + 16 * v);
            }
            const float *const minus_zero = chunk.less[step], *const x = chunk.x[0] + 16 * step;
            const int64_t count = min64(16, chunk.columns - 16 * step);
            for (int64_t c = 0; c < count; ++c) {
                Lanes<Avx512> weight[kVectors];
                QK_UNROLL
                for (int v = 0; v < kVectors; ++v) {
                    Lanes<Avx512> entry = Avx512::look_up<step>(entries, words_[c][v]);
                    if (zeros) entry = Avx512::add(entry, Avx512::load_f32(minus_zero + 16 * v));
                    weight[v] = Avx512::mul(entry, scale[v]);
                }
                QK_UNROLL
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Avx512> value = Avx512::splat(x[j * kSlabColumns + c]);
                    QK_UNROLL
                    for (int v = 0; v < kVectors; ++v) {
                        sum[j][v] = Avx512::fma(weight[v], value, sum[j][v]);
                    }
                }
            }
        });
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
    const Table<Avx512> entries_;
    alignas(64) Words<Avx512> words_[16][4];
};

}  // namespace
}  // namespace qk::cpu

// Few rows of x over the packed layout, AVX2: 3 and 4.
//
//     a task: 64 rows of w
//         for every chunk of 128 columns, 16 rows of w at a time
//             codes transposed: a byte a row, four columns side by side                  1 KB
//             for every 4 columns of 8 rows: entries by planes, scaled; multiply by every row of x
//
// 8 weights of NF4 take 5 instructions, of U4 5 with its zeros, and a little more than one for each
// row of x: x is broadcast for 16 rows of w at once.
#pragma once
#include "cpu/linear/few_rows.hpp"
#include "cpu/x86_avx2/isa.hpp"

namespace qk::cpu {
namespace {

class Avx2FewRows {
  public:
    static constexpr bool kTakesRows = false;

    Avx2FewRows(const Weight &w, int64_t x_rows)
        : x_rows_(x_rows), cuts_(w.geometry.flat && w.geometry.k % 16 != 0) {
        float entries[16];
        entries_of(w, w.zero != nullptr ? 0 : common_zero(w), entries);
        planes_ = Avx2::load_planes(entries);
        for (const float entry : entries) halves_ = halves_ && (f32_bits(entry) & 0xffff) == 0;
    }

    static int64_t rows(int64_t) { return kFewRowsOfW; }

    void add(const FewChunk &chunk, Less less, FewTotals &totals) {
        for (int64_t row = 0; row < chunk.rows; row += 16) {
            transpose(chunk.codes[row / 8], 0);
            transpose(chunk.codes[row / 8 + 1], 1);
            halves_ ? multiply<true>(chunk, row, less, totals)
                    : multiply<false>(chunk, row, less, totals);
        }
    }

  private:
    // codes_[q][piece][half]: byte q of the words of a piece, 4 * piece .. + 3, of 8 rows, a row's
    // four side by side; rows 0..3 in the lower 128 bits.
    QK_NOINLINE void transpose(const uint8_t *codes, int half) {
        const __m256i by_bytes = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        for (int64_t line = 0; line < 8; ++line) prefetch(codes + kFewAhead + 64 * line);
        for (int64_t piece = 0; piece < 4; ++piece, codes += 16) {
            const auto rows = [&](int row) QK_INLINE {  // of words of bytes q
                const auto at = [&](int r) QK_INLINE {
                    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes + 64 * r));
                };
                const __m256i words =
                    _mm256_inserti128_si256(_mm256_castsi128_si256(at(row)), at(row + 4), 1);
                return _mm256_shuffle_epi8(words, by_bytes);
            };
            const __m256i a = rows(0), b = rows(1), c = rows(2), d = rows(3);
            const __m256i ab_low = _mm256_unpacklo_epi32(a, b);
            const __m256i cd_low = _mm256_unpacklo_epi32(c, d);
            const __m256i ab_high = _mm256_unpackhi_epi32(a, b);
            const __m256i cd_high = _mm256_unpackhi_epi32(c, d);
            const auto put = [&](int q, __m256i bytes) QK_INLINE {
                _mm256_store_si256(&codes_[q][piece][half], _mm256_shuffle_epi8(bytes, by_bytes));
            };
            put(0, _mm256_unpacklo_epi64(ab_low, cd_low));
            put(1, _mm256_unpackhi_epi64(ab_low, cd_low));
            put(2, _mm256_unpacklo_epi64(ab_high, cd_high));
            put(3, _mm256_unpackhi_epi64(ab_high, cd_high));
        }
    }

    template <bool kHalves>
    void multiply(const FewChunk &chunk, int64_t row, Less less, FewTotals &totals) const {
        switch (less) {
            case Less::kNothing:
                return cuts_ ? multiply<kHalves, Less::kNothing, true>(chunk, row, totals)
                             : multiply<kHalves, Less::kNothing, false>(chunk, row, totals);
            case Less::kZeros: return multiply<kHalves, Less::kZeros, false>(chunk, row, totals);
            case Less::kMinima: return multiply<kHalves, Less::kMinima, false>(chunk, row, totals);
        }
    }
    template <bool kHalves, Less less, bool cuts>
    void multiply(const FewChunk &chunk, int64_t row, FewTotals &totals) const {
        switch (x_rows_) {
            case 3: return multiply<kHalves, less, cuts, 3>(chunk, row, totals);
            default: multiply<kHalves, less, cuts, 4>(chunk, row, totals);
        }
    }

    template <int kCount>
    struct Sums {
        __m256 of[kCount][2];
    };

    // `cuts`: groups end within a step.
    template <bool kHalves, Less less, bool cuts, int kCount>
    QK_NOINLINE void multiply(const FewChunk &chunk, int64_t row, FewTotals &totals) const {
        Sums<kCount> sums;
        QK_UNROLL
        for (auto &sum : sums.of) sum[0] = sum[1] = _mm256_setzero_ps();
        for (int64_t step = 0; step < 8; step += 2) {
            add_step<kHalves, less, cuts, 0>(chunk, step, row, sums);
            add_step<kHalves, less, cuts, 1>(chunk, step + 1, row, sums);
        }
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int half = 0; half < 2; ++half) {
                float *const total = totals[j] + row + 8 * half;
                _mm256_store_ps(total, _mm256_add_ps(_mm256_load_ps(total), sums.of[j][half]));
            }
        }
    }

    // Of 8 rows, `at` columns after a group has started: what is theirs, or the group's after.
    struct OfGroups {
        const float *from;
        const int32_t *ends;

        QK_INLINE __m256 load(int32_t at) const {
            return Avx2::where_past(ends, at, _mm256_load_ps(from + kFewRowsOfW),
                                    _mm256_load_ps(from));
        }
    };
    struct StepOf8 {
        OfGroups scales;
        int32_t at;
        __m256 scale, less;  // where the step starts
    };
    template <Less less>
    QK_INLINE static StepOf8 load_step(const FewChunk &chunk, int64_t step, int64_t row) {
        const auto &steps = chunk.steps;
        StepOf8 of = {{steps.scale[step] + row, steps.ends + row}, steps.at[step], {}, {}};
        of.scale = of.less = of.scales.load(of.at);
        if (less != Less::kNothing) {
            of.less = OfGroups{steps.less[step] + row, steps.ends + row}.load(of.at);
        }
        return of;
    }

    // 16 columns, or as many as there are.
    template <bool kHalves, Less less, bool cuts, int odd, int kCount>
    QK_INLINE void add_step(const FewChunk &chunk, int64_t step, int64_t row,
                            Sums<kCount> &sums) const {
        const float *x = chunk.x[0] + 16 * step;
        StepOf8 of[2] = {load_step<less>(chunk, step, row), load_step<less>(chunk, step, row + 8)};
        const int64_t columns = min64(16, chunk.columns - 16 * step);
        const __m256i *codes = codes_[step / 2][0];
        __m256 weight[4][2];
        for (int64_t left = columns; left >= 4; left -= 4, x += 4, codes += 2) {
            look_up<kHalves, less, cuts, odd>(codes, of, weight);
            QK_UNROLL
            for (int c = 0; c < 4; ++c) add_column(weight[c], x + c, sums);
        }
        if (columns <= 0 || columns % 4 == 0) return;
        look_up<kHalves, less, cuts, odd>(codes, of, weight);
        for (int64_t c = 0; c < columns % 4; ++c) add_column(weight[c], x + c, sums);
    }

    template <int kCount>
    QK_INLINE static void add_column(const __m256 (&weight)[2], const float *x,
                                     Sums<kCount> &sums) {
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            const __m256 value = _mm256_broadcast_ss(x + j * kSlabColumns);
            sums.of[j][0] = _mm256_fmadd_ps(weight[0], value, sums.of[j][0]);
            sums.of[j][1] = _mm256_fmadd_ps(weight[1], value, sums.of[j][1]);
        }
    }

    // Weights of 4 columns of 16 rows.
    template <bool kHalves, Less less, bool cuts, int odd>
    QK_INLINE void look_up(const __m256i *codes, StepOf8 (&of)[2], __m256 (&weight)[4][2]) const {
        QK_UNROLL
        for (int half = 0; half < 2; ++half) {
            const __m256i bytes = _mm256_load_si256(codes + half);
            const __m256i nibbles = _mm256_and_si256(odd != 0 ? _mm256_srli_epi16(bytes, 4) : bytes,
                                                     _mm256_set1_epi8(15));
            __m256 entry[8];
            if (kHalves) {
                look_up_halves(nibbles, entry);
            } else {
                Avx2::look_up_planes(planes_, nibbles, entry);
            }
            StepOf8 &step = of[half];
            QK_UNROLL
            for (int c = 0; c < 4; ++c) {
                if (cuts) step.scale = step.scales.load(step.at++);
                __m256 number = entry[2 * c];
                if (less == Less::kZeros) number = _mm256_add_ps(number, step.less);
                number = _mm256_mul_ps(number, step.scale);
                if (less == Less::kMinima) number = _mm256_add_ps(number, step.less);
                weight[c][half] = number;
            }
        }
    }
    // As look_up_planes, of entries whose lower 16 bits are 0.
    QK_INLINE void look_up_halves(__m256i codes, __m256 *to) const {
        const __m256i third = _mm256_shuffle_epi8(planes_.of_byte[2], codes);
        const __m256i last = _mm256_shuffle_epi8(planes_.of_byte[3], codes);
        const __m256i zero = _mm256_setzero_si256();
        const __m256i low = _mm256_unpacklo_epi8(third, last);
        const __m256i high = _mm256_unpackhi_epi8(third, last);
        to[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, low));
        to[2] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, low));
        to[4] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, high));
        to[6] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, high));
    }

    const int64_t x_rows_;
    const bool cuts_;
    Avx2::Planes planes_;
    bool halves_ = true;  // entries are
    alignas(64) __m256i codes_[4][4][2];
};

}  // namespace
}  // namespace qk::cpu

// Factors of batches in bf16 mode: x and weights rounded to bf16, two columns side by side.
#pragma once
#include "cpu/linear/slab.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

class Bf16Factors {
  public:
    using Factor = uint32_t;  // of two columns, the first in the low half
    static constexpr int kColumns = 2;
    static constexpr int64_t kBatch = 160, kStrip = 128;  // what fits a task's memory

    static void load_x(const Dense &x, int64_t first, int64_t count, Factor *to) {
        if (x.format->id == QK_FORMAT_BF16) {
            const char *const from = static_cast<const char *>(x.data) + first * 2;
            if (count % 2 != 0) to[count / 2] = 0;
            memcpy(to, from, size_t(count) * 2);
            return;
        }
        alignas(64) float wide[kSlabColumns] = {};
        widen_x<Avx512>(x, first, count, wide);
        for (int64_t i = 0; i < count; i += 32) {
            _mm512_storeu_si512(to + i / 2, round(wide + i, wide + i + 16));
        }
    }

    // Of an odd number of columns the last has a neighbour of zeros.
    const Factor *of_slab(float *w, int64_t columns) {
        if (columns % 2 != 0) memset(w + columns * kRows, 0, kRows * sizeof(float));
        put_pairs(w, columns, pairs_);
        return pairs_;
    }
    // [pair of columns][row of the slab].
    QK_NOINLINE static void put_pairs(const float *w, int64_t columns, Factor *to) {
        alignas(64) uint16_t alternate[32];
        for (int i = 0; i < 32; ++i) alternate[i] = uint16_t(i / 2 + i % 2 * 16);
        const __m512i order = _mm512_load_si512(alternate);
        for (int64_t c = 0; c < columns; c += 2, w += 2 * kRows, to += kRows) {
            for (int64_t i = 0; i < kRows; i += 16) {
                const __m512i halves = round(w + i, w + kRows + i);
                _mm512_store_si512(to + i, _mm512_permutexvar_epi16(order, halves));
            }
        }
    }

    static __m512bh load(const Factor *w) { return __m512bh(_mm512_load_si512(w)); }
    static __m512bh splat(Factor x) { return __m512bh(_mm512_set1_epi32(int32_t(x))); }
    static Lanes<Avx512> multiply(__m512bh w, __m512bh x, const Lanes<Avx512> &sum) {
        return {_mm512_dpbf16_ps(sum.v, w, x)};
    }

  private:
    static constexpr int64_t kRows = kSlab<Avx512>;

    static __m512i round(const float *low, const float *high) {
        return __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(high), _mm512_loadu_ps(low)));
    }

    alignas(64) Factor pairs_[kSlabColumns / 2 * kSlab<Avx512>];
};

}  // namespace
}  // namespace qk::cpu

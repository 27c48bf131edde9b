// E4M3 by itself, without a table: 64 codes that have no NaN become f16, then numbers.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/shared/e4m3.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512E4m3 : E4m3 {
    static bool has_nan(__m512i codes) {
        const __m512i nan = _mm512_set1_epi8(0x7f);
        return _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes, nan), nan) != 0;
    }
    // As f16 / 2^8: even columns and odd ones.
    struct Halves {
        __m512i even, odd;
    };
    QK_INLINE static Halves to_halves(__m512i codes) {
        const auto shift = [](__m512i upper) QK_INLINE {
            const __m512i bits = _mm512_set1_epi16(int16_t(0xbf80));
            return _mm512_and_si512(_mm512_srai_epi16(upper, 1), bits);
        };
        return {shift(_mm512_slli_epi16(codes, 8)), shift(codes)};
    }
    QK_INLINE static __m512 first_half(__m512i halves, __m512 unit) {
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), unit);
    }
    QK_INLINE static __m512 last_half(__m512i halves, __m512 unit) {
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), unit);
    }

    // `unit` is kUnit times what all are multiplied by.
    QK_INLINE static void put_f16(__m512i in_order, __m512 unit, bool stream, char *to) {
        // Interleaving even and odd columns leaves them in order.
        const __m512i eights = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        const Halves halves = to_halves(_mm512_permutexvar_epi64(eights, in_order));
        const __m512i low = _mm512_unpacklo_epi16(halves.even, halves.odd);
        const __m512i high = _mm512_unpackhi_epi16(halves.even, halves.odd);
        Avx512::put_f16({first_half(low, unit)}, {last_half(low, unit)}, to, stream);
        Avx512::put_f16({first_half(high, unit)}, {last_half(high, unit)}, to + 64, stream);
    }
    template <bool halfway>
    QK_INLINE static void put_bf16(__m512i in_order, __m512 unit, bool stream, char *to) {
        const Halves halves = to_halves(in_order);
        Avx512::put_halves(
            join_bf16<halfway>(first_half(halves.even, unit), first_half(halves.odd, unit)), to,
            stream);
        Avx512::put_halves(
            join_bf16<halfway>(last_half(halves.even, unit), last_half(halves.odd, unit)), to + 64,
            stream);
    }

  private:
    // None is a NaN. Where none is halfway between two bf16 numbers, adding half is enough.
    template <bool halfway>
    QK_INLINE static __m512i round(__m512 number) {
        if (halfway) return Avx512::round_bf16_number(number);
        return _mm512_add_epi32(_mm512_castps_si512(number), _mm512_set1_epi32(0x8000));
    }
    template <bool halfway>
    QK_INLINE static __m512i join_bf16(__m512 even, __m512 odd) {
        return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(round<halfway>(even), 16),
                                       round<halfway>(odd));
    }
};

}  // namespace
}  // namespace qk::cpu

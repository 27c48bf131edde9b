// 16-bit values, AVX2: numbers rounded to them, and tables of them that 4-bit codes index.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Halves {
    template <bool stream>
    static void put(char *to, __m256i value) {
        __m256i *const at = reinterpret_cast<__m256i *>(to);
        stream ? _mm256_stream_si256(at, value) : _mm256_storeu_si256(at, value);
    }
    static void put_two(__m256i low, __m256i high, char *to, bool stream) {
        stream ? put<true>(to, low) : put<false>(to, low);
        stream ? put<true>(to + 32, high) : put<false>(to + 32, high);
    }

    static __m256i round_f16(__m256 low, __m256 high) {
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return _mm256_set_m128i(_mm256_cvtps_ph(high, nearest), _mm256_cvtps_ph(low, nearest));
    }
    // Each in the low half of its 32 bits, if it is no NaN.
    static __m256i round_bf16(__m256 number) {
        const __m256i bits = _mm256_castps_si256(number);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i more = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
        return _mm256_srli_epi32(_mm256_add_epi32(more, odd), 16);
    }
    static __m256i round_bf16_or_nan(__m256 a) {
        const __m256i quiet =
            _mm256_or_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fc00000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        return _mm256_blendv_epi8(round_bf16(a), _mm256_srli_epi32(quiet, 16), nan);
    }
    // A pack takes 128 bits of either in turn.
    static __m256i pack_in_order(__m256i low, __m256i high) {
        return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    }
    static __m256i round_bf16(__m256 low, __m256 high) {
        return pack_in_order(round_bf16(low), round_bf16(high));
    }
    static __m256i round_bf16_or_nan(__m256 low, __m256 high) {
        return pack_in_order(round_bf16_or_nan(low), round_bf16_or_nan(high));
    }
    static bool has_nan(__m256 a, __m256 b, __m256 c, __m256 d) {
        return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                               _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
    }
    // 32 numbers, 64 bytes.
    static void put_bf16(__m256 a, __m256 b, __m256 c, __m256 d, char *to, bool stream) {
        if (has_nan(a, b, c, d)) [[unlikely]] {
            return put_two(round_bf16_or_nan(a, b), round_bf16_or_nan(c, d), to, stream);
        }
        put_two(round_bf16(a, b), round_bf16(c, d), to, stream);
    }

    // Numbers of even and of odd columns, none a NaN, side by side. `halfway`: one may be halfway
    // between two bf16 numbers, which takes it to the even one; else adding half is enough.
    template <bool halfway>
    QK_INLINE static __m256i join_bf16(__m256 of_even, __m256 of_odd) {
        const __m256i even = _mm256_castps_si256(of_even), odd = _mm256_castps_si256(of_odd);
        return halfway ? round_to_even(even, odd) : round_by_half(even, odd);
    }
    // Up where more than half is left, or half of an odd number.
    QK_INLINE static __m256i round_to_even(__m256i even, __m256i odd) {
        const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
        const __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
        const __m256i more = _mm256_xor_si256(lower, _mm256_set1_epi16(int16_t(0x8000)));
        const __m256i odd_number = _mm256_and_si256(upper, _mm256_set1_epi16(1));
        const __m256i least = _mm256_sub_epi16(_mm256_setzero_si256(), odd_number);
        const __m256i up = _mm256_cmpgt_epi16(more, least);
        return _mm256_sub_epi16(upper, up);
    }
    QK_INLINE static __m256i round_by_half(__m256i even, __m256i odd) {
        const __m256i half = _mm256_set1_epi32(0x8000);
        return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_add_epi32(even, half), 16),
                                  _mm256_add_epi32(odd, half), 0xaa);
    }

    struct HalfTable {  // 16 16-bit values as low and high bytes, twice: for either half
        __m256i low, high;
    };
    static HalfTable load_halves_table(const uint16_t *values) {
        const __m256i apart = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        const __m256i bytes = _mm256_shuffle_epi8(
            _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values)), apart);
        return {_mm256_permute4x64_epi64(bytes, 0x88), _mm256_permute4x64_epi64(bytes, 0xdd)};
    }
    // 32 codes, a byte each: 8 in either 128 bits, in order, then the next 8 in either.
    template <bool stream>
    QK_INLINE static void put_halves(char *to, __m256i codes, const HalfTable &table) {
        const __m256i low = _mm256_shuffle_epi8(table.low, codes);
        const __m256i high = _mm256_shuffle_epi8(table.high, codes);
        put<stream>(to, _mm256_unpacklo_epi8(low, high));
        put<stream>(to + 32, _mm256_unpackhi_epi8(low, high));
    }
    // 16 bytes, 32 codes in order -> 32 halves. A byte becomes 16 bits, from which its other nibble
    // is shifted to where its first one is not.
    template <bool high_first, bool stream>
    QK_INLINE static void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
        constexpr char _ = char(0x80);  // a zero
        const __m256i apart =
            high_first ? _mm256_setr_epi8(_, 0, _, 1, _, 2, _, 3, _, 8, _, 9, _, 10, _, 11, _, 4, _,
                                          5, _, 6, _, 7, _, 12, _, 13, _, 14, _, 15)
                       : _mm256_setr_epi8(0, _, 1, _, 2, _, 3, _, 8, _, 9, _, 10, _, 11, _, 4, _, 5,
                                          _, 6, _, 7, _, 12, _, 13, _, 14, _, 15, _);
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
        const __m256i x = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), apart);
        const __m256i other = high_first ? _mm256_srli_epi16(x, 12) : _mm256_slli_epi16(x, 4);
        put_halves<stream>(to, _mm256_and_si256(_mm256_or_si256(x, other), _mm256_set1_epi8(15)),
                           table);
    }
};

}  // namespace
}  // namespace qk::cpu

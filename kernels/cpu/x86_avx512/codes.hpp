// From nibbles to stored values, AVX-512.
#pragma once
#include "cpu/x86_avx512/lanes.hpp"

namespace qk::cpu {
namespace {

template <bool stream>
inline void put(char *to, __m512i value) {
    stream ? _mm512_stream_si512(reinterpret_cast<__m512i *>(to), value)
           : _mm512_storeu_si512(to, value);
}
inline void stream_64(const char *from, char *to) { put<true>(to, _mm512_loadu_si512(from)); }
inline void end_stream() { _mm_sfence(); }

// 16 lanes as bits of the output type.
inline void narrow_f16(Lanes a, uint16_t *to) {
    const __m256i half = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), half);
}
inline __m512i round_bf16(__m512 a) {  // each in the upper half of its 32 bits
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x7fc00000));
}
inline void narrow_bf16(Lanes a, uint16_t *to) {
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a.v), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), half);
}

inline void put_halves(__m512i halves, char *to, bool stream) {
    stream ? put<true>(to, halves) : put<false>(to, halves);
}
// 32 numbers.
inline void put_f16(Lanes a, Lanes b, char *to, bool stream) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(a.v, nearest));
    put_halves(_mm512_inserti64x4(low, _mm512_cvtps_ph(b.v, nearest), 1), to, stream);
}
inline void put_bf16(Lanes a, Lanes b, char *to, bool stream) {
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    put_halves(_mm512_permutex2var_epi16(round_bf16(a.v), odd, round_bf16(b.v)), to, stream);
}

inline void narrow_two_f16(Lanes a, Lanes b, uint16_t *to) {
    put_f16(a, b, reinterpret_cast<char *>(to), false);
}
inline void narrow_two_bf16(Lanes a, Lanes b, uint16_t *to) {
    put_bf16(a, b, reinterpret_cast<char *>(to), false);
}

// 8 bytes, 16 codes in order -> 16 floats. A permute ignores index bits above its own, so nothing
// is masked.
template <bool high_first, bool stream>
inline void emit_floats(const uint8_t *codes, const Table &table, char *to) {
    const __m512i pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i high =
        _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(codes));
    const __m512i words = _mm512_permutexvar_epi32(pick, _mm512_castsi128_si512(bytes));
    const __m512i index = _mm512_srlv_epi32(words, high_first ? high : low);
    put<stream>(to, _mm512_castps_si512(_mm512_permutexvar_ps(index, table.v)));
}
template <int step, bool stream>
inline void emit_step(const Words &words, const Table &table, char *to) {
    put<stream>(to, _mm512_castps_si512(look_up<step>(table, words).v));
}

using FloatTable = Table;
inline FloatTable load_floats_table(const float *values) { return load_table(values); }
struct HalfTable {  // 16 16-bit values, twice: the index's bit above does no harm
    __m512i v;
};
inline HalfTable load_halves_table(const uint16_t *values) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values));
    return {_mm512_broadcast_i64x4(half)};
}
// 16 bytes, 32 codes in order -> 32 halves.
template <bool high_first, bool stream>
inline void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
    const __m512i pick = _mm512_set_epi16(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3,
                                          3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __m512i shift = _mm512_set1_epi64(high_first ? 0x0008000c00000004 : 0x000c000800040000);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
    const __m512i words = _mm512_permutexvar_epi16(pick, _mm512_castsi128_si512(bytes));
    const __m512i index = _mm512_srlv_epi16(words, shift);
    put<stream>(to, _mm512_permutexvar_epi16(index, table.v));
}
// Nibbles `step` and `step` + 1 of 16 words, `step` even -> 32 halves.
template <int step, bool stream>
inline void emit_step_halves(const Words &words, const HalfTable &table, char *to) {
    const __m512i even =
        _mm512_set_epi16(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i pick = step < 4 ? even : _mm512_add_epi16(even, _mm512_set1_epi16(1));
    constexpr short first = step % 4 * 4;
    const __m512i shift =
        _mm512_inserti64x4(_mm512_set1_epi16(first), _mm256_set1_epi16(first + 4), 1);
    const __m512i index = _mm512_srlv_epi16(_mm512_permutexvar_epi16(pick, words.v), shift);
    put<stream>(to, _mm512_permutexvar_epi16(index, table.v));
}

// 256 floats in registers, to be indexed by bytes: pairs of registers by five bits, then the pairs.
struct WideTable {
    __m512 v[16];

    explicit WideTable(const float *entries) {
        for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_ps(entries + 16 * i);
    }
    __attribute__((always_inline)) Lanes look_up(const uint8_t *codes) const {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
        const __m512i index = _mm512_cvtepu8_epi32(bytes);
        const __mmask16 bit5 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
        const __mmask16 bit6 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
        const __mmask16 bit7 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
        const auto pick = [&](int i) __attribute__((always_inline)) {
            const __m512 low = _mm512_permutex2var_ps(v[i], index, v[i + 1]);
            const __m512 high = _mm512_permutex2var_ps(v[i + 2], index, v[i + 3]);
            return _mm512_mask_blend_ps(bit5, low, high);
        };
        const __m512 low = _mm512_mask_blend_ps(bit6, pick(0), pick(4));
        const __m512 high = _mm512_mask_blend_ps(bit6, pick(8), pick(12));
        return {_mm512_mask_blend_ps(bit7, low, high)};
    }
};

}  // namespace
}  // namespace qk::cpu

// Chunks of the packed layout on AVX2: out of a row of 128 nibbles and back, with half the
// instructions of what 128-bit registers take, and by bytes.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Chunks {
    // Of 32 nibbles in 128 bits: bytes of columns 2 i and 16 + 2 i, then of the columns after them.
    template <bool high_first>
    QK_INLINE static __m256i interleave_halves(__m256i bytes) {
        const __m256i order = _mm256_broadcastsi128_si256(
            high_first ? _mm_setr_epi8(8, 0, 9, 1, 10, 2, 11, 3, 12, 4, 13, 5, 14, 6, 15, 7)
                       : _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
        const __m256i x = _mm256_shuffle_epi8(bytes, order);
        if (high_first) {
            const __m256i outer =
                _mm256_or_si256(_mm256_slli_epi16(x, 12), _mm256_srli_epi16(x, 12));
            return _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi16(0x0ff0)), outer);
        }
        return swap_middle_nibbles(x);
    }

    // Bytes of 8 words, those of one place side by side.
    QK_INLINE static __m256i gather_places(__m256i words) {
        const __m256i by_bytes = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(words, by_bytes),
                                           _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    // pairs[i]: bytes 2 i of words 0 .. 7, their bytes 2 i + 1; then the same of words 8 .. 15.
    QK_INLINE static void gather_bytes(__m256i low, __m256i high, __m256i (&pairs)[2]) {
        const __m256i a = gather_places(low), b = gather_places(high);
        pairs[0] = _mm256_permute2x128_si256(a, b, 0x20);
        pairs[1] = _mm256_permute2x128_si256(a, b, 0x31);
    }

    // The middle nibbles of 16 bits trade places: their difference, shifted, is taken off one and
    // put to the other.
    QK_INLINE static __m256i swap_middle_nibbles(__m256i x) {
        const __m256i both = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi16(x, 4)),
                                              _mm256_set1_epi16(0x00f0));
        return _mm256_xor_si256(x, _mm256_xor_si256(both, _mm256_slli_epi16(both, 4)));
    }

    // A row of 128 nibbles to a packed chunk; `high_first`: of nibbles whose pairs are swapped.
    template <bool high_first = false>
    QK_INLINE static void pack_chunk(const uint8_t *from, uint8_t *to) {
        const __m256i *const in = reinterpret_cast<const __m256i *>(from);
        const __m256i a = interleave_halves<high_first>(_mm256_loadu_si256(in));
        const __m256i b = interleave_halves<high_first>(_mm256_loadu_si256(in + 1));
        const __m256i even = _mm256_permute2x128_si256(a, b, 0x20),
                      odd = _mm256_permute2x128_si256(a, b, 0x31);
        const __m256i pairs = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        const auto join = [=](__m256i bytes) QK_INLINE {
            return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(bytes, 0xd8), pairs);
        };
        __m256i *const out = reinterpret_cast<__m256i *>(to);
        _mm256_storeu_si256(out, join(_mm256_unpacklo_epi8(even, odd)));
        _mm256_storeu_si256(out + 1, join(_mm256_unpackhi_epi8(even, odd)));
    }

    QK_INLINE static void unpack_chunk(const uint8_t *from, uint8_t *to) {
        const __m256i *const in = reinterpret_cast<const __m256i *>(from);
        const __m256i a = gather_places(_mm256_loadu_si256(in));
        const __m256i b = gather_places(_mm256_loadu_si256(in + 1));
        const __m256i apart = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        const auto pair_up = [=](__m256i places) QK_INLINE {  // the 16 bytes of two places
            return _mm256_shuffle_epi8(swap_middle_nibbles(places), apart);
        };
        const __m256i even = pair_up(_mm256_unpacklo_epi64(a, b));
        const __m256i odd = pair_up(_mm256_unpackhi_epi64(a, b));
        __m256i *const out = reinterpret_cast<__m256i *>(to);
        _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
};

}  // namespace
}  // namespace qk::cpu

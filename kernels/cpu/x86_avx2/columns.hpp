// What kernels that walk across the rows of w (linear/columns.hpp) are written in: 8 dwords as one
// AVX2 register.
#pragma once
#include "cpu/x86_avx2/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx2Columns : Avx2 {
    static constexpr int64_t kWide = 8;         // dwords
    static constexpr bool kFillsKnown = false;  // which gains nothing here
    static constexpr bool kFetchesBackwards = false;
    using Floats = __m256;
    using Bits = __m256i;

    static Floats load_wide(const float *from) { return _mm256_loadu_ps(from); }
    static Bits load_bits(const void *from) {
        return _mm256_loadu_si256(static_cast<const __m256i *>(from));
    }
    static void store_wide(float *to, Floats a) { _mm256_storeu_ps(to, a); }
    static void store_bits(void *to, Bits a) { _mm256_storeu_si256(static_cast<__m256i *>(to), a); }

    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Floats numbers(Bits a) { return _mm256_cvtepi32_ps(a); }
    static Floats splat_wide(float value) { return _mm256_set1_ps(value); }
    static Floats where(Bits mask, Floats a, Floats b) {
        return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask));
    }

    // One dword, or four in every 128 bits.
    template <bool quads>
    static Bits spread_bits(const void *from) {
        if (!quads) {
            int dword;
            __builtin_memcpy(&dword, from, 4);
            return _mm256_set1_epi32(dword);
        }
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i *>(from)));
    }
    // Dword i of every 128 bits, four times.
    template <int i>
    static Bits repeat(Bits a) {
        return _mm256_shuffle_epi32(a, i * 0x55);
    }

    // Bytes to dwords: to[i], dword b of every 128 bits: byte b of dword i there of all four
    // vectors.
    static void bytes_to_dwords(const Bits (&from)[4], Bits (&to)[4]) {
        const Bits low_01 = _mm256_unpacklo_epi8(from[0], from[1]);
        const Bits low_23 = _mm256_unpacklo_epi8(from[2], from[3]);
        const Bits high_01 = _mm256_unpackhi_epi8(from[0], from[1]);
        const Bits high_23 = _mm256_unpackhi_epi8(from[2], from[3]);
        to[0] = _mm256_unpacklo_epi16(low_01, low_23);
        to[1] = _mm256_unpackhi_epi16(low_01, low_23);
        to[2] = _mm256_unpacklo_epi16(high_01, high_23);
        to[3] = _mm256_unpackhi_epi16(high_01, high_23);
    }

    // The low, or the high nibble of every byte.
    template <int half>
    static Bits nibbles(Bits a) {
        return _mm256_and_si256(half == 0 ? a : _mm256_srli_epi32(a, 4), _mm256_set1_epi8(15));
    }
    // Nibble 2 b + half of dword b of every 128 bits.
    template <int half>
    static Bits nibble_of_place(Bits a) {
        const Bits shift = _mm256_broadcastsi128_si256(
            _mm_setr_epi32(4 * half, 8 + 4 * half, 16 + 4 * half, 24 + 4 * half));
        return _mm256_and_si256(_mm256_srlv_epi32(a, shift), _mm256_set1_epi32(15));
    }
    // Dword d: nibble first + d of a run of words, first a multiple of 8.
    static Bits nibbles_in_order(const uint32_t *words, int64_t first) {
        const Bits all = _mm256_srlv_epi32(_mm256_set1_epi32(int(words[first / 8])),
                                           _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        return _mm256_and_si256(all, _mm256_set1_epi32(15));
    }

    // Of every 128 bits, the bytes that codes are.
    static Bits look_up_bytes(Bits table, Bits codes) { return _mm256_shuffle_epi8(table, codes); }

    // Numbers that nibbles stand for: looked up, or the nibbles themselves.
    class Lut4Entries {
      public:
        explicit Lut4Entries(const float *values) : table_(load_table(values)) {}
        template <int step>
        Floats entry(Bits words) const {
            return look_up_8<step>(table_, words);
        }

      private:
        Table table_;
    };
    class U4Entries {
      public:
        explicit U4Entries(const float *) {}
        template <int step>
        Floats entry(Bits words) const {
            return numbers(
                _mm256_and_si256(_mm256_srli_epi32(words, 4 * step), _mm256_set1_epi32(15)));
        }
    };

    // A zero, and a lane's sum of x, as they are multiplied.
    static Bits minus_zero(Bits zero) { return _mm256_sub_epi32(_mm256_setzero_si256(), zero); }
    static uint32_t sum_operand(uint32_t sum) { return sum; }

    // (code - zero) * integer of x, summed over the 8 columns of each dword: products of bytes,
    // four of which fit 16 bits (4 * 24 * 128), are added and then widened.
    static constexpr int kDotsTogether = 1;
    template <int kCount>
    QK_INLINE static void dot_integers(const Bits (&even)[kCount], const Bits (&odd)[kCount],
                                       const Bits (&x)[7], const Bits (&zero)[kCount],
                                       Floats (&to)[kCount]) {
        for (int row = 0; row < kCount; ++row) {
            const auto products = [&](int i) __attribute__((always_inline)) {
                return _mm256_add_epi16(_mm256_maddubs_epi16(even[row], x[i]),
                                        _mm256_maddubs_epi16(odd[row], x[i + 3]));
            };
            const Bits low =
                _mm256_add_epi32(_mm256_madd_epi16(products(0), _mm256_set1_epi16(1)),
                                 _mm256_madd_epi16(products(1), _mm256_set1_epi16(256)));
            const Bits high = _mm256_madd_epi16(products(2), _mm256_set1_epi16(1));
            const Bits all = _mm256_add_epi32(low, _mm256_slli_epi32(high, 16));
            to[row] = numbers(_mm256_add_epi32(all, _mm256_mullo_epi32(zero[row], x[6])));
        }
    }
};

}  // namespace
}  // namespace qk::cpu

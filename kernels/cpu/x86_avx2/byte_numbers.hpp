// What bytes stand for, AVX2: codes of a table, a look-up in memory each, and numbers by
// themselves, E4M3 and E8M0, a few instructions for 8 of them.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/shared/nested.hpp"
#include "cpu/x86_avx2/halves.hpp"

namespace qk::cpu {
namespace {

struct Avx2E4m3 {
    // E4M3's bits are f16's but for the bias: its number is 2^8 times that f16, subnormal ones
    // included. 0x7f and 0xff are NaNs.
    QK_INLINE static __m256 to_f32(const void *eight_bytes) {
        const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i *>(eight_bytes));
        const __m128i upper = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
        const __m128i half =
            _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(int16_t(0xbfff)));
        const __m128i all = _mm_set1_epi16(0x3f80);
        const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, all), all);
        const __m128i to_nan = _mm_and_si128(nan, _mm_set1_epi16(0x3f80 ^ 0x7e00));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_xor_si128(half, to_nan)), _mm256_set1_ps(256));
    }
};

struct Avx2E8m0 {
    // An exponent; 255 is a NaN, 0 is below the normal numbers.
    QK_INLINE static __m256 to_f32(const void *eight_bytes) {
        const __m256i code =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i *>(eight_bytes)));
        const __m256i quiet = _mm256_set1_epi32(0x00400000);
        const __m256i bits = _mm256_max_epu32(_mm256_slli_epi32(code, 23), quiet);
        const __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255));
        return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(nan, quiet)));
    }
};

// Scales of 8 rows, as Avx2ByteNumbers::widen_nested has them, without a table.
template <class Number>
struct WidenNumbers {
    static void widen_nested(const char *from, const float *, const float *second, float bias,
                             float *to) {
        const __m256 product = _mm256_mul_ps(Number::to_f32(from), _mm256_loadu_ps(second));
        _mm256_storeu_ps(to, _mm256_add_ps(product, _mm256_set1_ps(bias)));
    }
    static int64_t run(const NestedCode &code, const char *from, int64_t count,
                       const SecondRun &second, float bias, float (*to)[8]) {
        if (!is_plain(second, bias)) {
            return widen_gathering<WidenNumbers>(code, from, count, second, bias, to);
        }
        for (int64_t i = 0; i < count; ++i) _mm256_storeu_ps(to[i], Number::to_f32(from + 8 * i));
        return count;
    }
};

struct Avx2ByteNumbers : Avx2Halves {
    // table[bytes[i]]. Gathers are no faster on AMD's processors, and wrong under qemu 7.2.
    static __m256 look_up_bytes(const float *table, const void *bytes) {
        const uint8_t *const b = static_cast<const uint8_t *>(bytes);
        return _mm256_setr_ps(table[b[0]], table[b[1]], table[b[2]], table[b[3]], table[b[4]],
                              table[b[5]], table[b[6]], table[b[7]]);
    }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        const __m256 product = _mm256_mul_ps(look_up_bytes(code, from), _mm256_loadu_ps(second));
        _mm256_storeu_ps(to, _mm256_add_ps(product, _mm256_set1_ps(bias)));
    }

    // WidenNested.
    static int64_t widen_scales(const NestedCode &code, const char *from, int64_t count,
                                const SecondRun &run, float bias, float (*to)[8]) {
        const auto widen = code.exponents ? WidenNumbers<Avx2E8m0>::run
                           : code.e4m3    ? WidenNumbers<Avx2E4m3>::run
                                          : widen_gathering<Avx2ByteNumbers>;
        return widen(code, from, count, run, bias, to);
    }
    // LookUpBytes.
    static void look_up_floats(const NestedCode &code, const uint8_t *from, int64_t count,
                               float scale, float *to) {
        code.e4m3 ? put_floats<true>(code.value, from, count, scale, to)
                  : put_floats<false>(code.value, from, count, scale, to);
    }
    // LookUpHalves.
    static void look_up_halves(const NestedCode &code, const uint8_t *from, int64_t count,
                               float scale, bool is_f16, bool stream, char *to) {
        code.e4m3 ? put_bytes<true>(code.value, from, count, scale, is_f16, stream, to)
                  : put_bytes<false>(code.value, from, count, scale, is_f16, stream, to);
    }

  private:
    template <bool e4m3>
    QK_INLINE static __m256 eight_of(const float *table, const uint8_t *from, float scale) {
        const __m256 numbers = e4m3 ? Avx2E4m3::to_f32(from) : look_up_bytes(table, from);
        return _mm256_mul_ps(numbers, _mm256_set1_ps(scale));
    }
    template <bool e4m3>
    QK_NOINLINE static void put_floats(const float *table, const uint8_t *from, int64_t count,
                                       float scale, float *to) {
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            const __m256 low = eight_of<e4m3>(table, from + i, scale);
            const __m256 high = eight_of<e4m3>(table, from + i + 8, scale);
            _mm256_storeu_ps(to + i, low);
            _mm256_storeu_ps(to + i + 8, high);
        }
        for (; i < count; ++i) to[i] = table[from[i]] * scale;
    }
    template <bool e4m3>
    QK_NOINLINE static void put_bytes(const float *table, const uint8_t *from, int64_t count,
                                      float scale, bool is_f16, bool stream, char *to) {
        for (int64_t i = 0; i < count; i += 32, to += 64) {
            prefetch(from + i + 4096);
            const __m256 a = eight_of<e4m3>(table, from + i, scale);
            const __m256 b = eight_of<e4m3>(table, from + i + 8, scale);
            const __m256 c = eight_of<e4m3>(table, from + i + 16, scale);
            const __m256 d = eight_of<e4m3>(table, from + i + 24, scale);
            is_f16 ? put_two(round_f16(a, b), round_f16(c, d), to, stream)
                   : put_bf16(a, b, c, d, to, stream);
        }
    }
};

}  // namespace
}  // namespace qk::cpu

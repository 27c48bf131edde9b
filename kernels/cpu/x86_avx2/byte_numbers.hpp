// What bytes stand for, AVX2: codes of a table, a look-up in memory each, and numbers by
// themselves, E4M3 and E8M0, a few instructions for 8 of them.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/shared/e4m3.hpp"
#include "cpu/shared/nested.hpp"
#include "cpu/x86_avx2/halves.hpp"

namespace qk::cpu {
namespace {

struct Avx2E4m3 : E4m3 {
    // 0x7f and 0xff are NaNs.
    QK_INLINE static __m256 to_f32(const void *eight_bytes) {
        const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i *>(eight_bytes));
        const __m128i upper = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
        const __m128i half =
            _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(int16_t(0xbfff)));
        const __m128i all = _mm_set1_epi16(0x3f80);
        const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, all), all);
        const __m128i to_nan = _mm_and_si128(nan, _mm_set1_epi16(0x3f80 ^ 0x7e00));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_xor_si128(half, to_nan)), _mm256_set1_ps(kUnit));
    }

    QK_INLINE static bool has_nan(__m256i codes) {
        const __m256i nan = _mm256_set1_epi8(0x7f);
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan)) != 0;
    }
    // Of 32 codes without a NaN, as f16: even columns and odd ones.
    struct Halves {
        __m256i even, odd;
    };
    QK_INLINE static Halves to_halves(__m256i codes) {
        const __m256i bits = _mm256_set1_epi16(int16_t(0xbf80));
        const auto shift = [=](__m256i upper) QK_INLINE {
            return _mm256_and_si256(_mm256_srai_epi16(upper, 1), bits);
        };
        return {shift(_mm256_slli_epi16(codes, 8)), shift(codes)};
    }
    QK_INLINE static __m256 first_eight(__m256i halves, __m256 unit) {
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), unit);
    }
    QK_INLINE static __m256 last_eight(__m256i halves, __m256 unit) {
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), unit);
    }

    // 32 bytes to numbers times a factor, of which `unit` is kUnit times as much.
    QK_INLINE static void to_f32(const void *from, float unit, __m256 (&to)[4]) {
        const auto by = [](float number) {
            return [=](__m256 a) QK_INLINE { return _mm256_mul_ps(a, _mm256_set1_ps(number)); };
        };
        to_f32(from, by(unit), by(unit * (1 / kUnit)), to);
    }
    // of_half(number / kUnit), or of_number(number) where one of them is a NaN.
    template <class OfHalf, class OfNumber>
    QK_INLINE static void to_f32(const void *from, const OfHalf &of_half, const OfNumber &of_number,
                                 __m256 (&to)[4]) {
        const __m256i codes = _mm256_loadu_si256(static_cast<const __m256i *>(from));
        if (has_nan(codes)) [[unlikely]] {
            const char *const bytes = static_cast<const char *>(from);
            for (int i = 0; i < 4; ++i) to[i] = of_number(to_f32(bytes + 8 * i));
            return;
        }
        const Halves halves = to_halves(codes);
        const __m256i low = _mm256_unpacklo_epi16(halves.even, halves.odd);
        const __m256i high = _mm256_unpackhi_epi16(halves.even, halves.odd);
        to[0] = of_half(_mm256_cvtph_ps(_mm256_castsi256_si128(low)));
        to[1] = of_half(_mm256_cvtph_ps(_mm256_castsi256_si128(high)));
        to[2] = of_half(_mm256_cvtph_ps(_mm256_extracti128_si256(low, 1)));
        to[3] = of_half(_mm256_cvtph_ps(_mm256_extracti128_si256(high, 1)));
    }
};

struct Avx2E8m0 {
    static constexpr float kUnit = 1;

    // An exponent; 255 is a NaN, 0 is below the normal numbers.
    QK_INLINE static __m256 to_f32(const void *eight_bytes) {
        const __m256i code =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i *>(eight_bytes)));
        const __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255));
        const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(0x00400000));
        return _mm256_or_ps(of_number(code), _mm256_castsi256_ps(quiet));
    }
    // 32 bytes; the factor is 1.
    QK_INLINE static void to_f32(const void *from, float, __m256 (&to)[4]) {
        const char *const bytes = static_cast<const char *>(from);
        const __m256i all = _mm256_loadu_si256(static_cast<const __m256i *>(from));
        const __m256i nan = _mm256_cmpeq_epi8(all, _mm256_set1_epi8(-1));
        if (_mm256_movemask_epi8(nan) != 0) [[unlikely]] {
            for (int i = 0; i < 4; ++i) to[i] = to_f32(bytes + 8 * i);
            return;
        }
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(bytes + 8 * i));
            to[i] = of_number(_mm256_cvtepu8_epi32(eight));
        }
    }

  private:
    QK_INLINE static __m256 of_number(__m256i code) {
        const __m256i least = _mm256_set1_epi32(0x00400000);
        return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(code, 23), least));
    }
};

// E4M3's numbers divided: the same quotients as those of a table of them.
struct Avx2Quotients {
    // 32 bytes; `unit`: what divides / Avx2E4m3::kUnit.
    QK_INLINE static void to_f32(const void *from, float unit, __m256 (&to)[4]) {
        const auto by = [](float number) {
            return [=](__m256 a) QK_INLINE { return _mm256_div_ps(a, _mm256_set1_ps(number)); };
        };
        Avx2E4m3::to_f32(from, by(unit), by(unit * Avx2E4m3::kUnit), to);
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
        int64_t i = 0;
        for (; i + 4 <= count; i += 4) {
            __m256 numbers[4];
            Number::to_f32(from + 8 * i, Number::kUnit, numbers);
            for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to[i + j], numbers[j]);
        }
        for (; i < count; ++i) _mm256_storeu_ps(to[i], Number::to_f32(from + 8 * i));
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
    // The same beside products: each number in all lanes, as blends have more ports than inserts,
    // and codes loaded together.
    static __m256 look_up_blending(const float *table, const void *bytes) {
        uint64_t codes;
        __builtin_memcpy(&codes, bytes, 8);
        const auto of = [=](int i) QK_INLINE {
            return _mm256_broadcast_ss(table + uint8_t(codes >> 8 * i));
        };
        const __m256 a = _mm256_blend_ps(of(0), of(1), 0x02);
        const __m256 b = _mm256_blend_ps(of(2), of(3), 0x08);
        const __m256 c = _mm256_blend_ps(of(4), of(5), 0x20);
        const __m256 d = _mm256_blend_ps(of(6), of(7), 0x80);
        return _mm256_blend_ps(_mm256_blend_ps(a, b, 0x0c), _mm256_blend_ps(c, d, 0xc0), 0xf0);
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
        if (code.divisor != 0 && is_plain(run, bias)) return widen_quotients(code, from, count, to);
        const auto widen = code.exponents ? WidenNumbers<Avx2E8m0>::run
                           : code.e4m3    ? WidenNumbers<Avx2E4m3>::run
                                          : widen_gathering<Avx2ByteNumbers>;
        return widen(code, from, count, run, bias, to);
    }
    static int64_t widen_quotients(const NestedCode &code, const char *from, int64_t count,
                                   float (*to)[8]) {
        int64_t i = 0;
        for (; i + 4 <= count; i += 4) {
            __m256 quotients[4];
            Avx2Quotients::to_f32(from + 8 * i, code.divisor / Avx2E4m3::kUnit, quotients);
            for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to[i + j], quotients[j]);
        }
        for (; i < count; ++i) _mm256_storeu_ps(to[i], look_up_bytes(code.value, from + 8 * i));
        return count;
    }
    // LookUpBytes.
    static void look_up_floats(const NestedCode &code, const uint8_t *from, int64_t count,
                               float scale, float *to) {
        if (code.e4m3 && Avx2E4m3::multiplies(scale)) {
            const int64_t whole = count / 32 * 32;
            put_e4m3(from, whole, scale, to);
            from += whole, to += whole, count -= whole;
        }
        put_floats(code.value, from, count, scale, to);
    }
    // LookUpHalves.
    static void look_up_halves(const NestedCode &code, const GroupCodes &run, bool is_f16,
                               bool stream, char *to) {
        for_each_group(run, to, [&](const uint8_t *from, int64_t count, float scale, char *at) {
            look_up_group(code, from, count, scale, is_f16, stream, at);
        });
    }

  private:
    static void look_up_group(const NestedCode &code, const uint8_t *from, int64_t count,
                              float scale, bool is_f16, bool stream, char *to) {
        if (!code.e4m3 || !Avx2E4m3::multiplies(scale)) {
            return put_bytes(code.value, from, count, scale, is_f16, stream, to);
        }
        if (is_f16) return put_e4m3_f16(from, count, scale, stream, to);
        Avx2E4m3::has_halfway(scale) ? put_e4m3_bf16<true>(code, from, count, scale, stream, to)
                                     : put_e4m3_bf16<false>(code, from, count, scale, stream, to);
    }
    QK_INLINE static __m256 eight_of(const float *table, const uint8_t *from, float scale) {
        return _mm256_mul_ps(look_up_bytes(table, from), _mm256_set1_ps(scale));
    }
    QK_NOINLINE static void put_floats(const float *table, const uint8_t *from, int64_t count,
                                       float scale, float *to) {
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            const __m256 low = eight_of(table, from + i, scale);
            const __m256 high = eight_of(table, from + i + 8, scale);
            _mm256_storeu_ps(to + i, low);
            _mm256_storeu_ps(to + i + 8, high);
        }
        for (; i < count; ++i) to[i] = table[from[i]] * scale;
    }
    QK_NOINLINE static void put_bytes(const float *table, const uint8_t *from, int64_t count,
                                      float scale, bool is_f16, bool stream, char *to) {
        for (int64_t i = 0; i < count; i += 32, to += 64) {
            prefetch(from + i + 4096);
            const __m256 a = eight_of(table, from + i, scale);
            const __m256 b = eight_of(table, from + i + 8, scale);
            const __m256 c = eight_of(table, from + i + 16, scale);
            const __m256 d = eight_of(table, from + i + 24, scale);
            is_f16 ? put_two(round_f16(a, b), round_f16(c, d), to, stream)
                   : put_bf16(a, b, c, d, to, stream);
        }
    }

    // Of E4M3, a multiple of 32.
    QK_NOINLINE static void put_e4m3(const uint8_t *from, int64_t count, float scale, float *to) {
        for (int64_t i = 0; i < count; i += 32) {
            __m256 numbers[4];
            Avx2E4m3::to_f32(from + i, scale * Avx2E4m3::kUnit, numbers);
            for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to + i + 8 * j, numbers[j]);
        }
    }
    QK_NOINLINE static void put_e4m3_f16(const uint8_t *from, int64_t count, float scale,
                                         bool stream, char *to) {
        for (int64_t i = 0; i < count; i += 32, to += 64) {
            prefetch(from + i + 4096);
            __m256 n[4];
            Avx2E4m3::to_f32(from + i, scale * Avx2E4m3::kUnit, n);
            put_two(round_f16(n[0], n[1]), round_f16(n[2], n[3]), to, stream);
        }
    }
    template <bool halfway>
    QK_NOINLINE static void put_e4m3_bf16(const NestedCode &code, const uint8_t *from,
                                          int64_t count, float scale, bool stream, char *to) {
        const __m256 unit = _mm256_set1_ps(scale * Avx2E4m3::kUnit);
        for (int64_t i = 0; i < count; i += 32, to += 64) {
            prefetch(from + i + 4096);
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i));
            if (Avx2E4m3::has_nan(codes)) [[unlikely]] {
                put_bytes(code.value, from + i, 32, scale, false, stream, to);
                continue;
            }
            const Avx2E4m3::Halves halves = Avx2E4m3::to_halves(codes);
            const __m256i low = join_bf16<halfway>(Avx2E4m3::first_eight(halves.even, unit),
                                                   Avx2E4m3::first_eight(halves.odd, unit));
            const __m256i high = join_bf16<halfway>(Avx2E4m3::last_eight(halves.even, unit),
                                                    Avx2E4m3::last_eight(halves.odd, unit));
            put_two(low, high, to, stream);
        }
    }
};

}  // namespace
}  // namespace qk::cpu

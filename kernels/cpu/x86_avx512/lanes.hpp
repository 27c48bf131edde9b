// 16 lanes of f32 as one AVX-512 register.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

struct Avx512Lanes {
    static constexpr uint32_t kFeature = kAvx512;
    static constexpr int kVectorBytes = 64;
    static constexpr int kRowsTogether =
        8;  // codes, weights and sums of so many rows fit the registers
    static constexpr int kTileVectors = 2, kTileBatch = 12;  // sums that fit the registers

    struct Lanes {  // 16 floats
        __m512 v;
    };
    struct Words {  // 16 32-bit words: a chunk of packed codes
        __m512i v;
    };
    struct Mask {
        __mmask16 v;
    };

    static Lanes zero_lanes() { return {_mm512_setzero_ps()}; }
    static Lanes splat(float value) { return {_mm512_set1_ps(value)}; }
    static Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
    static Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
    static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    // c where the mask is off.
    static Lanes fma_where(Mask mask, Lanes a, Lanes b, Lanes c) {
        return {_mm512_mask3_fmadd_ps(a.v, b.v, c.v, mask.v)};
    }

    // The first `count` lanes, any count.
    static Mask first_lanes(int64_t count) {
        if (count >= 16) return {0xffff};
        return {count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1)};
    }

    // Lanes that are masked off read as zero and touch no memory.
    static Lanes load_f32(const void *from, Mask mask) {
        return {_mm512_maskz_loadu_ps(mask.v, from)};
    }
    static Lanes load_f16(const void *from, Mask mask) {
        return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask.v, from))};
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask.v, from));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
    }
    static Lanes load_f32(const void *from) { return {_mm512_loadu_ps(from)}; }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    static void store_f32(float *to, Lanes a) { _mm512_storeu_ps(to, a.v); }

    // The chunk stays in the register it was loaded to: compilers would fold the load into each of
    // the eight shifts and fetch the line eight times.
    static Words load_words(const uint8_t *from) {
        Words words = {_mm512_loadu_si512(from)};
        asm volatile("" : "+v"(words.v));
        return words;
    }

    struct Table {  // 16 floats, to be indexed
        __m512 v;
    };
    static Table load_table(const float *entries) { return {_mm512_loadu_ps(entries)}; }
    static Table scale_table(const Table &table, float scale) {
        return {_mm512_mul_ps(table.v, _mm512_set1_ps(scale))};
    }
    // Nibble `step` of each word. The permute ignores the bits above.
    template <int step>
    static Lanes look_up(const Table &table, const Words &words) {
        const __m512i index = step == 0 ? words.v : _mm512_srli_epi32(words.v, 4 * step);
        return {_mm512_permutexvar_ps(index, table.v)};
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(Lanes lanes) {
        const __m256 eight =
            _mm256_add_ps(_mm512_castps512_ps256(lanes.v), _mm512_extractf32x8_ps(lanes.v, 1));
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    // The sums of 8 rows' lanes, in the same order: halves of two vectors share one addition.
    static void fold_rows(const Lanes *rows, float *to) {
        const auto pair = [](__m512 a, __m512 b) {  // 16 -> 8 lanes of each
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44),
                                 _mm512_shuffle_f32x4(a, b, 0xee));
        };
        const auto quad = [](__m512 a, __m512 b) {  // 8 -> 4: rows in the 128-bit quarters
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88),
                                 _mm512_shuffle_f32x4(a, b, 0xdd));
        };
        const __m512 low = quad(pair(rows[0].v, rows[1].v), pair(rows[2].v, rows[3].v));
        const __m512 high = quad(pair(rows[4].v, rows[5].v), pair(rows[6].v, rows[7].v));
        const __m512 two =
            _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
        const __m512 one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
        // Quarter q: row q at 0, row q + 4 at 2.
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one)));
    }

    // 8 scales, one a row.
    static void widen_f16(const char *from, float *to) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        _mm256_storeu_ps(to, _mm256_cvtph_ps(half));
    }
    static void widen_bf16(const char *from, float *to) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), wide);
    }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
        const __m256 value = _mm256_i32gather_ps(code, _mm256_cvtepu8_epi32(bytes), 4);
        const __m256 product = _mm256_mul_ps(value, _mm256_loadu_ps(second));
        _mm256_storeu_ps(to, _mm256_add_ps(product, _mm256_set1_ps(bias)));
    }
};

}  // namespace
}  // namespace qk::cpu

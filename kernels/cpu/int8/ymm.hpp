// 8 sums of int8 mode, one a row, in one 256-bit register: what AVX2 and AVX-512 share.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace qk::cpu {
namespace {

struct YmmSums {
    struct Sums8 {  // 8 integers, one a row
        __m256i v;
    };
    struct Floats8 {
        __m256 v;
    };
    static Floats8 zero_floats8() { return {_mm256_setzero_ps()}; }
    static Floats8 load_floats8(const char *from) {
        return {_mm256_loadu_ps(reinterpret_cast<const float *>(from))};
    }
    static void store_floats8(float *to, Floats8 a) { _mm256_storeu_ps(to, a.v); }
    static Sums8 splat_sums8(int32_t value) { return {_mm256_set1_epi32(value)}; }
    // 4 bytes, a nibble a row.
    static Sums8 load_zeros8(const uint8_t *from) {
        uint32_t nibbles;
        __builtin_memcpy(&nibbles, from, 4);
        const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(nibbles)), shift);
        return {_mm256_and_si256(all, _mm256_set1_epi32(15))};
    }
    // dots - zero * sum. Both fit 16 bits: zero in 0..128, |sum| <= 128 * 127.
    static Sums8 take_zeros(Sums8 dots, Sums8 zero, int32_t sum) {
        return {_mm256_sub_epi32(dots.v, _mm256_madd_epi16(zero.v, _mm256_set1_epi32(sum)))};
    }
    static Floats8 fold8(Sums8 sums, float x_scale, Floats8 scale, Floats8 acc) {
        const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(x_scale), scale.v);
        return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums.v), factor, acc.v)};
    }
    static Floats8 fma8(Floats8 a, float b, Floats8 acc) {
        return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), acc.v)};
    }
    static Floats8 subtract8(Floats8 a, Floats8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
};

}  // namespace
}  // namespace qk::cpu

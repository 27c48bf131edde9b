// 16 int32 as two AVX2 registers: what the GRU (kernels/cpu/vector/gru_*.hpp) is written in.
// Products of bytes saturate here, so codes and weights are multiplied as 16 bits.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu/gru_pack.hpp"

namespace qk::cpu {
namespace {

#define QK_GRU_INLINE __attribute__((always_inline))
#define QK_HALVES _Pragma("GCC unroll 2") for (int q = 0; q < 2; ++q)

struct Ints {
    __m256i v[2];
};
struct Longs {  // of the even lanes, of the odd lanes
    __m256i even[2], odd[2];
};

inline __m256i load_256(const void *from) {
    return _mm256_loadu_si256(static_cast<const __m256i *>(from));
}
inline void store_256(void *to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i *>(to), v); }

inline Ints splat(int32_t value) { return {{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}}; }
inline Ints load(const int32_t *from) { return {{load_256(from), load_256(from + 8)}}; }
inline void store(int32_t *to, Ints a) { QK_HALVES store_256(to + 8 * q, a.v[q]); }

template <__m256i (*operation)(__m256i, __m256i)>
QK_GRU_INLINE inline Ints each(Ints a, Ints b) {
    return {{operation(a.v[0], b.v[0]), operation(a.v[1], b.v[1])}};
}
inline Ints add(Ints a, Ints b) { return each<_mm256_add_epi32>(a, b); }
inline Ints sub(Ints a, Ints b) { return each<_mm256_sub_epi32>(a, b); }
inline Ints mul(Ints a, Ints b) { return each<_mm256_mullo_epi32>(a, b); }
inline Ints both(Ints a, Ints b) { return each<_mm256_and_si256>(a, b); }
inline Ints larger(Ints a, Ints b) { return each<_mm256_max_epi32>(a, b); }
inline Ints smaller(Ints a, Ints b) { return each<_mm256_min_epi32>(a, b); }
inline Ints shift_left(Ints a, Ints n) { return each<_mm256_sllv_epi32>(a, n); }
inline Ints shift_right(Ints a, Ints n) { return each<_mm256_srav_epi32>(a, n); }
// All bits where a >= b.
inline Ints not_below(Ints a, Ints b) {
    Ints r;
    QK_HALVES r.v[q] = _mm256_cmpeq_epi32(_mm256_max_epi32(a.v[q], b.v[q]), a.v[q]);
    return r;
}
inline Ints load_bytes(const uint8_t *from) {
    Ints r;
    QK_HALVES r.v[q] =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + 8 * q)));
    return r;
}

inline Longs products(Ints a, Ints b) {
    Longs r;
    QK_HALVES {
        r.even[q] = _mm256_mul_epi32(a.v[q], b.v[q]);
        r.odd[q] = _mm256_mul_epi32(_mm256_srli_epi64(a.v[q], 32), _mm256_srli_epi64(b.v[q], 32));
    }
    return r;
}
inline Longs add(Longs a, Longs b) {
    Longs r;
    QK_HALVES {
        r.even[q] = _mm256_add_epi64(a.even[q], b.even[q]);
        r.odd[q] = _mm256_add_epi64(a.odd[q], b.odd[q]);
    }
    return r;
}
struct LongShift {  // rounding half to even; the result fits 32 bits
    __m256i half, one, sign;
    __m128i left, right;

    LongShift(int32_t to_left, int32_t to_right)
        : half(_mm256_set1_epi64x(to_right == 0 ? 0 : (int64_t{1} << (to_right - 1)) - 1)),
          one(_mm256_set1_epi64x(to_right != 0)),
          sign(_mm256_set1_epi64x(int64_t{1} << (63 - to_right))), left(_mm_cvtsi32_si128(to_left)),
          right(_mm_cvtsi32_si128(to_right)) {}
    // AVX2 has no arithmetic shift of 64 bits.
    __m256i shift_down(__m256i x) const {
        const __m256i logical = _mm256_srl_epi64(x, right);
        return _mm256_sub_epi64(_mm256_xor_si256(logical, sign), sign);
    }
    __m256i shift(__m256i x) const {
        x = _mm256_sll_epi64(x, left);
        const __m256i odd = _mm256_and_si256(_mm256_srl_epi64(x, right), one);
        return shift_down(_mm256_add_epi64(_mm256_add_epi64(x, half), odd));
    }
    Ints operator()(Longs x) const {
        Ints r;
        QK_HALVES r.v[q] =
            _mm256_blend_epi32(shift(x.even[q]), _mm256_slli_epi64(shift(x.odd[q]), 32), 0xaa);
        return r;
    }
};

// Each lane by its own shift of 1..62, half to even, then clamped: what is left fits 32 bits. AVX2
// has no arithmetic shift of 64 bits: |x| < 2^62, so 2^62 more is positive.
inline Ints round_lanes(Longs x, Ints shift, int32_t min, int32_t max) {
    const __m256i one = _mm256_set1_epi64x(1), lift = _mm256_set1_epi64x(int64_t{1} << 62);
    const __m256i low = _mm256_set1_epi64x(min), high = _mm256_set1_epi64x(max);
    const auto round = [&](__m256i v, __m256i n) QK_GRU_INLINE {
        const __m256i top = _mm256_sllv_epi64(one, _mm256_sub_epi64(n, one));
        const __m256i half = _mm256_sub_epi64(top, one);
        const __m256i zero = _mm256_srlv_epi64(lift, n);
        v = _mm256_add_epi64(v, lift);
        const __m256i odd = _mm256_sub_epi64(_mm256_srlv_epi64(v, n), zero);
        v = _mm256_add_epi64(_mm256_add_epi64(v, half), _mm256_and_si256(odd, one));
        v = _mm256_sub_epi64(_mm256_srlv_epi64(v, n), zero);
        v = _mm256_blendv_epi8(v, low, _mm256_cmpgt_epi64(low, v));
        return _mm256_blendv_epi8(v, high, _mm256_cmpgt_epi64(v, high));
    };
    const __m256i word = _mm256_set1_epi64x(0xffffffff);
    Ints r;
    QK_HALVES {
        const __m256i even = round(x.even[q], _mm256_and_si256(shift.v[q], word));
        const __m256i odd = round(x.odd[q], _mm256_srli_epi64(shift.v[q], 32));
        r.v[q] = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    }
    return r;
}

inline Ints pick_16(const int32_t *table, Ints index) {
    Ints r;
    QK_HALVES r.v[q] = _mm256_i32gather_epi32(table, index.v[q], 4);
    return r;
}
struct DirectTable {
    const int *bytes;

    explicit DirectTable(const uint8_t *from) : bytes(reinterpret_cast<const int *>(from)) {}
    Ints look_up(Ints index) const {
        Ints r;
        QK_HALVES r.v[q] =
            _mm256_and_si256(_mm256_i32gather_epi32(bytes, index.v[q], 1), _mm256_set1_epi32(255));
        return r;
    }
};
inline void gather_pairs(const int32_t *pairs, Ints index, Ints *first, Ints *second) {
    QK_HALVES {
        first->v[q] = _mm256_i32gather_epi32(pairs, index.v[q], 8);
        second->v[q] = _mm256_i32gather_epi32(pairs + 1, index.v[q], 8);
    }
}

inline Ints load_codes(const char *from, int32_t bytes, int64_t count) {
    alignas(16) char some[32] = {};
    if (count < kGruUnits) {
        memcpy(some, from, size_t(count * bytes));
        from = some;
    }
    Ints r;
    QK_HALVES {
        r.v[q] = bytes == 1 ? _mm256_cvtepi8_epi32(
                                  _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + 8 * q)))
                            : _mm256_cvtepi16_epi32(_mm_loadu_si128(
                                  reinterpret_cast<const __m128i *>(from + 16 * q)));
    }
    return r;
}
// The low 16 bits of each lane.
inline __m256i narrow(Ints a) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    const __m256i mixed =
        _mm256_packus_epi32(_mm256_and_si256(a.v[0], low), _mm256_and_si256(a.v[1], low));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}
inline void store_codes(char *to, int32_t bytes, int64_t count, Ints a) {
    alignas(32) char some[32];
    const __m256i words = narrow(a);
    if (bytes == 1) {
        const __m128i packed =
            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_store_si128(reinterpret_cast<__m128i *>(some), packed);
    } else {
        store_256(some, words);
    }
    if (count == kGruUnits)
        memcpy(to, some, size_t(kGruUnits * bytes));
    else
        memcpy(to, some, size_t(count * bytes));
}
// gru::real_to_code without the zero point.
inline Ints to_integers(const char *from, int64_t count, float factor, float low, float high) {
    alignas(32) float some[16] = {};
    memcpy(some, from, size_t(count) * 4);
    Ints r;
    QK_HALVES {
        __m256 x = _mm256_mul_ps(_mm256_load_ps(some + 8 * q), _mm256_set1_ps(factor));
        x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));  // NaN to 0
        x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(high));
        const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        r.v[q] = _mm256_cvttps_epi32(whole);
    }
    return r;
}
inline void store_reals(char *to, int64_t count, Ints a, float factor) {
    alignas(32) float some[16];
    QK_HALVES _mm256_store_ps(some + 8 * q,
                              _mm256_mul_ps(_mm256_cvtepi32_ps(a.v[q]), _mm256_set1_ps(factor)));
    memcpy(to, some, size_t(count) * 4);
}

// Codes as int16, whatever their width.
inline int planes_of(int32_t) { return 1; }
constexpr bool kInPlanes = false;
inline void store_view(uint8_t *row, int64_t, int64_t index, Ints code, int) {
    store_256(row + 2 * index, narrow(code));
}

}  // namespace
}  // namespace qk::cpu

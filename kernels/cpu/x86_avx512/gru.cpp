// The GRU on AVX-512 with VNNI (sums of four products) and VBMI (tables of 256 bytes). VNNI
// multiplies unsigned codes by signed weights, so codes are stored 128 higher.
#include <immintrin.h>
#include <string.h>

#include "cpu/gru/run.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

struct GruAvx512Vnni {
    static constexpr uint32_t kFeature = kAvx512 | kAvx512Vnni | kAvx512Vbmi;
    static constexpr int kRows = 8;  // 24 sums, 3 weights and a code fit the registers

    struct Ints {
        __m512i v;

        QK_INLINE static Ints splat(int32_t value) { return {_mm512_set1_epi32(value)}; }
        QK_INLINE static Ints load(const int32_t *from) { return {_mm512_loadu_si512(from)}; }
        QK_INLINE void store(int32_t *to) const { _mm512_storeu_si512(to, v); }

        QK_INLINE friend Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
        QK_INLINE friend Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
        QK_INLINE friend Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
        QK_INLINE friend Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
        QK_INLINE friend Ints operator<<(Ints a, Ints n) { return {_mm512_sllv_epi32(a.v, n.v)}; }
        QK_INLINE friend Ints operator>>(Ints a, Ints n) { return {_mm512_srav_epi32(a.v, n.v)}; }
        QK_INLINE friend Ints operator>=(Ints a, Ints b) {
            return {_mm512_movm_epi32(_mm512_cmpge_epi32_mask(a.v, b.v))};
        }
        QK_INLINE friend Ints max(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
        QK_INLINE friend Ints min(Ints a, Ints b) { return {_mm512_min_epi32(a.v, b.v)}; }
    };
    struct Longs {  // of the even lanes, of the odd lanes
        __m512i even, odd;

        QK_INLINE friend Longs operator+(Longs a, Longs b) {
            return {_mm512_add_epi64(a.even, b.even), _mm512_add_epi64(a.odd, b.odd)};
        }
    };

    QK_INLINE static Ints load_bytes(const uint8_t *from) {
        return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)))};
    }

    QK_INLINE static Longs products(Ints a, Ints b) {
        return {_mm512_mul_epi32(a.v, b.v),
                _mm512_mul_epi32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32))};
    }
    struct LongShift {  // rounding half to even; the result fits 32 bits
        __m512i left, half, one, right;

        LongShift(int32_t to_left, int32_t to_right)
            : left(_mm512_set1_epi64(to_left)),
              half(_mm512_set1_epi64(to_right == 0 ? 0 : (int64_t{1} << (to_right - 1)) - 1)),
              one(_mm512_set1_epi64(to_right != 0)), right(_mm512_set1_epi64(to_right)) {}
        __m512i shift(__m512i x) const {
            x = _mm512_sllv_epi64(x, left);
            const __m512i odd = _mm512_and_si512(_mm512_srav_epi64(x, right), one);
            return _mm512_srav_epi64(_mm512_add_epi64(_mm512_add_epi64(x, half), odd), right);
        }
        Ints operator()(Longs x) const {
            return {_mm512_mask_blend_epi32(0xaaaa, shift(x.even),
                                            _mm512_slli_epi64(shift(x.odd), 32))};
        }
    };

    // Each lane by its own shift of 1..62, half to even, then clamped: what is left fits 32 bits.
    QK_INLINE static Ints round_lanes(Longs x, Ints shift, int32_t min, int32_t max) {
        const __m512i one = _mm512_set1_epi64(1);
        const auto round = [&](__m512i v, __m512i n) QK_INLINE {
            const __m512i top = _mm512_sllv_epi64(one, _mm512_sub_epi64(n, one));
            const __m512i half = _mm512_sub_epi64(top, one);
            const __m512i odd = _mm512_and_si512(_mm512_srav_epi64(v, n), one);
            v = _mm512_srav_epi64(_mm512_add_epi64(_mm512_add_epi64(v, half), odd), n);
            v = _mm512_max_epi64(v, _mm512_set1_epi64(min));
            return _mm512_min_epi64(v, _mm512_set1_epi64(max));
        };
        const __m512i even = _mm512_and_si512(shift.v, _mm512_set1_epi64(0xffffffff));
        const __m512i odd = _mm512_srli_epi64(shift.v, 32);
        return {_mm512_mask_blend_epi32(0xaaaa, round(x.even, even),
                                        _mm512_slli_epi64(round(x.odd, odd), 32))};
    }

    // 256 bytes in four registers.
    struct ByteTable {
        __m512i part[4];

        explicit ByteTable(const uint8_t *bytes) {
            for (int i = 0; i < 4; ++i)
                part[i] = bytes == nullptr ? __m512i{} : _mm512_loadu_si512(bytes + 64 * i);
        }
        Ints look_up(Ints index) const {
            constexpr __mmask64 lowest = 0x1111111111111111;  // byte of each lane
            const __m512i low = _mm512_maskz_permutex2var_epi8(lowest, part[0], index.v, part[1]);
            const __m512i high = _mm512_maskz_permutex2var_epi8(lowest, part[2], index.v, part[3]);
            return {_mm512_mask_blend_epi8(_mm512_movepi8_mask(index.v), low, high)};
        }
    };

    QK_INLINE static Ints look_up_16(const int32_t *table, Ints index) {
        return {_mm512_permutexvar_epi32(index.v, _mm512_loadu_si512(table))};
    }
    QK_INLINE static void gather_pairs(const int32_t *pairs, Ints index, Ints *first,
                                       Ints *second) {
        const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(index.v), pairs, 8);
        const __m512i high =
            _mm512_i32gather_epi64(_mm512_extracti32x8_epi32(index.v, 1), pairs, 8);
        const __m512i even =
            _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        first->v = _mm512_permutex2var_epi32(low, even, high);
        second->v =
            _mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
    }

    QK_INLINE static __mmask16 first_lanes(int64_t count) { return __mmask16((1u << count) - 1); }

    QK_INLINE static Ints load_codes(const char *from, int32_t bytes, int64_t count) {
        if (bytes == 1)
            return {_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), from))};
        return {_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), from))};
    }
    QK_INLINE static void store_codes(char *to, int32_t bytes, int64_t count, Ints a) {
        if (bytes == 1)
            _mm_mask_storeu_epi8(to, first_lanes(count), _mm512_cvtepi32_epi8(a.v));
        else
            _mm256_mask_storeu_epi16(to, first_lanes(count), _mm512_cvtepi32_epi16(a.v));
    }
    // gru::real_to_code without the zero point.
    QK_INLINE static Ints load_reals(const char *from, int64_t count, float factor, float low,
                                     float high) {
        const __m512 real = _mm512_maskz_loadu_ps(first_lanes(count), from);
        __m512 x = _mm512_mul_ps(real, _mm512_set1_ps(factor));
        x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);  // NaN to 0
        x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(low)), _mm512_set1_ps(high));
        return {_mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    }
    QK_INLINE static void store_reals(char *to, int64_t count, Ints a, float factor) {
        _mm512_mask_storeu_ps(to, first_lanes(count),
                              _mm512_mul_ps(_mm512_cvtepi32_ps(a.v), _mm512_set1_ps(factor)));
    }

    // Codes as VNNI reads them: one plane of code + 128, or (code >> 8) + 128 and code & 255.
    QK_INLINE static int code_planes(int32_t code_bytes) { return code_bytes; }
    static constexpr bool kInPlanes = true;
    QK_INLINE static void store_operands(uint8_t *row, int64_t plane_stride, int64_t index,
                                         Ints code, int planes) {
        const __m512i offset = _mm512_set1_epi32(128);
        __m128i *const to = reinterpret_cast<__m128i *>(row + index);
        if (planes == 1) {
            _mm_storeu_si128(to, _mm512_cvtepi32_epi8(_mm512_add_epi32(code.v, offset)));
            return;
        }
        const __m512i high = _mm512_add_epi32(_mm512_srai_epi32(code.v, 8), offset);
        _mm_storeu_si128(to, _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(row + plane_stride + index),
                         _mm512_cvtepi32_epi8(code.v));
    }

    // A panel of 48 rows of weights times `rows` rows of codes. The fewer rows, the more columns at
    // a time: twelve sums in flight hide the unit's latency. Every loop over sums is unrolled: what
    // is indexed at run time does not stay in registers.
    template <int rows, bool words>
    QK_INLINE static void dot_groups(const int8_t *weights, int64_t groups,
                                     const uint8_t *const *codes, GruSums sums) {
        constexpr int together = rows >= 4 ? 1 : 4 / rows;
        __m512i acc[together * rows * 3];
#pragma GCC unroll 24
        for (__m512i &sum : acc) sum = _mm512_setzero_si512();
        const auto add_group = [&](int64_t group, __m512i *to) QK_INLINE {
            const int8_t *const at = weights + group * (3 * kGruUnits * 4);
            const __m512i w[3] = {_mm512_load_si512(at), _mm512_load_si512(at + 64),
                                  _mm512_load_si512(at + 128)};
#pragma GCC unroll 8
            for (int row = 0; row < rows; ++row) {
                int32_t four;
                memcpy(&four, codes[row] + 4 * group, 4);
                const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 3
                for (int gate = 0; gate < 3; ++gate)
                    to[row * 3 + gate] = words
                                             ? _mm512_dpwssd_epi32(to[row * 3 + gate], x, w[gate])
                                             : _mm512_dpbusd_epi32(to[row * 3 + gate], x, w[gate]);
            }
        };
        int64_t group = 0;
        for (; group + together <= groups; group += together) {
#pragma GCC unroll 4
            for (int i = 0; i < together; ++i) add_group(group + i, acc + i * rows * 3);
        }
        for (; group < groups; ++group) add_group(group, acc);
#pragma GCC unroll 24
        for (int row = 0; row < rows * 3; ++row) {
            __m512i sum = acc[row];
#pragma GCC unroll 4
            for (int i = 1; i < together; ++i) sum = _mm512_add_epi32(sum, acc[i * rows * 3 + row]);
            _mm512_store_si512(&sums[0][0][0] + row * kGruUnits, sum);
        }
    }

    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        dot_groups<rows, false>(weights, groups, codes, sums);
    }
    // Two columns of 16 bits a group instead of four of 8.
    template <int rows>
    QK_NOINLINE static void dot_words(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        dot_groups<rows, true>(weights, groups, codes, sums);
    }
};

}  // namespace

const Kernel<GruArgs> kGruAvx512Vnni = {"avx512 vnni", can_run_gru<GruAvx512Vnni>, nullptr,
                                        run_gru<GruAvx512Vnni>};

}  // namespace qk::cpu

// The GRU on AVX2: 16 int32 as two registers, and pairs of 16-bit products (vpmaddwd), exact for
// 8-bit weights and any code. Products of bytes would saturate here.
#include <immintrin.h>
#include <string.h>

#include "cpu/gru/float.hpp"
#include "cpu/gru/run.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx2/isa.hpp"

#define QK_HALVES _Pragma("GCC unroll 2") for (int q = 0; q < 2; ++q)

namespace qk::cpu {
namespace {

struct GruAvx2 {
    static constexpr uint32_t kFeature = kAvx2;
    static constexpr int kRows = 2;

    QK_INLINE static __m256i load_256(const void *from) {
        return _mm256_loadu_si256(static_cast<const __m256i *>(from));
    }
    QK_INLINE static void store_256(void *to, __m256i v) {
        _mm256_storeu_si256(static_cast<__m256i *>(to), v);
    }

    struct Ints {
        __m256i v[2];

        QK_INLINE static Ints splat(int32_t value) {
            return {{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}};
        }
        QK_INLINE static Ints load(const int32_t *from) {
            return {{load_256(from), load_256(from + 8)}};
        }
        QK_INLINE void store(int32_t *to) const { QK_HALVES store_256(to + 8 * q, v[q]); }

        template <__m256i (*operation)(__m256i, __m256i)>
        QK_INLINE static Ints each(Ints a, Ints b) {
            return {{operation(a.v[0], b.v[0]), operation(a.v[1], b.v[1])}};
        }
        QK_INLINE friend Ints operator+(Ints a, Ints b) { return each<_mm256_add_epi32>(a, b); }
        QK_INLINE friend Ints operator-(Ints a, Ints b) { return each<_mm256_sub_epi32>(a, b); }
        QK_INLINE friend Ints operator*(Ints a, Ints b) { return each<_mm256_mullo_epi32>(a, b); }
        QK_INLINE friend Ints operator&(Ints a, Ints b) { return each<_mm256_and_si256>(a, b); }
        QK_INLINE friend Ints operator<<(Ints a, Ints n) { return each<_mm256_sllv_epi32>(a, n); }
        QK_INLINE friend Ints operator>>(Ints a, Ints n) { return each<_mm256_srav_epi32>(a, n); }
        QK_INLINE friend Ints operator>=(Ints a, Ints b) {
            const Ints larger = max(a, b);
            return each<_mm256_cmpeq_epi32>(larger, a);
        }
        QK_INLINE friend Ints max(Ints a, Ints b) { return each<_mm256_max_epi32>(a, b); }
        QK_INLINE friend Ints min(Ints a, Ints b) { return each<_mm256_min_epi32>(a, b); }
    };
    struct Longs {  // of the even lanes, of the odd lanes
        __m256i even[2], odd[2];

        QK_INLINE friend Longs operator+(Longs a, Longs b) {
            Longs r;
            QK_HALVES {
                r.even[q] = _mm256_add_epi64(a.even[q], b.even[q]);
                r.odd[q] = _mm256_add_epi64(a.odd[q], b.odd[q]);
            }
            return r;
        }
    };

    QK_INLINE static Ints load_bytes(const uint8_t *from) {
        Ints r;
        QK_HALVES r.v[q] =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + 8 * q)));
        return r;
    }

    QK_INLINE static Longs products(Ints a, Ints b) {
        Longs r;
        QK_HALVES {
            r.even[q] = _mm256_mul_epi32(a.v[q], b.v[q]);
            r.odd[q] =
                _mm256_mul_epi32(_mm256_srli_epi64(a.v[q], 32), _mm256_srli_epi64(b.v[q], 32));
        }
        return r;
    }
    struct LongShift {  // rounding half to even; the result fits 32 bits
        __m256i half, one, sign;
        __m128i left, right;

        LongShift(int32_t to_left, int32_t to_right)
            : half(_mm256_set1_epi64x(to_right == 0 ? 0 : (int64_t{1} << (to_right - 1)) - 1)),
              one(_mm256_set1_epi64x(to_right != 0)),
              sign(_mm256_set1_epi64x(int64_t{1} << (63 - to_right))),
              left(_mm_cvtsi32_si128(to_left)), right(_mm_cvtsi32_si128(to_right)) {}
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

    // Each lane by its own shift of 1..62, half to even, then clamped: what is left fits 32 bits.
    // AVX2 has no arithmetic shift of 64 bits: |x| < 2^62, so 2^62 more is positive.
    QK_INLINE static Ints round_lanes(Longs x, Ints shift, int32_t min, int32_t max) {
        const __m256i one = _mm256_set1_epi64x(1), lift = _mm256_set1_epi64x(int64_t{1} << 62);
        const __m256i low = _mm256_set1_epi64x(min), high = _mm256_set1_epi64x(max);
        const auto round = [&](__m256i v, __m256i n) QK_INLINE {
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

    QK_INLINE static Ints look_up_16(const int32_t *table, Ints index) {
        Ints r;
        QK_HALVES r.v[q] = _mm256_i32gather_epi32(table, index.v[q], 4);
        return r;
    }
    struct ByteTable {
        const int *bytes;

        explicit ByteTable(const uint8_t *from) : bytes(reinterpret_cast<const int *>(from)) {}
        Ints look_up(Ints index) const {
            Ints r;
            QK_HALVES r.v[q] = _mm256_and_si256(_mm256_i32gather_epi32(bytes, index.v[q], 1),
                                                _mm256_set1_epi32(255));
            return r;
        }
    };
    QK_INLINE static void gather_pairs(const int32_t *pairs, Ints index, Ints *first,
                                       Ints *second) {
        QK_HALVES {
            first->v[q] = _mm256_i32gather_epi32(pairs, index.v[q], 8);
            second->v[q] = _mm256_i32gather_epi32(pairs + 1, index.v[q], 8);
        }
    }

    QK_INLINE static Ints load_codes(const char *from, int32_t bytes, int64_t count) {
        alignas(16) char some[32] = {};
        if (count < kGruUnits) {
            memcpy(some, from, size_t(count * bytes));
            from = some;
        }
        Ints r;
        QK_HALVES {
            r.v[q] = bytes == 1
                         ? _mm256_cvtepi8_epi32(
                               _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + 8 * q)))
                         : _mm256_cvtepi16_epi32(
                               _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + 16 * q)));
        }
        return r;
    }
    // The low 16 bits of each lane.
    QK_INLINE static __m256i narrow(Ints a) {
        const __m256i low = _mm256_set1_epi32(0xffff);
        const __m256i mixed =
            _mm256_packus_epi32(_mm256_and_si256(a.v[0], low), _mm256_and_si256(a.v[1], low));
        return _mm256_permute4x64_epi64(mixed, 0xd8);
    }
    QK_INLINE static void store_codes(char *to, int32_t bytes, int64_t count, Ints a) {
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
    QK_INLINE static Ints load_reals(const char *from, int64_t count, float factor, float low,
                                     float high) {
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
    QK_INLINE static void store_reals(char *to, int64_t count, Ints a, float factor) {
        alignas(32) float some[16];
        QK_HALVES _mm256_store_ps(
            some + 8 * q, _mm256_mul_ps(_mm256_cvtepi32_ps(a.v[q]), _mm256_set1_ps(factor)));
        memcpy(to, some, size_t(count) * 4);
    }

    // Codes as int16, whatever their width.
    QK_INLINE static int code_planes(int32_t) { return 1; }
    static constexpr bool kInPlanes = false;
    QK_INLINE static void store_operands(uint8_t *row, int64_t, int64_t index, Ints code, int) {
        store_256(row + 2 * index, narrow(code));
    }

    // Four rows by four columns: a dword holds two columns of a row.
    QK_INLINE static __m256i add_rows(__m256i sum, __m256i weights, __m256i codes) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(weights, codes));
    }
    QK_INLINE static __m256i widen(const int8_t *weights) {
        return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i *>(weights)));
    }
    QK_INLINE static __m256i four_codes(const uint8_t *codes, int64_t group) {
        int64_t four;
        memcpy(&four, codes + 8 * group, 8);
        return _mm256_set1_epi64x(four);
    }
    QK_INLINE static void store_sums(const __m256i (&sum)[4], int32_t *to) {
        for (int q = 0; q < 2; ++q) {
            const __m256i pairs = _mm256_hadd_epi32(sum[2 * q], sum[2 * q + 1]);
            store_256(to + 8 * q, _mm256_permute4x64_epi64(pairs, 0xd8));
        }
    }

    // A panel of 48 rows of weights times `rows` rows of codes. A single row takes the three gates
    // together, in the order of memory; more of them share the widened weights instead.
    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        constexpr int together = rows == 1 ? 3 : 1;
        for (int first = 0; first < 3; first += together) {
            __m256i acc[together][rows][4];
            for (auto &gate : acc)
                for (auto &row : gate)
                    for (__m256i &sum : row) sum = _mm256_setzero_si256();
            for (int64_t group = 0; group < groups; ++group) {
                __m256i x[rows];
                for (int row = 0; row < rows; ++row) x[row] = four_codes(codes[row], group);
                for (int gate = 0; gate < together; ++gate) {
                    const int8_t *const at = weights + (group * 3 + first + gate) * kGruUnits * 4;
#pragma GCC unroll 4
                    for (int q = 0; q < 4; ++q) {
                        const __m256i w = widen(at + 16 * q);
                        for (int row = 0; row < rows; ++row)
                            acc[gate][row][q] = add_rows(acc[gate][row][q], w, x[row]);
                    }
                }
            }
            for (int gate = 0; gate < together; ++gate)
                for (int row = 0; row < rows; ++row)
                    store_sums(acc[gate][row], sums[row][first + gate]);
        }
    }

    // The same of weights of 16 bits: a dword holds two columns of a row, a register eight rows.
    template <int rows>
    QK_NOINLINE static void dot_words(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        __m256i acc[rows][6];
        for (auto &row : acc)
            for (__m256i &sum : row) sum = _mm256_setzero_si256();
        for (int64_t group = 0; group < groups; ++group, weights += 3 * kGruUnits * 4) {
            for (int row = 0; row < rows; ++row) {
                int32_t pair;
                memcpy(&pair, codes[row] + 4 * group, 4);
                const __m256i x = _mm256_set1_epi32(pair);
#pragma GCC unroll 6
                for (int part = 0; part < 6; ++part)
                    acc[row][part] = add_rows(acc[row][part], load_256(weights + 32 * part), x);
            }
        }
        for (int row = 0; row < rows; ++row)
            for (int part = 0; part < 6; ++part)
                store_256(&sums[row][0][0] + 8 * part, acc[row][part]);
    }
};

}  // namespace

const Kernel<GruArgs> kGruAvx2 = {"avx2", can_run_gru<GruAvx2>, nullptr, run_gru<GruAvx2>};
const Kernel<FloatProductArgs> kFloatProductAvx2 = float_product_kernel<Avx2>("avx2");
const Kernel<FloatGatesArgs> kFloatGatesAvx2 = float_gates_kernel<Avx2>("avx2");

}  // namespace qk::cpu

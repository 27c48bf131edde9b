// Dequantize, repack and quantize on AVX-512. The quantizer is a binary search over the thresholds,
// in which a permute finds the next one for 16 numbers at a time.
#include <immintrin.h>

#include "cpu/access.hpp"
#include "cpu/convert/dequantize.hpp"
#include "cpu/convert/quantize.hpp"
#include "cpu/convert/repack.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512Quantizer {
    static constexpr uint32_t kFeature = Avx512::kFeature;

    static void widen(const Dense &from, int64_t first, int64_t count, float *to) {
        widen_x<Avx512>(from, first, count, to);
    }

    // Narrowing stores under a mask are slow on some processors.
    static void put_codes(__m512i codes, __mmask16 some, uint8_t *to) {
        const __m128i bytes = _mm512_cvtepi32_epi8(codes);
        if (some == 0xffff) {
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
        } else {
            _mm_mask_storeu_epi8(to, some, bytes);
        }
    }

    // Largest, smallest and largest magnitude by lanes; no order changes them. NaN as the first
    // operand of a minimum or maximum gives the second.
    static void scan(const float *x, int64_t count, GroupRange *range) {
        __m512 low = _mm512_set1_ps(range->low), high = _mm512_set1_ps(range->high);
        __m512i most = _mm512_set1_epi32(int(f32_bits(range->absmax)));
        __mmask16 nan = 0;
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 some = __mmask16(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
            const __m512 value = _mm512_maskz_loadu_ps(some, x + i);
            const __m512i magnitude =
                _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7fffffff));
            const __mmask16 number =
                _mm512_cmple_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
            low = _mm512_min_ps(value, low);
            high = _mm512_max_ps(value, high);
            most = _mm512_mask_max_epu32(most, number, most, magnitude);
            nan = __mmask16(nan | ~number);
        }
        range->low = _mm512_reduce_min_ps(low);
        range->high = _mm512_reduce_max_ps(high);
        range->absmax = f32_from_bits(_mm512_reduce_max_epu32(most));
        range->nan |= nan != 0;
    }

    // The largest magnitude as bits; those of a NaN are larger than any number's.
    static uint32_t scan_magnitudes(const float *x, int64_t count) {
        __m512i most = _mm512_setzero_si512();
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 some = __mmask16(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
            const __m512i magnitude = _mm512_and_si512(_mm512_maskz_loadu_epi32(some, x + i),
                                                       _mm512_set1_epi32(0x7fffffff));
            most = _mm512_max_epu32(most, magnitude);
        }
        return _mm512_reduce_max_epu32(most);
    }

    // Codes by the number of thresholds below (not at or above) each of `count` numbers; NaN is
    // above all of them. `thresholds` ascend, 16 of which 15 count.
    static void rank(const float *thresholds, const uint8_t *code, const float *s, int64_t count,
                     uint8_t *codes) {
        const __m512i iota =
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512 at = _mm512_loadu_ps(thresholds);
        const __m512 at_1 = _mm512_permutexvar_ps(_mm512_add_epi32(iota, _mm512_set1_epi32(1)), at);
        const __m512 at_3 = _mm512_permutexvar_ps(_mm512_add_epi32(iota, _mm512_set1_epi32(3)), at);
        const __m512 at_7 = _mm512_set1_ps(thresholds[7]);
        const __m512i order =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(code)));
        const auto step = [](__m512i rank, __m512 value, __m512 threshold, int half) QK_INLINE {
            const __mmask16 above = _mm512_cmp_ps_mask(value, threshold, _CMP_NLE_UQ);
            return _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(half));
        };
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 some = __mmask16(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
            const __m512 value = _mm512_maskz_loadu_ps(some, s + i);
            __m512i rank = step(_mm512_setzero_si512(), value, at_7, 8);
            rank = step(rank, value, _mm512_permutexvar_ps(rank, at_3), 4);
            rank = step(rank, value, _mm512_permutexvar_ps(rank, at_1), 2);
            rank = step(rank, value, _mm512_permutexvar_ps(rank, at), 1);
            put_codes(_mm512_permutexvar_epi32(rank, order), some, codes + i);
        }
    }

    // Codes of U4; `zero` is -1 where the tensor is symmetric. Quotients past 32 are past every
    // code; NaN (infinity by infinity) counts as 0 after the zero was added.
    static void round_u4(const float *x, int64_t count, float divisor, int zero, uint8_t *codes) {
        const __m512 by = _mm512_set1_ps(divisor), most = _mm512_set1_ps(32);
        const __m512i offset = _mm512_set1_epi32(zero >= 0 ? zero : 8);
        const __m512i of_nan = _mm512_set1_epi32(zero >= 0 ? 0 : 8);
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 some = __mmask16(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
            const __m512 value = _mm512_div_ps(_mm512_maskz_loadu_ps(some, x + i), by);
            const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
            const __m512 within = _mm512_max_ps(_mm512_min_ps(value, most), _mm512_set1_ps(-32));
            const __m512i code = _mm512_add_epi32(
                _mm512_cvt_roundps_epi32(within, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                offset);
            const __m512i clamped = _mm512_max_epi32(_mm512_min_epi32(code, _mm512_set1_epi32(15)),
                                                     _mm512_setzero_si512());
            put_codes(_mm512_mask_mov_epi32(clamped, nan, of_nan), some, codes + i);
        }
    }

    static void round_s8(const float *x, int64_t count, float divisor, uint8_t *codes) {
        round_s8_each(x, count, divisor, codes);
    }
};

}  // namespace

const Kernel<QuantizeArgs> kQuantizeAvx512 = {"avx512", can_run_quantize<Avx512Quantizer>, nullptr,
                                              run_quantize<Avx512Quantizer>};

const Kernel<DequantizeArgs> kDequantizeAvx512 = {"avx512", can_run_dequantize<Avx512>, nullptr,
                                                  run_dequantize<Avx512>};
const Kernel<RepackArgs> kRepackAvx512 = {"avx512", can_run_repack<Avx512>, nullptr,
                                          run_repack<Avx512>};

}  // namespace qk::cpu

// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"), AVX2.
//
// An integer of x is three signed bytes, 65536 * [2] + 256 * [1] + [0], and codes are unsigned
// bytes: vpmaddubsw multiplies 32 of either and adds neighbours. Four products of one dword's codes
// fit 16 bits (4 * 15 * 128), so low and high nibbles are added first and then widened:
//
//     words -> 32 low codes, 32 high codes                      3 instructions
//     for each of 3 bytes: 2 products, their sum, widened       4
//     [0] + 256 * [1] + 65536 * [2] - zero * sum of x           5
//     sum = fma(that as f32, unit * scale, sum)                 2
//
// 22 instructions for 64 codes, where f32 products of two halves of x take 56. 32 bits hold a
// lane's 8 products: 8 * 15 * 2^23 < 2^30; converting their sum to f32 rounds it once.
#pragma once
#include "cpu/linear/gemv_integers.hpp"
#include "cpu/x86_avx2/isa.hpp"

namespace qk::cpu {
namespace {

class Avx2Products {
  public:
    using X = XBytes;

    explicit Avx2Products(const Weight &) {}

    QK_INLINE static void add(const uint8_t *codes, const X &x, const char *scales,
                              const uint8_t *zeros, Sums<Avx2> &sums) {
        Factors factors;
        const __m256 scale = _mm256_loadu_ps(reinterpret_cast<const float *>(scales));
        _mm256_store_ps(factors.scale, _mm256_mul_ps(scale, _mm256_set1_ps(x.unit)));
        split_zeros(load_as<uint32_t>(zeros, 0), factors.zero);
        add_chunk_of(codes, x, factors, sums);
    }

  private:
    // Of a chunk's 8 rows, as they are multiplied.
    struct Factors {
        alignas(32) float scale[8];
        alignas(32) int32_t zero[8];
    };

    QK_INLINE static void add_chunk_of(const uint8_t *codes, const XBytes &x,
                                       const Factors &factors, Sums<Avx2> &sums) {
        // Broadcast from memory: compilers shuffle what they still have in a register.
        asm volatile("" : : "r"(&factors) : "memory");
        QK_UNROLL
        for (int row = 0; row < 8; ++row) {
            prefetch_stream(codes + 64 * row + kAhead);
            const __m256i zero = _mm256_set1_epi32(factors.zero[row]);
            const __m256 scale = _mm256_set1_ps(factors.scale[row]);
            Lanes<Avx2> &sum = sums.row[row];
            sum.low = add_half<0>(codes + 64 * row, x, zero, scale, sum.low);
            sum.high = add_half<1>(codes + 64 * row, x, zero, scale, sum.high);
        }
    }

    static void split_zeros(uint32_t nibbles, int32_t (&to)[8]) {  // a nibble a row
        const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(nibbles)),
                                              _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        _mm256_store_si256(reinterpret_cast<__m256i *>(to),
                           _mm256_and_si256(all, _mm256_set1_epi32(15)));
    }

    static __m256i load(const uint32_t *from) {
        return _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
    }
    template <int place, int half>
    QK_INLINE static __m256i products(__m256i even, __m256i odd, const XBytes &x) {
        return _mm256_add_epi16(_mm256_maddubs_epi16(even, load(x.low[place] + 8 * half)),
                                _mm256_maddubs_epi16(odd, load(x.high[place] + 8 * half)));
    }

    // 8 lanes of a row's sum.
    template <int half>
    QK_INLINE static __m256 add_half(const uint8_t *codes, const XBytes &x, __m256i zero,
                                     __m256 factor, __m256 sum) {
        const __m256i nibble = _mm256_set1_epi8(15);
        __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes + 32 * half));
        asm("" : "+x"(words));  // loaded once, not once per use
        const __m256i even = _mm256_and_si256(words, nibble);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(words, 4), nibble);
        const __m256i first = products<0, half>(even, odd, x);
        const __m256i middle = products<1, half>(even, odd, x);
        const __m256i last = products<2, half>(even, odd, x);
        const __m256i low = _mm256_add_epi32(_mm256_madd_epi16(first, _mm256_set1_epi16(1)),
                                             _mm256_madd_epi16(middle, _mm256_set1_epi16(256)));
        const __m256i high = _mm256_madd_epi16(last, _mm256_set1_epi16(1));
        const __m256i all = _mm256_add_epi32(low, _mm256_slli_epi32(high, 16));
        const __m256i dot = _mm256_sub_epi32(all, _mm256_mullo_epi32(zero, load(x.sum + 8 * half)));
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factor, sum);
    }
};

using Avx2IntegerRows = RowsOfIntegers<Avx2, Avx2Products>;

}  // namespace
}  // namespace qk::cpu

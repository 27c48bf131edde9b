// Integer dot products of a chunk of 8 rows, AVX-512 VNNI. Included after lanes.hpp.
#pragma once
#include "cpu/int8.hpp"
#include "cpu/vector/int8_ymm.hpp"
#include "cpu/x86_avx512/lanes.hpp"

namespace qk::cpu {
namespace {

#define QK_INT8_INLINE __attribute__((always_inline))

constexpr uint32_t kInt8Feature = 1u << 3;  // kAvx512Vnni
constexpr int32_t kTableOffset = 128;       // vpdpbusd multiplies unsigned by signed

// Columns of two vectors added: [a0 + a2, b0 + b2, a1 + a3, b1 + b3] in every 128 bits, and so on.
inline __m512i add_unpacked_32(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
inline __m512i add_unpacked_64(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
// [a0 + a1, a2 + a3, b0 + b1, b2 + b3] in every 128 bits.
inline __m512i add_neighbours(__m512i a, __m512i b) {
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}
// 128-bit quarters: [a0 + a2, a1 + a3, b0 + b2, b1 + b3], then [a0 + a1, a2 + a3, b0 + b1, ...].
inline __m512i add_halves(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
}
inline __m512i add_quarters(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// 8 rows of 16 partial sums -> 8 sums.
inline void fold_rows_1(const __m512i (&d)[8], Sums8 *to) {
    const __m512i low = add_unpacked_64(add_unpacked_32(d[0], d[1]), add_unpacked_32(d[2], d[3]));
    const __m512i high = add_unpacked_64(add_unpacked_32(d[4], d[5]), add_unpacked_32(d[6], d[7]));
    const __m512i both = add_halves(low, high);
    to->v = _mm512_castsi512_si256(add_quarters(both, both));
}
// Dwords 0, 1 of every 128 bits are block 0, dwords 2, 3 block 1.
inline void fold_rows_2(const __m512i (&d)[8], Sums8 *to) {
    const __m512i low = add_halves(add_neighbours(d[0], d[1]), add_neighbours(d[2], d[3]));
    const __m512i high = add_halves(add_neighbours(d[4], d[5]), add_neighbours(d[6], d[7]));
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i all = _mm512_permutexvar_epi32(order, add_quarters(low, high));
    to[0].v = _mm512_castsi512_si256(all);
    to[1].v = _mm512_extracti64x4_epi64(all, 1);
}
// Dword b of every 128 bits is block b: to[b * stride].
inline void fold_rows_4(const __m512i (&d)[8], Sums8 *to, int stride) {
    const __m512i low = add_quarters(add_halves(d[0], d[1]), add_halves(d[2], d[3]));
    const __m512i high = add_quarters(add_halves(d[4], d[5]), add_halves(d[6], d[7]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25,
                                            29);
    const __m512i rest = _mm512_add_epi32(order, _mm512_set1_epi32(2));
    const __m512i first = _mm512_permutex2var_epi32(low, order, high);
    const __m512i last = _mm512_permutex2var_epi32(low, rest, high);
    to[0].v = _mm512_castsi512_si256(first);
    to[stride].v = _mm512_extracti64x4_epi64(first, 1);
    to[2 * stride].v = _mm512_castsi512_si256(last);
    to[3 * stride].v = _mm512_extracti64x4_epi64(last, 1);
}

// The low and the high nibbles of a row's chunk as bytes to multiply.
struct Nibbles {
    __m512i low, high;
};
template <bool table, bool in_order>
class NibbleDecoder {
  public:
    explicit NibbleDecoder(const Int8Entries &entries) {
        uint8_t bytes[16];
        for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(entries.value[i] + kTableOffset);
        table_ = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
    }
    QK_INT8_INLINE Nibbles load(const uint8_t *codes) const {
        const __m512i mask = _mm512_set1_epi8(15);
        __m512i words = load_words(codes).v;
        if (in_order) {  // dword b of every 128 bits: the b-th bytes of the four
            words = _mm512_shuffle_epi8(
                words, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14,
                                                            3, 7, 11, 15)));
        }
        const __m512i low = _mm512_and_si512(words, mask);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(words, 4), mask);
        if (!table) return {low, high};
        return {_mm512_shuffle_epi8(table_, low), _mm512_shuffle_epi8(table_, high)};
    }

  private:
    __m512i table_;
};

template <int kBlocks, bool table>
class ChunkDots {
  public:
    explicit ChunkDots(const Int8Entries &entries) : decoder_(entries) {}

    QK_INT8_INLINE void run(const uint8_t *codes, const int8_t *x_low, const int8_t *x_high,
                      Sums8 (&to)[kBlocks]) const {
        __m512i low = _mm512_loadu_si512(x_low), high = _mm512_loadu_si512(x_high);
        asm volatile("" : "+v"(low), "+v"(high));
        const __m512i zero = _mm512_setzero_si512();
        __m512i d[8], e[8];
        _Pragma("GCC unroll 8")
        for (int row = 0; row < 8; ++row) {
            prefetch(codes + 64 * row + kInt8Ahead);
            const Nibbles w = decoder_.load(codes + 64 * row);
            d[row] = _mm512_dpbusd_epi32(zero, w.low, low);
            if (kBlocks == 8) {
                e[row] = _mm512_dpbusd_epi32(zero, w.high, high);
            } else {
                d[row] = _mm512_dpbusd_epi32(d[row], w.high, high);
            }
        }
        if (kBlocks == 1) fold_rows_1(d, to);
        if (kBlocks == 2) fold_rows_2(d, to);
        if (kBlocks == 4) fold_rows_4(d, to, 1);
        if (kBlocks == 8) {  // low nibbles are the even blocks
            fold_rows_4(d, to, 2);
            fold_rows_4(e, to + 1, 2);
        }
    }

  private:
    static constexpr int64_t kInt8Ahead = 8192;  // bytes fetched ahead of use
    NibbleDecoder<table, (kBlocks > 1)> decoder_;
};

}  // namespace
}  // namespace qk::cpu

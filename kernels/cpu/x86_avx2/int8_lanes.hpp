// Integer dot products of a chunk of 8 rows, AVX2. Included after lanes.hpp.
//
// Products of bytes add up in pairs of 16 bits (vpmaddubsw), unsigned times signed. Affine codes
// are unsigned as they are. Table entries take the sign of x, whose magnitude is the unsigned
// factor: 2 * 127 * 127 fits 15 bits, so nothing saturates.
#pragma once
#include "cpu/vector/int8_x_portable.hpp"
#include "cpu/vector/int8_ymm.hpp"
#include "cpu/x86_avx2/lanes.hpp"

namespace qk::cpu {
namespace {

constexpr uint32_t kInt8Feature = 1u << 0;  // kAvx2
#define QK_INT8_INLINE __attribute__((always_inline))

inline __m256i add_unpacked_32(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
inline __m256i add_unpacked_64(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
// [a0 + a1, a2 + a3, b0 + b1, b2 + b3] in both halves.
inline __m256i add_neighbours(__m256i a, __m256i b) {
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}
// The halves of a, then those of b.
inline __m256i add_halves(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

// 8 rows of 8 partial sums -> 8 sums.
inline void fold_rows_1(const __m256i (&d)[8], Sums8 *to) {
    const __m256i low = add_unpacked_64(add_unpacked_32(d[0], d[1]), add_unpacked_32(d[2], d[3]));
    const __m256i high = add_unpacked_64(add_unpacked_32(d[4], d[5]), add_unpacked_32(d[6], d[7]));
    to->v = add_halves(low, high);
}
// Dwords 0, 1 of both halves are block 0, dwords 2, 3 block 1.
inline void fold_rows_2(const __m256i (&d)[8], Sums8 *to) {
    const __m256i low = add_halves(add_neighbours(d[0], d[1]), add_neighbours(d[2], d[3]));
    const __m256i high = add_halves(add_neighbours(d[4], d[5]), add_neighbours(d[6], d[7]));
    const __m256 x = _mm256_castsi256_ps(low), y = _mm256_castsi256_ps(high);
    const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd));
    to[0].v = _mm256_permute4x64_epi64(even, _MM_SHUFFLE(3, 1, 2, 0));
    to[1].v = _mm256_permute4x64_epi64(odd, _MM_SHUFFLE(3, 1, 2, 0));
}
// Dword b of both halves is block b: to[b * stride].
inline void fold_rows_4(const __m256i (&d)[8], Sums8 *to, int stride) {
    const __m256i ab = add_halves(d[0], d[1]), cd = add_halves(d[2], d[3]);
    const __m256i ef = add_halves(d[4], d[5]), gh = add_halves(d[6], d[7]);
    const __m256i first = _mm256_unpacklo_epi32(ab, cd), second = _mm256_unpacklo_epi32(ef, gh);
    const __m256i third = _mm256_unpackhi_epi32(ab, cd), fourth = _mm256_unpackhi_epi32(ef, gh);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto put = [&](int block, __m256i v) {
        to[block * stride].v = _mm256_permutevar8x32_epi32(v, order);
    };
    put(0, _mm256_unpacklo_epi64(first, second));
    put(1, _mm256_unpackhi_epi64(first, second));
    put(2, _mm256_unpacklo_epi64(third, fourth));
    put(3, _mm256_unpackhi_epi64(third, fourth));
}

template <int kBlocks, bool table>
class ChunkDots {
  public:
    explicit ChunkDots(const Int8Entries &entries) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(entries.value));
        table_ = _mm256_broadcastsi128_si256(bytes);
    }

    QK_INT8_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
        __m256i d[8], e[8];
        for (int row = 0; row < 8; ++row) {
            prefetch(codes + 64 * row + 8192);
            __m256i low[2], high[2];  // pairs of products, of the low and the high nibbles
            for (int half = 0; half < 2; ++half) {
                const __m256i mask = _mm256_set1_epi8(15);
                const __m256i words = load(codes + 64 * row + 32 * half);
                low[half] = multiply(_mm256_and_si256(words, mask), load(x.low + 32 * half));
                high[half] = multiply(_mm256_and_si256(_mm256_srli_epi16(words, 4), mask),
                                      load(x.high + 32 * half));
            }
            if (kBlocks == 8) {
                d[row] = _mm256_add_epi32(widen(low[0]), widen(low[1]));
                e[row] = _mm256_add_epi32(widen(high[0]), widen(high[1]));
            } else if (table) {
                d[row] = _mm256_add_epi32(_mm256_add_epi32(widen(low[0]), widen(low[1])),
                                          _mm256_add_epi32(widen(high[0]), widen(high[1])));
            } else {  // 8 products of at most 15 * 127 fit 16 bits
                d[row] = widen(_mm256_add_epi16(_mm256_add_epi16(low[0], low[1]),
                                                _mm256_add_epi16(high[0], high[1])));
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
    static __m256i load(const void *from) {
        return _mm256_loadu_si256(static_cast<const __m256i *>(from));
    }
    __m256i multiply(__m256i code, __m256i x) const {
        if (kBlocks > 1) {  // dword b of 128 bits: the b-th bytes of the four
            code = _mm256_shuffle_epi8(code, _mm256_setr_epi8(
                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        }
        if (!table) return _mm256_maddubs_epi16(code, x);
        const __m256i entry = _mm256_shuffle_epi8(table_, code);
        return _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(entry, x));
    }
    static __m256i widen(__m256i pairs) {
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }

    __m256i table_;
};

}  // namespace
}  // namespace qk::cpu

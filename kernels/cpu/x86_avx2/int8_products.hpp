// Products of a tile of a batch in int8 mode (int8_tile.hpp), by form: vectors of w in memory times
// rows of x that are broadcast, two vectors at a time.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

// 128 columns of a tile's rows of x, a dword each: 4 columns in 32 steps or, wide, columns 0, 2, or
// 1, 3 of 4 in 64.
template <int kSteps>
struct YmmXTile : TileOfBlocks {
    int32_t x[kSteps][kTile];
};

template <class XTile>
struct TileGroup {  // of x, from the tile's row on
    const int32_t *x;
    int64_t first, steps;
    const float *scale;
    const int32_t *minus;

    // The next tile's, two lines.
    QK_INLINE static void fetch_next(const int32_t *at) {
        const uint8_t *const next = reinterpret_cast<const uint8_t *>(at) + sizeof(XTile);
        prefetch(next);
        prefetch(next + 2 * sizeof(int32_t[kTile]));
    }
};

// Sums in the order that is written: GCC 12 finds others, which spill.
QK_INLINE inline void add_words(__m256i &sum, __m256i more) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(more));
}
QK_INLINE inline void add_dwords(__m256i &sum, __m256i more) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(more));
}

// add(sum, w, x) for each step of a group, which has 4 at least, and row of x.
template <int kRows, class Group, class Add>
QK_INLINE inline void multiply_steps(const __m256i *w, const Group &group, __m256i (&sum)[kRows][2],
                                     const Add &add) {
    const int32_t *x = group.x;
    for (int64_t i = 0; i < group.steps; i += 4) {
        group.fetch_next(x);
        QK_UNROLL
        for (int step = 0; step < 4; ++step, w += 4, x += kTile) {
            const __m256i low = w[0], high = w[1];
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                const __m256i of_x = _mm256_set1_epi32(x[j]);
                add(sum[j][0], low, of_x);
                add(sum[j][1], high, of_x);
            }
        }
    }
}

// Four columns as dwords of bytes, unsigned.
struct FoursOfColumns {
    static constexpr int kSteps = 32;       // of a chunk
    static constexpr bool kOffsets = true;  // zeros and offsets are taken off sums

    QK_INLINE static void put(__m256i bytes, __m256i (*to)[4], int64_t four, int64_t block) {
        to[four][block] = bytes;
    }
    static void put_x(const int8_t (&q)[128], int32_t (*to)[kTile], int64_t j) {
        for (int i = 0; i < 32; ++i) memcpy(&to[i][j], q + 4 * i, 4);
    }
};

struct SmallProducts : FoursOfColumns {
    static constexpr int kRows = 2;
    static constexpr bool kShifts = true;

    // 8 products of at most 31 * 127 fit 16 bits.
    template <class Group>
    QK_INLINE static void multiply(const __m256i *w, const Group &group, __m256i (&sum)[kRows][2]) {
        const int32_t *x = group.x;
        const __m256i ones = _mm256_set1_epi16(1);
        for (int64_t i = 0; i < group.steps; i += 4) {  // a group has 4 at least
            group.fetch_next(x);
            __m256i pairs[2][2];
            QK_UNROLL
            for (int step = 0; step < 4; ++step, w += 4, x += kTile) {
                const __m256i low = w[0], high = w[1];
                QK_UNROLL
                for (int j = 0; j < 2; ++j) {
                    const __m256i four = _mm256_set1_epi32(x[j]);
                    const __m256i first = _mm256_maddubs_epi16(low, four);
                    const __m256i second = _mm256_maddubs_epi16(high, four);
                    if (step == 0) {
                        pairs[j][0] = first, pairs[j][1] = second;
                    } else {
                        add_words(pairs[j][0], first);
                        add_words(pairs[j][1], second);
                    }
                }
            }
            QK_UNROLL
            for (int j = 0; j < 2; ++j) {
                add_dwords(sum[j][0], _mm256_madd_epi16(pairs[j][0], ones));
                add_dwords(sum[j][1], _mm256_madd_epi16(pairs[j][1], ones));
            }
        }
    }
};

struct WideProducts {
    static constexpr int kRows = 4, kSteps = 64;
    static constexpr bool kOffsets = false, kShifts = false;

    // Four columns: 0 and 2, then 1 and 3.
    QK_INLINE static void put(__m256i bytes, __m256i (*to)[4], int64_t four, int64_t block) {
        to[2 * four][block] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
        to[2 * four + 1][block] = _mm256_srai_epi16(bytes, 8);
    }
    static void put_x(const int8_t (&q)[128], int32_t (*to)[kTile], int64_t j) {
        for (int i = 0; i < 32; ++i) {
            const int16_t words[4] = {q[4 * i], q[4 * i + 2], q[4 * i + 1], q[4 * i + 3]};
            memcpy(&to[2 * i][j], words, 4);
            memcpy(&to[2 * i + 1][j], words + 2, 4);
        }
    }

    template <class Group>
    QK_INLINE static void multiply(const __m256i *w, const Group &group, __m256i (&sum)[kRows][2]) {
        multiply_steps(w, group, sum, [](__m256i &sum, __m256i words, __m256i of_x) QK_INLINE {
            add_dwords(sum, _mm256_madd_epi16(words, of_x));
        });
    }
};

// What AVX2 multiplies by.
struct Avx2Products : Avx2Dots {
    using Narrow = SmallProducts;
    using Wide = WideProducts;

    static __m256i flip(__m256i bytes) { return bytes; }  // what a row of bytes is multiplied as

    // Rows of signed bytes by themselves: 32 columns, four a dword.
    using OfX = SignedX;
    static OfX of_x(const int8_t *q) { return signs_of(q); }
    QK_INLINE static void add_products(__m256i &sum, __m256i bytes, const OfX &x) {
        const __m256i entries = _mm256_xor_si256(bytes, x.negative);
        const __m256i pairs = _mm256_maddubs_epi16(x.magnitude, entries);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static bool is_narrow(const EntryBytes &entries, const Weight &w) {
        return entries.small && w.format->kind != FormatKind::kS8;
    }
};

}  // namespace
}  // namespace qk::cpu

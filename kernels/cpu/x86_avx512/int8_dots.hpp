// Integer dot products of a chunk of 8 rows, AVX-512 VNNI and VBMI.
#pragma once
#include "cpu/x86_avx512/int8_x.hpp"

namespace qk::cpu {
namespace {

struct Avx512Dots : Avx512Int8X {
    // The bytes of four dwords (every 128 bits) change places: dword b of the result holds the b-th
    // bytes of the four; dwords 1 and 2 trade places where fold_dwords is to add groups of 64.
    template <int kBlocks>
    static __m512i group_bytes(__m512i words) {
        const __m128i fours = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m128i twos = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
        return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(kBlocks == 2 ? twos : fours));
    }

    // Entries of 4-bit codes as unsigned bytes.
    struct ByteTable {
        __m512i v;

        explicit ByteTable(const Int8Entries &entries, bool table) {
            uint8_t bytes[16];
            for (int i = 0; i < 16; ++i) {
                bytes[i] = uint8_t(entries.value[i] + (table ? kTableOffset : 0));
            }
            v = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
        }
        // The permute ignores the upper bits of an index, and the table repeats after 16.
        QK_INLINE __m512i look_up(__m512i codes) const { return _mm512_permutexvar_epi8(codes, v); }
    };

    template <int kBlocks, bool table>
    class ChunkDots {
      public:
        explicit ChunkDots(const Int8Entries &entries) : table_(entries, table) {}

        QK_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
            __m512i low = _mm512_loadu_si512(x.low), high = _mm512_loadu_si512(x.high);
            __m512i start = _mm512_setzero_si512(), other = start;
            if (table)
                start = _mm512_loadu_si512(x.offset[0]), other = _mm512_loadu_si512(x.offset[1]);
            asm volatile("" : "+v"(low), "+v"(high), "+v"(start), "+v"(other));
            __m512i d[8], e[8];
            _Pragma("GCC unroll 8") for (int row = 0; row < 8; ++row) {
                prefetch(codes + 64 * row + kInt8Ahead);
                __m512i words = load_words(codes + 64 * row).v;
                if (kBlocks > 1) words = group_bytes<kBlocks>(words);
                d[row] = start;
                e[row] = other;
                add_dots(d[row], entry(words), low);
                add_dots(kBlocks == 8 ? e[row] : d[row], entry(_mm512_srli_epi16(words, 4)), high);
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
        QK_INLINE __m512i entry(__m512i codes) const {
            return table ? table_.look_up(codes) : _mm512_and_si512(codes, _mm512_set1_epi8(15));
        }

        static constexpr int64_t kInt8Ahead = 8192;  // bytes fetched ahead of use
        ByteTable table_;
    };
};

}  // namespace
}  // namespace qk::cpu

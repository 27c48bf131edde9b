// Integer dot products of int8 mode, AVX-VNNI: vpdpbusd in 256-bit registers, 32 products of
// unsigned entries and signed x an instruction. Entries of tables and signed bytes are offset by
// kZeroOfBytes, what that adds up to is taken off the sums.
#pragma once
#include "cpu/x86_avx2/int8_products.hpp"

namespace qk::cpu {
namespace {

// In place: GCC 12 copies the sum before and after its intrinsic.
QK_INLINE inline void add_dots(__m256i &sum, __m256i w, __m256i x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
}

struct DotProducts : FoursOfColumns {
    static constexpr int kRows = 4;
    static constexpr bool kShifts = false;

    template <class Group>
    QK_INLINE static void multiply(const __m256i *w, const Group &group, __m256i (&sum)[kRows][2]) {
        multiply_steps(w, group, sum, add_dots);
    }
};

struct AvxVnniDots : Avx2Dots {
    struct alignas(32) XChunk : PlainChunk {};
    template <int kBlocks>
    using Scales = YmmScales<AvxVnniDots, kBlocks>;

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_in_groups(x, blocks, unit, to);
    }

    // Entries of codes, unsigned.
    struct EntryBytes {
        static constexpr int shift = 0;
        int offset;
        __m256i table;

        EntryBytes(const Int8Entries &entries, bool is_table)
            : offset(is_table ? kZeroOfBytes : 0) {
            uint8_t bytes[16];
            for (int code = 0; code < 16; ++code) {
                bytes[code] = uint8_t(entries.value[code] + offset);
            }
            table = _mm256_broadcastsi128_si256(
                _mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
        }
    };

    static void set_rest(const int8_t *, int64_t, int64_t, XChunk *) {}

    // `stored`: rows of nibbles in sequence, not packed chunks.
    template <int kBlocks, bool table, bool stored>
    class DotsOfChunk {
      public:
        explicit DotsOfChunk(const Int8Entries &entries) : entries_(entries, table) {}

        QK_INLINE void run(const uint8_t *codes, const XChunk &x, Sums8 (&to)[kBlocks]) const {
            run_stored(codes, 64, x, to);
        }
        // Rows that are `pitch` bytes apart.
        QK_INLINE void run_stored(const uint8_t *codes, int64_t pitch, const XChunk &x,
                                  Sums8 (&to)[kBlocks]) const {
            const Factors factors = {x, entries_.table};
            if constexpr (stored) fold_stored(factors, codes, pitch, to);
            if constexpr (!stored) fold_chunk(factors, codes, to);
            if (!table) return;
            static_assert(kZeroOfBytes == 1 << 7);
            take_offset<7>(x.sum, to);
        }

      private:
        struct Factors {  // what the rows of a chunk share
            const XChunk &x;
            __m256i entries;

            // Low and high nibbles by themselves.
            QK_INLINE void add_apart(const uint8_t *codes, __m256i &low, __m256i &high) const {
                low = high = _mm256_setzero_si256();
                const Bytes words = load(codes);
                for (int half = 0; half < 2; ++half) {
                    add_low(words, half, low);
                    add_high(words, half, high);
                }
            }
            // Both nibbles, of the first and of the last 32 bytes.
            QK_INLINE void add_bytes_apart(const uint8_t *codes, __m256i &first,
                                           __m256i &last) const {
                first = last = _mm256_setzero_si256();
                const Bytes words = load(codes);
                add_low(words, 0, first);
                add_low(words, 1, last);
                add_high(words, 0, first);
                add_high(words, 1, last);
            }
            static __m256i join(__m256i a, __m256i b) { return add_halves(a, b); }
            static __m256i end(__m256i sums) { return sums; }
            QK_INLINE __m256i add_all(const uint8_t *codes) const {
                __m256i low, high;
                add_apart(codes, low, high);
                return _mm256_add_epi32(low, high);
            }

          private:
            QK_INLINE static Bytes load(const uint8_t *codes) {
                return stored ? load_stored<kBlocks>(codes) : load_codes<kBlocks>(codes);
            }
            QK_INLINE void add_low(const Bytes &words, int half, __m256i &sum) const {
                add_dots(sum, entry(words.half[half]), load_256(x.low + 32 * half));
            }
            QK_INLINE void add_high(const Bytes &words, int half, __m256i &sum) const {
                const __m256i shifted = _mm256_srli_epi16(words.half[half], 4);
                add_dots(sum, entry(shifted), load_256(x.high + 32 * half));
            }
            QK_INLINE __m256i entry(__m256i words) const {
                return table ? _mm256_shuffle_epi8(entries, nibbles(words)) : nibbles(words);
            }
        };

        EntryBytes entries_;
    };
    template <int kBlocks, bool table>
    using ChunkDots = DotsOfChunk<kBlocks, table, false>;
};

// What tiles and rows of bytes multiply by.
struct AvxVnniProducts : AvxVnniDots {
    using Narrow = DotProducts;
    using Wide = DotProducts;

    static bool is_narrow(const EntryBytes &, const Weight &) { return true; }
    static __m256i flip(__m256i bytes) {
        return _mm256_xor_si256(bytes, _mm256_set1_epi8(char(kZeroOfBytes)));
    }

    using OfX = __m256i;
    static OfX of_x(const int8_t *q) { return load_256(q); }
    QK_INLINE static void add_products(__m256i &sum, __m256i bytes, __m256i x) {
        add_dots(sum, flip(bytes), x);
    }
    static int32_t rest_of(const int8_t *q, int64_t count) {
        int32_t sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += q[i];
        return -kZeroOfBytes * sum;
    }
};

}  // namespace
}  // namespace qk::cpu

// What kernels that walk across the rows of w (linear/columns.hpp) are written in: 16 dwords as one
// AVX-512 register, with VNNI.
#include "cpu/linear/columns.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/byte_dots.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

struct Avx512Columns : Avx512 {
    static constexpr int64_t kWide = 16;             // dwords
    static constexpr bool kFillsKnown = true;        // loops have an instance for many and for few
    static constexpr bool kFetchesBackwards = true;  // awq_gemm's lines
    using Floats = __m512;
    using Bits = __m512i;

    static Floats load_wide(const float *from) { return _mm512_loadu_ps(from); }
    static Bits load_bits(const void *from) { return _mm512_loadu_si512(from); }
    static void store_wide(float *to, Floats a) { _mm512_storeu_ps(to, a); }
    static void store_bits(void *to, Bits a) { _mm512_storeu_si512(to, a); }

    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats numbers(Bits a) { return _mm512_cvtepi32_ps(a); }
    static Floats splat_wide(float value) { return _mm512_set1_ps(value); }
    static Floats where(Bits mask, Floats a, Floats b) {
        return _mm512_mask_blend_ps(_mm512_movepi32_mask(mask), b, a);
    }

    // One dword, or four in every 128 bits.
    template <bool quads>
    static Bits spread_bits(const void *from) {
        if (!quads) {
            int dword;
            __builtin_memcpy(&dword, from, 4);
            return _mm512_set1_epi32(dword);
        }
        return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i *>(from)));
    }
    // Dword i of every 128 bits, four times.
    template <int i>
    static Bits repeat(Bits a) {
        return _mm512_shuffle_epi32(a, _MM_PERM_ENUM(i * 0x55));
    }

    // Bytes to dwords: to[i], dword b of every 128 bits: byte b of dword i there of all four
    // vectors.
    static void bytes_to_dwords(const Bits (&from)[4], Bits (&to)[4]) {
        const Bits low_01 = _mm512_unpacklo_epi8(from[0], from[1]);
        const Bits low_23 = _mm512_unpacklo_epi8(from[2], from[3]);
        const Bits high_01 = _mm512_unpackhi_epi8(from[0], from[1]);
        const Bits high_23 = _mm512_unpackhi_epi8(from[2], from[3]);
        to[0] = _mm512_unpacklo_epi16(low_01, low_23);
        to[1] = _mm512_unpackhi_epi16(low_01, low_23);
        to[2] = _mm512_unpacklo_epi16(high_01, high_23);
        to[3] = _mm512_unpackhi_epi16(high_01, high_23);
    }

    // The low, or the high nibble of every byte.
    template <int half>
    static Bits nibbles(Bits a) {
        return _mm512_and_si512(half == 0 ? a : _mm512_srli_epi32(a, 4), _mm512_set1_epi8(15));
    }
    // Nibble 2 b + half of dword b of every 128 bits.
    template <int half>
    static Bits nibble_of_place(Bits a) {
        const Bits shift = _mm512_broadcast_i32x4(
            _mm_setr_epi32(4 * half, 8 + 4 * half, 16 + 4 * half, 24 + 4 * half));
        return _mm512_and_si512(_mm512_srlv_epi32(a, shift), _mm512_set1_epi32(15));
    }
    // Dword d: nibble first + d of a run of words, first a multiple of 8.
    static Bits nibbles_in_order(const uint32_t *words, int64_t first) {
        const __m256i low = _mm256_set1_epi32(int(words[first / 8]));
        const __m256i high = _mm256_set1_epi32(int(words[first / 8 + 1]));
        const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const Bits both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_srlv_epi32(low, shift)),
                                             _mm256_srlv_epi32(high, shift), 1);
        return _mm512_and_si512(both, _mm512_set1_epi32(15));
    }

    // Of every 128 bits, the bytes that codes are.
    static Bits look_up_bytes(Bits table, Bits codes) { return _mm512_shuffle_epi8(table, codes); }

    // Numbers that nibbles stand for. The permute ignores the bits above.
    class Lut4Entries {
      public:
        explicit Lut4Entries(const float *values) : table_(load_table(values)) {}
        template <int step>
        Floats entry(Bits words) const {
            return look_up<step>(table_, {words}).v;
        }

      private:
        Table table_;
    };
    using U4Entries = Lut4Entries;

    // A zero, and a lane's sum of x, as they are multiplied: 16-bit halves, 2048 * upper + lower.
    static Bits minus_zero(Bits zero) {
        const Bits table =
            _mm512_setr_epi32(0, 0xf800ffff, 0xf000fffe, 0xe800fffd, 0xe000fffc, 0xd800fffb,
                              0xd000fffa, 0xc800fff9, 0xc000fff8, 0xb800fff7, 0xb000fff6,
                              0xa800fff5, 0xa000fff4, 0x9800fff3, 0x9000fff2, 0x8800fff1);
        return _mm512_permutexvar_epi32(zero, table);
    }
    static uint32_t sum_operand(uint32_t sum) {
        const int32_t upper = (int32_t(sum) + 1024) >> 11;
        return uint32_t(upper) << 16 | ((sum - uint32_t(upper) * 2048) & 0xffff);
    }

    // (code - zero) * integer of x, summed over the 8 columns of each dword.
    static constexpr int kDotsTogether = 4;
    template <int kCount>
    QK_INLINE static void dot_integers(const Bits (&even)[kCount], const Bits (&odd)[kCount],
                                       const Bits (&x)[7], const Bits (&zero)[kCount],
                                       Floats (&to)[kCount]) {
        Bits least[kCount], dot[kCount];
        QK_UNROLL for (int i = 0; i < kCount; ++i) {
            least[i] = _mm512_setzero_si512();
            asm("vpdpwssd %2, %1, %0" : "+v"(least[i]) : "v"(zero[i]), "v"(x[6]));
        }
        dot_three_bytes(even, odd, x, x + 3, least, dot);
        QK_UNROLL for (int i = 0; i < kCount; ++i) to[i] = numbers(dot[i]);
    }
};

}  // namespace

const Kernel<LinearArgs> kLinearColumnsVnni =
    linear_kernel<row_of("avx512 vnni columns")>(run_columns<Avx512Columns>);
const Kernel<LinearArgs> kLinearLoweredColumnsVnni =
    linear_kernel<row_of("avx512 vnni columns with minima")>(
        run_lowered_columns<Avx512Columns, kLinearSingleAvx512>);

}  // namespace qk::cpu

// AVX-512: 16 lanes of f32 are one register.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"
#include "cpu/x86_avx512/chunks.hpp"
#include "cpu/x86_avx512/transposes.hpp"

namespace qk::cpu {

extern const WidenNested kWidenNestedVbmi;
extern const LookUpBytes kLookUpBytesVbmi;
extern const LookUpHalves kLookUpHalvesVbmi;
extern const LookUpColumns kLookUpColumnsVbmi;

namespace {

// Internal linkage, and with it that of every template over it: a file compiled with more
// instructions (VBMI, VNNI) never lends its code to one that runs without them.
struct Avx512 : Avx512Chunks, Avx512Transposes {
    static constexpr uint32_t kFeature = kAvx512;
    static constexpr int kVectorBytes = 64;
    static constexpr int kRowsTogether =
        8;  // codes, weights and sums of so many rows fit the registers
    static constexpr int kTileVectors = 2, kTileBatch = 12;  // sums that fit the registers

    struct Lanes {  // 16 floats
        __m512 v;
    };
    struct Words {  // 16 32-bit words: a chunk of packed codes
        __m512i v;
    };
    struct Mask {
        __mmask16 v;
    };

    static Lanes zero_lanes() { return {_mm512_setzero_ps()}; }
    static Lanes splat(float value) { return {_mm512_set1_ps(value)}; }
    static Lanes splat_two(const float *two) {
        double both;
        memcpy(&both, two, 8);
        const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        return {_mm512_permutexvar_ps(halves, _mm512_castpd_ps(_mm512_set1_pd(both)))};
    }
    static Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
    static Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
    static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    // c where the mask is off.
    static Lanes fma_where(Mask mask, Lanes a, Lanes b, Lanes c) {
        return {_mm512_mask3_fmadd_ps(a.v, b.v, c.v, mask.v)};
    }

    // b where the mask is off.
    static Lanes where(Mask mask, Lanes a, Lanes b) {
        return {_mm512_mask_blend_ps(mask.v, b.v, a.v)};
    }

    // a where a lane's end is at or before `column`, else b.
    static Lanes where_past(__m512i ends, int32_t column, Lanes a, Lanes b) {
        return where({_mm512_cmple_epi32_mask(ends, _mm512_set1_epi32(column))}, a, b);
    }
    static Lanes where_past(const int32_t *ends, int32_t column, Lanes a, Lanes b) {
        return where_past(_mm512_loadu_si512(ends), column, a, b);
    }

    // The first `count` lanes, any count.
    static Mask first_lanes(int64_t count) {
        if (count >= 16) return {0xffff};
        return {count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1)};
    }

    // Lanes that are masked off read as zero and touch no memory.
    static Lanes load_f32(const void *from, Mask mask) {
        return {_mm512_maskz_loadu_ps(mask.v, from)};
    }
    static Lanes load_f16(const void *from, Mask mask) {
        return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask.v, from))};
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask.v, from));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
    }
    static Lanes load_f32(const void *from) { return {_mm512_loadu_ps(from)}; }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    static void store_f32(float *to, Lanes a) { _mm512_storeu_ps(to, a.v); }

    // The chunk stays in the register it was loaded to: compilers would fold the load into each of
    // the eight shifts and fetch the line eight times.
    static Words load_words(const uint8_t *from) {
        Words words = {_mm512_loadu_si512(from)};
        asm volatile("" : "+v"(words.v));
        return words;
    }

    struct Table {  // 16 floats, to be indexed
        __m512 v;
    };
    static Table load_table(const float *entries) { return {_mm512_loadu_ps(entries)}; }
    static Table scale_table(const Table &table, float scale) {
        return {_mm512_mul_ps(table.v, _mm512_set1_ps(scale))};
    }
    static Table lower_table(const Table &table, float by) {
        return {_mm512_sub_ps(table.v, _mm512_set1_ps(by))};
    }
    // Nibble `step` of each word. The permute ignores the bits above.
    template <int step>
    static Lanes look_up(const Table &table, const Words &words) {
        const __m512i index = step == 0 ? words.v : _mm512_srli_epi32(words.v, 4 * step);
        return {_mm512_permutexvar_ps(index, table.v)};
    }

    // Where the pieces of a row's groups end, the first after `columns`: a step, and its lanes that
    // are still of the piece.
    struct PieceEnds {
        int64_t step;
        Mask before;
    };
    static PieceEnds piece_ends(int64_t columns) {
        return {columns >> 4, first_lanes(columns % 16)};
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(Lanes lanes) {
        const __m256 eight =
            _mm256_add_ps(_mm512_castps512_ps256(lanes.v), _mm512_extractf32x8_ps(lanes.v, 1));
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    // The sums of 8 rows' lanes, in the same order: halves of two vectors share one addition.
    static void fold_rows(const Lanes *rows, float *to) {
        const auto pair = [](__m512 a, __m512 b) {  // 16 -> 8 lanes of each
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44),
                                 _mm512_shuffle_f32x4(a, b, 0xee));
        };
        const auto quad = [](__m512 a, __m512 b) {  // 8 -> 4: rows in the 128-bit quarters
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88),
                                 _mm512_shuffle_f32x4(a, b, 0xdd));
        };
        const __m512 low = quad(pair(rows[0].v, rows[1].v), pair(rows[2].v, rows[3].v));
        const __m512 high = quad(pair(rows[4].v, rows[5].v), pair(rows[6].v, rows[7].v));
        const __m512 two =
            _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
        const __m512 one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
        // Quarter q: row q at 0, row q + 4 at 2.
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one)));
    }

    // 8 scales, one a row.
    static void widen_f16(const char *from, float *to) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        _mm256_storeu_ps(to, _mm256_cvtph_ps(half));
    }
    static void widen_bf16(const char *from, float *to) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), wide);
    }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
        const __m256 value = _mm256_i32gather_ps(code, _mm256_cvtepu8_epi32(bytes), 4);
        const __m256 product = _mm256_mul_ps(value, _mm256_loadu_ps(second));
        _mm256_storeu_ps(to, _mm256_add_ps(product, _mm256_set1_ps(bias)));
    }

    template <bool stream>
    static void put(char *to, __m512i value) {
        stream ? _mm512_stream_si512(reinterpret_cast<__m512i *>(to), value)
               : _mm512_storeu_si512(to, value);
    }
    static void stream_64(const char *from, char *to) { put<true>(to, _mm512_loadu_si512(from)); }
    static void end_stream() { _mm_sfence(); }

    // 16 lanes as bits of the output type.
    static void narrow_f16(Lanes a, uint16_t *to) {
        const __m256i half = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), half);
    }
    // Each in the upper half of its 32 bits; the first of what is no NaN.
    static __m512i round_bf16_number(__m512 a) {
        const __m512i bits = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    }
    static __m512i round_bf16(__m512 a) {
        const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        return _mm512_mask_or_epi32(round_bf16_number(a), nan, _mm512_castps_si512(a),
                                    _mm512_set1_epi32(0x7fc00000));
    }
    static void narrow_bf16(Lanes a, uint16_t *to) {
        const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a.v), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), half);
    }

    static void put_halves(__m512i halves, char *to, bool stream) {
        stream ? put<true>(to, halves) : put<false>(to, halves);
    }
    // 32 numbers, 16 in the upper halves of either's 32 bits.
    static __m512i upper_halves(__m512i a, __m512i b) {
        const __m512i odd =
            _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                             27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_permutex2var_epi16(a, odd, b);
    }
    static __m512i two_f16(Lanes a, Lanes b) {
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        const __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(a.v, nearest));
        return _mm512_inserti64x4(low, _mm512_cvtps_ph(b.v, nearest), 1);
    }
    static __m512i two_bf16(Lanes a, Lanes b) {
        return upper_halves(round_bf16(a.v), round_bf16(b.v));
    }
    static void put_f16(Lanes a, Lanes b, char *to, bool stream) {
        put_halves(two_f16(a, b), to, stream);
    }
    static void put_bf16(Lanes a, Lanes b, char *to, bool stream) {
        put_halves(two_bf16(a, b), to, stream);
    }

    static void narrow_two_f16(Lanes a, Lanes b, uint16_t *to) {
        put_f16(a, b, reinterpret_cast<char *>(to), false);
    }
    static void narrow_two_bf16(Lanes a, Lanes b, uint16_t *to) {
        put_bf16(a, b, reinterpret_cast<char *>(to), false);
    }

    // 8 bytes, 16 codes in order -> 16 floats. A permute ignores index bits above its own, so
    // nothing is masked.
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const Table &table, char *to) {
        const __m512i pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        const __m512i low =
            _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
        const __m512i high =
            _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(codes));
        const __m512i words = _mm512_permutexvar_epi32(pick, _mm512_castsi128_si512(bytes));
        const __m512i index = _mm512_srlv_epi32(words, high_first ? high : low);
        put<stream>(to, _mm512_castps_si512(_mm512_permutexvar_ps(index, table.v)));
    }
    template <int step, bool stream>
    static void emit_step(const Words &words, const Table &table, char *to) {
        put<stream>(to, _mm512_castps_si512(look_up<step>(table, words).v));
    }

    using FloatTable = Table;
    static FloatTable load_floats_table(const float *values) { return load_table(values); }
    struct HalfTable {  // 16 16-bit values, twice: the index's bit above does no harm
        __m512i v;
    };
    static HalfTable load_halves_table(const uint16_t *values) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values));
        return {_mm512_broadcast_i64x4(half)};
    }
    // 16 bytes, 32 codes in order -> 32 halves.
    template <bool high_first, bool stream>
    static void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
        const __m512i pick = _mm512_set_epi16(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3,
                                              3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        const __m512i shift =
            _mm512_set1_epi64(high_first ? 0x0008000c00000004 : 0x000c000800040000);
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
        const __m512i words = _mm512_permutexvar_epi16(pick, _mm512_castsi128_si512(bytes));
        const __m512i index = _mm512_srlv_epi16(words, shift);
        put<stream>(to, _mm512_permutexvar_epi16(index, table.v));
    }
    // Nibbles `step` and `step` + 1 of 16 words, `step` even -> 32 halves.
    template <int step, bool stream>
    static void emit_step_halves(const Words &words, const HalfTable &table, char *to) {
        const __m512i even =
            _mm512_set_epi16(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0, 30, 28, 26,
                             24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const __m512i pick = step < 4 ? even : _mm512_add_epi16(even, _mm512_set1_epi16(1));
        constexpr short first = step % 4 * 4;
        const __m512i shift =
            _mm512_inserti64x4(_mm512_set1_epi16(first), _mm256_set1_epi16(first + 4), 1);
        const __m512i index = _mm512_srlv_epi16(_mm512_permutexvar_epi16(pick, words.v), shift);
        put<stream>(to, _mm512_permutexvar_epi16(index, table.v));
    }

    template <bool stream>
    QK_INLINE static void emit_chunk_halves(const Words &words, const HalfTable (&tables)[4],
                                            char *to) {
        emit_step_halves<0, stream>(words, tables[0], to);
        emit_step_halves<2, stream>(words, tables[1], to + 64);
        emit_step_halves<4, stream>(words, tables[2], to + 128);
        emit_step_halves<6, stream>(words, tables[3], to + 192);
    }

    // 256 floats in registers, to be indexed by bytes: pairs of registers by five bits, then the
    // pairs.
    struct WideTable {
        __m512 v[16];

        explicit WideTable(const float *entries) {
            for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_ps(entries + 16 * i);
        }
        __attribute__((always_inline)) Lanes look_up(const uint8_t *codes) const {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
            const __m512i index = _mm512_cvtepu8_epi32(bytes);
            const __mmask16 bit5 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
            const __mmask16 bit6 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
            const __mmask16 bit7 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
            const auto pick = [&](int i) __attribute__((always_inline)) {
                const __m512 low = _mm512_permutex2var_ps(v[i], index, v[i + 1]);
                const __m512 high = _mm512_permutex2var_ps(v[i + 2], index, v[i + 3]);
                return _mm512_mask_blend_ps(bit5, low, high);
            };
            const __m512 low = _mm512_mask_blend_ps(bit6, pick(0), pick(4));
            const __m512 high = _mm512_mask_blend_ps(bit6, pick(8), pick(12));
            return {_mm512_mask_blend_ps(bit7, low, high)};
        }
    };

    // words[j] lane r: dword j of row r; `low` has rows 0..7, `high` rows 8..15, 64 bytes each.
    QK_INLINE static void transpose_words(const uint8_t *low, const uint8_t *high,
                                          Words (&words)[16]) {
        __m512i a[16];
        _Pragma("GCC unroll 16") for (int i = 0; i < 8; ++i) {
            a[i] = _mm512_loadu_si512(low + 64 * i);
            a[i + 8] = _mm512_loadu_si512(high + 64 * i);
        }
        transpose_registers(
            a, [&](int j, __m512i word) __attribute__((always_inline)) { words[j].v = word; });
    }

    // See Fallbacks.
    template <bool zeros, bool cuts>
    QK_INLINE static void look_up_transposed(const uint8_t *const (&codes)[2], const Table &table,
                                             const StepsOf<16> &steps, float *to, int64_t pitch) {
        Words words[16];
        transpose_words(codes[0], codes[1], words);
        const Table entries = table;
        for (int64_t step = 0; step < 8; ++step) {
            // Less the step's place, so that columns are compared with constants.
            const __m512i ends =
                _mm512_sub_epi32(_mm512_loadu_si512(steps.ends), _mm512_set1_epi32(steps.at[step]));
            const Lanes now = load_f32(steps.scale[step]), next = load_f32(steps.scale[step] + 16);
            const Lanes scale = where_past(ends, 0, next, now);
            const Lanes less = zeros ? load_f32(steps.less[step]) : zero_lanes();
            _Pragma("GCC unroll 16") for (int j = 0; j < 16; ++j, to += pitch) {
                Lanes entry = look_up<0>(entries, words[j]);
                if (zeros) entry = add(entry, less);
                store_f32(to, mul(entry, cuts ? where_past(ends, j, next, now) : scale));
                words[j] = {_mm512_srli_epi32(words[j].v, 4)};
            }
        }
    }

    // Wider look-ups by byte permutes, null where the machine lacks VBMI.
    static WidenNested nested_widener(const Device &device) {
        return has(device, kAvx512Vbmi) ? kWidenNestedVbmi : nullptr;
    }
    static LookUpBytes byte_lookup(const Device &device) {
        return has(device, kAvx512Vbmi) ? kLookUpBytesVbmi : nullptr;
    }
    static LookUpHalves halves_lookup(const Device &device) {
        return has(device, kAvx512Vbmi) ? kLookUpHalvesVbmi : nullptr;
    }
    static LookUpColumns columns_lookup(const Device &device) {
        return has(device, kAvx512Vbmi) ? kLookUpColumnsVbmi : nullptr;
    }
};

static_assert(InstructionSet<Avx512>);

}  // namespace
}  // namespace qk::cpu

// AVX2: from codes to stored values.
#pragma once
#include "cpu/shared/fallbacks.hpp"
#include "cpu/x86_avx2/lanes.hpp"

namespace qk::cpu {
namespace {

struct Avx2Codes : Avx2Lanes {
    template <bool stream>
    static void put(char *to, __m256i value) {
        __m256i *const at = reinterpret_cast<__m256i *>(to);
        stream ? _mm256_stream_si256(at, value) : _mm256_storeu_si256(at, value);
    }
    static void stream_64(const char *from, char *to) {
        put<true>(to, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
        put<true>(to + 32, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + 32)));
    }
    static void end_stream() { _mm_sfence(); }

    // 16 lanes as bits of the output type.
    static void narrow_f16(Lanes a, uint16_t *to) {
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        __m128i *const at = reinterpret_cast<__m128i *>(to);
        _mm_storeu_si128(at, _mm256_cvtps_ph(a.low, nearest));
        _mm_storeu_si128(at + 1, _mm256_cvtps_ph(a.high, nearest));
    }
    static __m256i round_bf16(__m256 a) {  // each in the low half of its 32 bits
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x7fc00000));
        const __m256i sum = _mm256_blendv_epi8(_mm256_add_epi32(bits, round), quiet, nan);
        return _mm256_srli_epi32(sum, 16);
    }
    static void narrow_bf16(Lanes a, uint16_t *to) {
        const __m256i pairs = _mm256_packus_epi32(round_bf16(a.low), round_bf16(a.high));
        _mm256_storeu_si256(
            reinterpret_cast<__m256i *>(to),
            _mm256_permute4x64_epi64(pairs, 0xd8));  // the pack alternates between 128-bit halves
    }

    template <bool stream>
    static void put_lanes(char *to, const Lanes &lanes) {
        put<stream>(to, _mm256_castps_si256(lanes.low));
        put<stream>(to + 32, _mm256_castps_si256(lanes.high));
    }
    // 8 bytes, 16 codes in order -> 16 floats.
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const Table &table, char *to) {
        const __m256i low = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i high = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
        int first, second;
        __builtin_memcpy(&first, codes, 4);
        __builtin_memcpy(&second, codes + 4, 4);
        const __m256i shift = high_first ? high : low;
        const Words words = {_mm256_srlv_epi32(_mm256_set1_epi32(first), shift),
                             _mm256_srlv_epi32(_mm256_set1_epi32(second), shift)};
        put_lanes<stream>(to, look_up<0>(table, words));
    }
    template <int step, bool stream>
    static void emit_step(const Words &words, const Table &table, char *to) {
        put_lanes<stream>(to, look_up<step>(table, words));
    }

    using FloatTable = Table;
    static FloatTable load_floats_table(const float *values) { return load_table(values); }
    struct HalfTable {  // 16 16-bit values as low and high bytes
        __m128i low, high;
    };
    static HalfTable load_halves_table(const uint16_t *values) {
        const __m128i *const at = reinterpret_cast<const __m128i *>(values);
        const __m128i a = _mm_loadu_si128(at), b = _mm_loadu_si128(at + 1);
        const __m128i bytes = _mm_set1_epi16(0xff);
        return {_mm_packus_epi16(_mm_and_si128(a, bytes), _mm_and_si128(b, bytes)),
                _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8))};
    }
    // 16 codes, one a byte.
    template <bool stream>
    static void put_halves(char *to, __m128i codes, const HalfTable &table) {
        const __m128i low = _mm_shuffle_epi8(table.low, codes);
        const __m128i high = _mm_shuffle_epi8(table.high, codes);
        put<stream>(to,
                    _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
    }
    // 16 bytes, 32 codes in order -> 32 halves.
    template <bool high_first, bool stream>
    static void emit_halves(const uint8_t *codes, const HalfTable &table, char *to) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
        const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
        const __m128i even = high_first ? high : low, odd = high_first ? low : high;
        put_halves<stream>(to, _mm_unpacklo_epi8(even, odd), table);
        put_halves<stream>(to + 32, _mm_unpackhi_epi8(even, odd), table);
    }
    template <int step>
    static __m128i step_codes(const Words &words) {  // nibble `step` of 16 words, one a byte
        const __m256i mask = _mm256_set1_epi32(15);
        const __m256i low = _mm256_and_si256(_mm256_srli_epi32(words.low, 4 * step), mask);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi32(words.high, 4 * step), mask);
        const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    }
    // Nibbles `step` and `step` + 1 of 16 words -> 32 halves.
    template <int step, bool stream>
    static void emit_step_halves(const Words &words, const HalfTable &table, char *to) {
        put_halves<stream>(to, step_codes<step>(words), table);
        put_halves<stream>(to + 32, step_codes<step + 1>(words), table);
    }

    // 256 floats in memory, to be indexed by bytes.
    struct WideTable {
        const float *entries;

        explicit WideTable(const float *from) : entries(from) {}
        Lanes look_up(const uint8_t *codes) const {
            return {look_up_bytes(entries, codes), look_up_bytes(entries, codes + 8)};
        }
    };
};

// Internal linkage, and with it that of every template over it.
struct Avx2 : Fallbacks<Avx2Codes> {};

static_assert(InstructionSet<Avx2>);

}  // namespace
}  // namespace qk::cpu

// AVX2: 16 lanes of f32 are two registers.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/fallbacks.hpp"
#include "cpu/x86_avx2/byte_numbers.hpp"
#include "cpu/x86_avx2/bytes.hpp"
#include "cpu/x86_avx2/chunks.hpp"
#include "cpu/x86_avx2/planes.hpp"
#include "cpu/x86_avx2/transposes.hpp"

namespace qk::cpu {
namespace {

struct Avx2Base : Avx2Planes, Avx2Bytes, Avx2ByteNumbers {
    static constexpr uint32_t kFeature = kAvx2;
    static constexpr int kVectorBytes = 32;
    static constexpr int kRowsTogether = 1;   // 16 registers hold the x of a step and little else
    static constexpr int kBytesTogether = 4;  // rows: sums of one are a chain of multiply-adds
    static constexpr int kTileVectors = 1, kTileBatch = 6;  // sums that fit the registers

    struct Lanes {  // 16 floats
        __m256 low, high;
    };
    struct Words {  // 16 32-bit words: a chunk of packed codes
        __m256i low, high;
    };
    struct Mask {
        int64_t count;  // of lanes that are on, from the first; may be more or less than there are
    };

    static Lanes zero_lanes() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Lanes splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Lanes splat_two(const float *two) {
        return {_mm256_set1_ps(two[0]), _mm256_set1_ps(two[1])};
    }
    static Lanes add(Lanes a, Lanes b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    static Lanes mul(Lanes a, Lanes b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    static Lanes fma(Lanes a, Lanes b, Lanes c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }

    static Mask first_lanes(int64_t count) { return {count}; }

    // All ones where the mask is on, for the 8 lanes from `first`.
    static __m256i mask_bits(Mask mask, int first) {
        const int count = int(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count) - first;
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(count),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }

    // c where the mask is off.
    static Lanes fma_where(Mask mask, Lanes a, Lanes b, Lanes c) {
        const Lanes sum = fma(a, b, c);
        const __m256 low = _mm256_castsi256_ps(mask_bits(mask, 0));
        const __m256 high = _mm256_castsi256_ps(mask_bits(mask, 8));
        return {_mm256_blendv_ps(c.low, sum.low, low), _mm256_blendv_ps(c.high, sum.high, high)};
    }

    // b where the mask is off.
    static Lanes where(Mask mask, Lanes a, Lanes b) {
        const __m256 low = _mm256_castsi256_ps(mask_bits(mask, 0));
        const __m256 high = _mm256_castsi256_ps(mask_bits(mask, 8));
        return {_mm256_blendv_ps(b.low, a.low, low), _mm256_blendv_ps(b.high, a.high, high)};
    }

    // a where a lane's end is at or before `column`, else b.
    static __m256 where_past(const int32_t *ends, int32_t column, __m256 a, __m256 b) {
        const __m256i end = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(ends));
        const __m256i before = _mm256_cmpgt_epi32(end, _mm256_set1_epi32(column));
        return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(before));
    }
    static Lanes where_past(const int32_t *ends, int32_t column, Lanes a, Lanes b) {
        return {where_past(ends, column, a.low, b.low),
                where_past(ends + 8, column, a.high, b.high)};
    }

    // Lanes that are masked off read as zero and touch no memory.
    static Lanes load_f32(const void *from) {
        const float *const at = static_cast<const float *>(from);
        return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
    }
    static Lanes load_f32(const void *from, Mask mask) {
        if (mask.count >= 16) return load_f32(from);
        float some[16] = {};  // masked loads that end at a page's end fault under qemu 7.2
        if (mask.count > 0) __builtin_memcpy(some, from, size_t(mask.count) * 4);
        return load_f32(some);
    }

    struct Halves {  // 16 16-bit values
        __m128i low, high;
    };
    static Halves load_halves(const void *from, Mask mask) {
        uint16_t some[16] = {};
        if (mask.count < 16) {  // AVX2 masks no 16-bit loads
            if (mask.count > 0) __builtin_memcpy(some, from, size_t(mask.count) * 2);
            from = some;
        }
        const __m128i *const at = static_cast<const __m128i *>(from);
        return {_mm_loadu_si128(at), _mm_loadu_si128(at + 1)};
    }
    static Lanes load_f16(const void *from, Mask mask) {
        const Halves halves = load_halves(from, mask);
        return {_mm256_cvtph_ps(halves.low), _mm256_cvtph_ps(halves.high)};
    }
    static __m256 bf16_to_f32(__m128i halves) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        const Halves halves = load_halves(from, mask);
        return {bf16_to_f32(halves.low), bf16_to_f32(halves.high)};
    }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        const auto eight = [](const uint8_t *at) {
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
            return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        };
        return {eight(from), eight(from + 8)};
    }
    static void store_f32(float *to, Lanes a) {
        _mm256_storeu_ps(to, a.low);
        _mm256_storeu_ps(to + 8, a.high);
    }

    static Words load_words(const uint8_t *from) {
        const __m256i *const at = reinterpret_cast<const __m256i *>(from);
        return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
    }

    struct Table {  // 16 floats, to be indexed
        __m256 low, high;
    };
    static Table load_table(const float *entries) {
        return {_mm256_loadu_ps(entries), _mm256_loadu_ps(entries + 8)};
    }
    static Table scale_table(const Table &table, float scale) {
        const __m256 factor = _mm256_set1_ps(scale);
        return {_mm256_mul_ps(table.low, factor), _mm256_mul_ps(table.high, factor)};
    }
    static Table lower_table(const Table &table, float by) {
        const __m256 less = _mm256_set1_ps(by);
        return {_mm256_sub_ps(table.low, less), _mm256_sub_ps(table.high, less)};
    }
    // A permute takes the index's low 3 bits; bit 3, moved to the sign, selects the table's half.
    template <int step>
    static __m256 look_up_8(const Table &table, __m256i words) {
        const __m256i index = _mm256_srli_epi32(words, 4 * step);
        const __m256 select = _mm256_castsi256_ps(_mm256_slli_epi32(words, 28 - 4 * step));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index),
                                _mm256_permutevar8x32_ps(table.high, index), select);
    }
    // Nibble `step` of each word.
    template <int step>
    static Lanes look_up(const Table &table, const Words &words) {
        return {look_up_8<step>(table, words.low), look_up_8<step>(table, words.high)};
    }

    // Adds the 128 products of a chunk of a row to its sum, of each row of x; a group has kSteps
    // steps, and its scale is 8 floats after the one before.
    template <int kSteps, int kCount>
    QK_INLINE static void add_products(const Planes &planes, const uint8_t *codes,
                                       const float *scales, const float *const (&x)[kCount],
                                       Lanes *const (&sum)[kCount]) {
        __m256 low[kCount], high[kCount];
        for (int j = 0; j < kCount; ++j) low[j] = sum[j]->low, high[j] = sum[j]->high;
        add_half<kSteps>(planes, codes, scales, x, 0, low);
        add_half<kSteps>(planes, codes + 32, scales, x, 8, high);
        for (int j = 0; j < kCount; ++j) *sum[j] = {low[j], high[j]};
    }
    // Where pieces of a row's groups end, in halves of steps: one of them at most has two scales.
    struct PieceEnds {
        int32_t low, high;  // see Avx2Planes::add_half_at
        __m256 before;
    };
    // The first piece ends after `columns`.
    static PieceEnds piece_ends(int64_t columns) {
        const int32_t step = int32_t(columns / 16), cut = int32_t(columns % 16);
        return {cut < 8 ? 2 * step + (cut > 0) : 2 * step + 2, 2 * step + (cut > 8),
                _mm256_castsi256_ps(mask_bits({cut % 8}, 0))};
    }
    // As add_products of groups that end so, in pieces of kSteps steps, a scale a piece.
    template <int kSteps, int kCount>
    QK_INLINE static void add_pieces(const Planes &planes, const uint8_t *codes,
                                     const float *scales, const PieceEnds &ends,
                                     const float *const (&x)[kCount], Lanes *const (&sum)[kCount]) {
        __m256 low[kCount], high[kCount];
        for (int j = 0; j < kCount; ++j) low[j] = sum[j]->low, high[j] = sum[j]->high;
        add_half_at<kSteps>(ends.low, planes, codes, scales, ends.before, x, 0, low);
        add_half_at<kSteps>(ends.high, planes, codes + 32, scales, ends.before, x, 8, high);
        for (int j = 0; j < kCount; ++j) *sum[j] = {low[j], high[j]};
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(Lanes lanes) {
        const __m256 eight = _mm256_add_ps(lanes.low, lanes.high);
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    static void fold_rows(const Lanes *rows, float *to) {
        for (int row = 0; row < 8; ++row) to[row] = fold_lanes(rows[row]);
    }

    // 8 scales, one a row.
    static void widen_f16(const char *from, float *to) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        _mm256_storeu_ps(to, _mm256_cvtph_ps(half));
    }
    static void widen_bf16(const char *from, float *to) {
        _mm256_storeu_ps(to, bf16_to_f32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
    }
    static void stream_64(const char *from, char *to) {
        put<true>(to, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
        put<true>(to + 32, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + 32)));
    }
    static void end_stream() { _mm_sfence(); }

    // 16 lanes as bits of the output type.
    static void narrow_f16(Lanes a, uint16_t *to) {
        put<false>(reinterpret_cast<char *>(to), round_f16(a.low, a.high));
    }
    static void narrow_bf16(Lanes a, uint16_t *to) {
        put<false>(reinterpret_cast<char *>(to), round_bf16_or_nan(a.low, a.high));
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
};

// Internal linkage, and that of templates over it.
struct Avx2 : Fallbacks<Avx2Base> {
    // 256 floats in memory, to be indexed by bytes.
    struct WideTable {
        const float *entries;

        explicit WideTable(const float *from) : entries(from) {}
        Lanes look_up(const uint8_t *codes) const {
            return {look_up_blending(entries, codes), look_up_blending(entries, codes + 8)};
        }
    };

    static WidenNested nested_widener(const Device &) { return widen_scales; }
    static LookUpBytes byte_lookup(const Device &) { return look_up_floats; }
    static LookUpHalves halves_lookup(const Device &) { return look_up_halves; }

    // A packed chunk: byte b of its words has the two steps of quarter b.
    template <bool stream>
    QK_INLINE static void emit_chunk_halves(const Words &words, const HalfTable (&tables)[4],
                                            char *to) {
        __m256i pairs[2];
        Avx2Chunks::gather_bytes(words.low, words.high, pairs);
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; ++i, to += 128) {
            const __m256i nibble = _mm256_set1_epi8(15);
            const __m256i even = _mm256_and_si256(pairs[i], nibble);
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(pairs[i], 4), nibble);
            put_halves<stream>(to, _mm256_unpacklo_epi64(even, odd), tables[2 * i]);
            put_halves<stream>(to + 64, _mm256_unpackhi_epi64(even, odd), tables[2 * i + 1]);
        }
    }

    using Avx2Halves::put_bf16;
    static void put_f16(const Lanes &a, const Lanes &b, char *to, bool stream) {
        put_two(round_f16(a.low, a.high), round_f16(b.low, b.high), to, stream);
    }
    static void put_bf16(const Lanes &a, const Lanes &b, char *to, bool stream) {
        put_bf16(a.low, a.high, b.low, b.high, to, stream);
    }
    static void narrow_two_f16(const Lanes &a, const Lanes &b, uint16_t *to) {
        put_f16(a, b, reinterpret_cast<char *>(to), false);
    }
    static void narrow_two_bf16(const Lanes &a, const Lanes &b, uint16_t *to) {
        put_bf16(a, b, reinterpret_cast<char *>(to), false);
    }

    template <bool high_first = false>
    QK_INLINE static void pack_chunk(const uint8_t *from, uint8_t *to) {
        Avx2Chunks::pack_chunk<high_first>(from, to);
    }
    QK_INLINE static void unpack_chunk(const uint8_t *from, uint8_t *to) {
        Avx2Chunks::unpack_chunk(from, to);
    }

    static void transpose_block(const void *from, int64_t from_stride, void *to,
                                int64_t to_stride) {
        const char *const in = static_cast<const char *>(from);
        char *const out = static_cast<char *>(to);
        for (int64_t i = 0; i < 16; i += 8) {
            for (int64_t j = 0; j < 16; j += 8) {
                transpose_8x8(in + j * from_stride + i * 4, from_stride,
                              out + i * to_stride + j * 4, to_stride);
            }
        }
    }

    template <bool zeros, bool cuts>
    static void look_up_transposed(const uint8_t *const (&codes)[2], const Table &entries,
                                   const StepsOf<16> &steps, float *to, int64_t pitch) {
        uint8_t columns[16][64];
        float values[16];
        transpose_rows(codes[0], codes[1], columns);
        store_f32(values, {entries.low, entries.high});
        const Planes planes = load_planes(values);
        float starts[8][16];
        int32_t left[8][16];  // columns, from a step's start on, of a row's group
        for (int64_t step = 0; step < 8; ++step) {
            store_f32(starts[step], steps.at_column<Avx2>(steps.scale[step], step, 0));
            for (int i = 0; i < 16; ++i) left[step][i] = steps.ends[i] - steps.at[step];
        }
        for (int64_t i = 0; i < 32; ++i) {  // 8 rows each
            const int64_t rows = i % 2 * 8;
            __m256 entry[8];
            look_up_words(planes, columns[i / 2] + 4 * rows, entry);
            QK_UNROLL
            for (int64_t step = 0; step < 8; ++step) {
                __m256 number = entry[step];
                if constexpr (zeros) {
                    number = _mm256_add_ps(number, _mm256_loadu_ps(steps.less[step] + rows));
                }
                __m256 scale = _mm256_loadu_ps(starts[step] + rows);
                if constexpr (cuts) {
                    const float *const from = steps.scale[step] + rows;
                    scale = where_past(left[step] + rows, int32_t(i / 2),
                                       _mm256_loadu_ps(from + 16), _mm256_loadu_ps(from));
                }
                _mm256_storeu_ps(to + (16 * step + i / 2) * pitch + rows,
                                 _mm256_mul_ps(number, scale));
            }
        }
    }
};

static_assert(InstructionSet<Avx2>);

}  // namespace
}  // namespace qk::cpu

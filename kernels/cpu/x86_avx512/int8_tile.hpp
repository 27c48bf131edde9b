// Tiles of a batch in int8 mode, AVX-512 VNNI (int8/batch.hpp): a lane is a row of w, its
// dword 4 columns. A chunk of 32 rows is 4 KB; a step of 4 columns loads two vectors of w and
// multiplies them by 8 (or 4) rows of x, broadcast: 16 products for 10 loads, sums in registers.
// What a chunk costs beside its products is 12 instructions a row to decode and 5 a group, row of x
// and 16 rows of w to fold.
#pragma once
#include "cpu/int8/strip.hpp"
#include "cpu/x86_avx512/flat_scales.hpp"
#include "cpu/x86_avx512/int8_dots.hpp"
#include "cpu/x86_avx512/transposes.hpp"

namespace qk::cpu {
namespace {

struct Avx512Int8 : Avx512Dots {
    using Session = NoSession;
    using Strip = StripOfBlocks<Avx512Int8>;

    // 128 columns of a tile's rows of x, so that a step reads one run of memory.
    struct XTile : TileOfBlocks {
        int32_t x[32][kTile];  // 4 columns each

        static constexpr int64_t rows_read(int64_t rows) {
            return rows > 4 ? 8 : rows > 2 ? 4 : rows;
        }
    };

    // Codes of 32 rows of w to bytes: dword r of vectors d, 0 and 1, gets columns 4 d .. 4 d + 3 of
    // rows r and 16 + r.
    template <bool kFetches>  // what is 4 chunks on
    class TileDecoder {
      public:
        // entry(codes, half, sixteen): bytes of codes in low nibbles, some of columns
        // 16 sixteen .. 16 sixteen + 15 of a half.
        template <class Entry>
        static void decode(const uint8_t *const (&codes)[4], __m512i (*to)[2], const Entry &entry) {
            decode_half(codes[0], codes[1], 0, to, entry);
            decode_half(codes[2], codes[3], 1, to, entry);
        }

        // 16 rows: 32 bytes of each row at a time; 128 bits of a vector hold 4 rows. put(d, v) for
        // each d.
        template <class Entry, class Put>
        QK_INLINE static void decode_rows(const uint8_t *low, const uint8_t *high, int half,
                                          const Entry &entry, const Put &put) {
            QK_UNROLL
            for (int part = 0; part < 2; ++part) {
                __m512i even[4], odd[4];  // 16 bytes of rows i, i + 4, i + 8, i + 12 each
                QK_UNROLL
                for (int i = 0; i < 4; ++i) {
                    if (kFetches) prefetch(low + 64 * (4 * part + i) + 2048);
                    if (kFetches) prefetch(high + 64 * (4 * part + i) + 2048);
                    const auto two = [&](const uint8_t *at) QK_INLINE {
                        const __m256i *const from =
                            reinterpret_cast<const __m256i *>(at + 64 * i + 32 * part);
                        const __m512i one = _mm512_castsi256_si512(_mm256_loadu_si256(from));
                        return group_bytes<4>(
                            _mm512_inserti64x4(one, _mm256_loadu_si256(from + 8), 1));
                    };
                    const __m512i a = two(low), b = two(high);
                    even[i] = _mm512_shuffle_i32x4(a, b, 0x88);
                    odd[i] = _mm512_shuffle_i32x4(a, b, 0xdd);
                }
                put_quarter(even, 2 * part, half, entry, put);
                put_quarter(odd, 2 * part + 1, half, entry, put);
            }
        }

      private:
        template <class Entry>
        QK_NOINLINE static void decode_half(const uint8_t *low, const uint8_t *high, int half,
                                            __m512i (*to)[2], const Entry &entry) {
            decode_rows(low, high, half, entry,
                        [=](int d, __m512i v) QK_INLINE { to[d][half] = v; });
        }

        // Byte b of each of a row's four dwords belongs to columns 32 b + 4 quarter .. + 3 (low)
        // and 16 further (high nibbles); they stand in dword b.
        template <class Entry, class Put>
        QK_INLINE static void put_quarter(const __m512i (&v)[4], int quarter, int half,
                                          const Entry &entry, const Put &put) {
            const __m512i t[4] = {
                _mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]),
                _mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3])};
            const __m512i by_byte[4] = {
                _mm512_unpacklo_epi64(t[0], t[2]), _mm512_unpackhi_epi64(t[0], t[2]),
                _mm512_unpacklo_epi64(t[1], t[3]), _mm512_unpackhi_epi64(t[1], t[3])};
            QK_UNROLL
            for (int b = 0; b < 4; ++b) {
                put(8 * b + quarter, entry(by_byte[b], half, 2 * b));
                put(8 * b + 4 + quarter, entry(_mm512_srli_epi16(by_byte[b], 4), half, 2 * b + 1));
            }
        }
    };

    // The same of 32 rows of bytes, each with `flipped` bits changed.
    template <bool kFetches>
    QK_NOINLINE static void turn_bytes(const StripOfBytes::Chunk &codes, uint8_t flipped,
                                       __m512i (*to)[2]) {
        const __m512i flip = _mm512_set1_epi8(char(flipped));
        for (int64_t first = 0; first < 128; first += 64) {
            const int64_t count = max64(0, min64(64, codes.columns - first));
            const __mmask64 there = count == 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1;
            for (int half = 0; half < 2; ++half) {
                __m512i rows[16];
                QK_UNROLL
                for (int i = 0; i < 16; ++i) {
                    const uint8_t *const from = codes.row(16 * half + i) + first;
                    if (kFetches) prefetch_stream(from + kScaleChunks * 128);
                    rows[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, from), flip);
                }
                Avx512Transposes::transpose_registers(rows, [&](int64_t d, __m512i four) QK_INLINE {
                    to[first / 4 + d][half] = four;
                });
            }
        }
    }

    class TileKernel {
      public:
        explicit TileKernel(const Weight &w)
            : zeros_(w.zero != nullptr || has_minimum(w)),
              is_table_(w.format->kind == FormatKind::kLut4), table_(Int8Entries(w), is_table_) {}

        template <bool table>
        auto entry() const {
            const __m512i mask = _mm512_set1_epi8(15);
            return [this, mask](__m512i v, int, int)
                       QK_INLINE { return table ? table_.look_up(v) : _mm512_and_si512(v, mask); };
        }

        void decode(const uint8_t *const (&codes)[4], const TileFactors *, int64_t) {
            is_table_ ? TileDecoder<true>::decode(codes, entries_, entry<true>())
                      : TileDecoder<true>::decode(codes, entries_, entry<false>());
        }

        // One row of x and groups of 16: codes are multiplied while they are in registers.
        void add_one(const uint8_t *const (&codes)[4], const XTile &x, const TileFactors *factors,
                     int64_t count, float *acc) const {
            for (int half = 0; half < 2; ++half) {
                const uint8_t *const low = codes[2 * half], *const high = codes[2 * half + 1];
                is_table_ ? add_sixteen<true>(low, high, half, x, factors, count, acc)
                          : add_sixteen<false>(low, high, half, x, factors, count, acc);
            }
        }

        // Up to `rows` rows of a tile of x; `count` of the chunk's `groups` have columns.
        void add(const XTile *x, int64_t rows, const TileFactors *factors, int64_t count,
                 int64_t groups, float (*acc)[kTaskRows], int64_t) const {
            const int64_t columns = 32 / groups;
            switch (XTile::rows_read(rows)) {
                case 1: return add_few<1>(*x, factors, count, columns, acc);
                case 2: return add_few<2>(*x, factors, count, columns, acc);
                case 4: return add_rows<4>(*x, factors, count, columns, acc);
                default: return add_rows<8>(*x, factors, count, columns, acc);
            }
        }

        void finish() {}

      protected:
        __m512i entries_[32][2];  // [4 columns][16 rows]

      private:
        const bool zeros_, is_table_;
        const ByteTable table_;

        // `half`: of a task's rows of w.
        template <bool table>
        QK_NOINLINE void add_sixteen(const uint8_t *low, const uint8_t *high, int half,
                                     const XTile &x, const TileFactors *factors, int64_t count,
                                     float *acc) const {
            __m512i sum[8];
            QK_UNROLL
            for (int b = 0; b < 8; ++b) {
                sum[b] = _mm512_set1_epi32(x.minus[b][0]);
                if (!zeros_) continue;
                sum[b] = _mm512_madd_epi16(_mm512_load_si512(factors[b].zero + 16 * half), sum[b]);
            }
            TileDecoder<true>::decode_rows(low, high, half, entry<table>(),
                                           [&](int d, __m512i w) QK_INLINE {
                add_dots(sum[d / 4], w, _mm512_set1_epi32(x.x[d][0]));
            });
            acc += 16 * half;
            __m512 total = _mm512_load_ps(acc);
            QK_UNROLL
            for (int b = 0; b < 8; ++b) {
                if (b >= count) break;
                const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x.scale[b][0]),
                                                    _mm512_load_ps(factors[b].scale + 16 * half));
                total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[b]), factor, total);
            }
            _mm512_store_ps(acc, total);
        }

        template <int kRows>
        QK_NOINLINE void add_rows(const XTile &x, const TileFactors *factors, int64_t count,
                                  int64_t columns, float (*acc)[kTaskRows]) const {
            for (int64_t b = 0; b < count; ++b, ++factors) {
                __m512i sum[kRows][2];
                start<kRows>(x.minus[b], factors->zero, sum);
                multiply<kRows>(entries_ + b * columns, x.x + b * columns, columns, sum);
                const __m512 scale[2] = {_mm512_load_ps(factors->scale),
                                         _mm512_load_ps(factors->scale + 16)};
                asm volatile("" ::: "memory");  // or sums in acc would stay on the stack meanwhile
                QK_UNROLL
                for (int j = 0; j < kRows; ++j) {
                    const __m512 x_scale = _mm512_set1_ps(x.scale[b][j]);
                    for (int half = 0; half < 2; ++half) {
                        float *const to = acc[j] + 16 * half;
                        const __m512 factor = _mm512_mul_ps(x_scale, scale[half]);
                        const __m512 whole = _mm512_cvtepi32_ps(sum[j][half]);
                        _mm512_store_ps(to, _mm512_fmadd_ps(whole, factor, _mm512_load_ps(to)));
                    }
                }
            }
        }

        // One and two rows leave registers for what is summed up.
        template <int kRows>
        QK_NOINLINE void add_few(const XTile &x, const TileFactors *factors, int64_t count,
                                 int64_t columns, float (*acc)[kTaskRows]) const {
            __m512 total[kRows][2];
            QK_UNROLL
            for (int i = 0; i < 2 * kRows; ++i) {
                total[i / 2][i % 2] = _mm512_load_ps(acc[i / 2] + 16 * (i % 2));
            }
            for (int64_t b = 0; b < count; ++b, ++factors) {
                __m512i sum[kRows][2];
                start<kRows>(x.minus[b], factors->zero, sum);
                multiply<kRows>(entries_ + b * columns, x.x + b * columns, columns, sum);
                QK_UNROLL
                for (int i = 0; i < 2 * kRows; ++i) {
                    const __m512 scale = _mm512_load_ps(factors->scale + 16 * (i % 2));
                    const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x.scale[b][i / 2]), scale);
                    const __m512 whole = _mm512_cvtepi32_ps(sum[i / 2][i % 2]);
                    total[i / 2][i % 2] = _mm512_fmadd_ps(whole, factor, total[i / 2][i % 2]);
                }
            }
            QK_UNROLL
            for (int i = 0; i < 2 * kRows; ++i) {
                _mm512_store_ps(acc[i / 2] + 16 * (i % 2), total[i / 2][i % 2]);
            }
        }

        // What zeros take off: minus the zero times the sum of x, both of which fit 16 bits.
        template <int kRows>
        QK_INLINE void start(const int32_t *minus, const int32_t *zero,
                             __m512i (&sum)[kRows][2]) const {
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                const __m512i off = _mm512_set1_epi32(minus[j]);
                sum[j][0] = sum[j][1] = off;
            }
            if (!zeros_) return;
            const __m512i low = _mm512_load_si512(zero), high = _mm512_load_si512(zero + 16);
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) {
                sum[j][0] = _mm512_madd_epi16(low, sum[j][0]);
                sum[j][1] = _mm512_madd_epi16(high, sum[j][1]);
            }
        }

        template <int kRows>
        QK_INLINE static void multiply(const __m512i (*w)[2], const int32_t (*x)[kTile],
                                       int64_t columns, __m512i (&sum)[kRows][2]) {
            __m512i total[kRows][2];
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) total[j][0] = sum[j][0], total[j][1] = sum[j][1];
            for (int64_t i = 0; i < columns; i += 4) {  // a group has 4, 8, 16 or 32
                prefetch(reinterpret_cast<const uint8_t *>(x[i]) +
                         sizeof(XTile));  // the next tile's
                prefetch(reinterpret_cast<const uint8_t *>(x[i + 2]) + sizeof(XTile));
                QK_UNROLL
                for (int64_t d = i; d < i + 4; ++d) {
                    const __m512i low = w[d][0], high = w[d][1];
                    QK_UNROLL
                    for (int j = 0; j < kRows; ++j) {
                        const __m512i four = _mm512_set1_epi32(x[d][j]);
                        add_dots(total[j][0], low, four);
                        add_dots(total[j][1], high, four);
                    }
                }
            }
            QK_UNROLL
            for (int j = 0; j < kRows; ++j) sum[j][0] = total[j][0], sum[j][1] = total[j][1];
        }
    };

    // Rows of x to tiles.
    class TileRows {
      public:
        explicit TileRows(const Weight &w)
            : zero_(w.format->kind == FormatKind::kLut4 ? kZeroOfBytes : zero_of_all(w)) {}

        // A chunk of x as row j of a tile.
        void put(const float *x, int64_t blocks, float unit, int64_t j, XTile *to) const {
            alignas(64) int32_t dwords[32];
            quantize(x, blocks, unit, j, to, dwords, dwords + 16);
            for (int i = 0; i < 32; ++i) to->x[i][j] = dwords[i];
        }

      protected:
        // Row j of a tile but for its columns, whose halves go to 64 bytes each.
        template <class Tile>
        QK_INLINE void quantize(const float *x, int64_t blocks, float unit, int64_t j, Tile *to,
                                void *first_half, void *second_half) const {
            const ChunkQuantizer quantizer(x, blocks);
            float scale[8];
            int32_t sum[8];
            quantizer.store_scales(unit, scale);
            const XBytes bytes = quantizer.integers(sum);
            const __m512i order =
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const __m512i second = _mm512_add_epi32(order, _mm512_set1_epi32(16));
            _mm512_store_si512(first_half, place(bytes, order));
            _mm512_store_si512(second_half, place(bytes, second));
            for (int64_t b = 0; b < blocks; ++b) {
                to->set_block(b, j, scale[b], -zero_ * sum[b]);
            }
        }

      private:
        const int32_t zero_;  // that all sums of x are multiplied by
    };
};

// Of nibbles.
struct Avx512Int8Nibbles : Avx512Int8 {
    using FlatScales = Avx512FlatScales;
};

// Of rows of bytes.
struct Avx512Int8Bytes : Avx512Int8 {
    using Strip = StripOfBytes;

    struct TileKernel : Avx512Int8::TileKernel {
        using Avx512Int8::TileKernel::TileKernel;

        void decode(const StripOfBytes::Chunk &codes, const TileFactors *, int64_t) {
            turn_bytes<true>(codes, kZeroOfBytes, entries_);
        }
    };
};

}  // namespace
}  // namespace qk::cpu

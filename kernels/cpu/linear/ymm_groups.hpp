// Products of one row of x as integers with packed codes in groups of 16, 32 or 64
// (gemv_groups.hpp) in 256-bit registers: AVX2, and AVX-512 without VNNI and VBMI. A vector has the
// same piece of two rows, r and r + 4, because scales of eight rows transpose in 128-bit halves.
// vpmaddubsw multiplies 32 unsigned codes by bytes of x and adds neighbours; two pieces are added
// in 16 bits (4 * 24 * 128 fits):
//
//     for 128 bytes of two rows
//     8 loads, 4 byte shuffles -> low and high nibbles of 4 pieces           20 instructions
//     for each of 3 bytes of x and 4 parts of the lanes: 2 products, their sum, widened    48
//     x, each from memory, of 16 bytes, for four rows                                      12
//     [0] + 256 * [1] + 65536 * [2] - zero * sum of x; sum = fma(that as f32, factor, sum) 28
//
// Entries of tables are looked up, 12 above themselves: unsigned. Rows as they are stored have a
// lane's columns in both nibbles of one piece, whose products are added instead of two pieces'.
#pragma once
#include <immintrin.h>

#include "cpu/linear/gemv_groups.hpp"

namespace qk::cpu {
namespace {

template <CodeKind kind, bool stored>
class YmmGroupsOf {
  public:
    using X = PiecesOfX<stored>;
    struct Sums {
        __m256 of[4][4];  // [rows r and r + 4][part of the lanes]
    };

    explicit YmmGroupsOf(const Weight &w)
        : groups_(w.geometry), steps_(integer_steps(*w.format)),
          offset_(kind == CodeKind::kTable ? kOffset : common_zero(w)) {
        alignas(16) int8_t entries[16] = {};
        for (int code = 0; code < 16 && kind == CodeKind::kTable; ++code) {
            entries[code] = int8_t(int(w.format->value(code) * steps_) + kOffset);
        }
        entries_ = twice(entries);
    }

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums &sums) const {
        add_rows(codes, 64, x, scales, zeros, sums);
    }
    QK_INLINE void add_rows(const uint8_t *codes, int64_t pitch, const X &x, const char *scales,
                            const uint8_t *zeros, Sums &sums) const {
        Factors factors;
        const int parities = groups_.odd_differ() ? 2 : 1;
        if (stored) {
            prepare_parts(scales, zeros, x.unit, &factors);
        } else {
            for (int odd = 0; odd < parities; ++odd) prepare(scales, zeros, x.unit, odd, &factors);
        }
        if (kind != CodeKind::kZeros) {
            for (int part = 0; part < 4; ++part) {
                factors.less[part] =
                    _mm256_mullo_epi32(twice(x.sum[part]), _mm256_set1_epi32(offset_));
            }
        }
        _Pragma("GCC unroll 1") for (int pair = 0; pair < 4; pair += kTogether) {
            add_pairs(codes + pair * pitch, pitch, x, factors, pair, parities - 1, sums);
        }
    }

    static void to_rows(const Sums &sums, float (*rows)[16]) {
        for (int pair = 0; pair < 4; ++pair) {
            float parts[4][2][4];
            memcpy(parts, sums.of[pair], sizeof(parts));
            for (int64_t lane = 0; lane < 16; ++lane) {
                const auto &part = parts[X::part_of_lane(lane)];
                rows[pair][lane] = part[0][X::place_of_lane(lane)];
                rows[pair + 4][lane] = part[1][X::place_of_lane(lane)];
            }
        }
    }

  private:
    static constexpr int kTogether = 2;  // pairs of rows: they share what is loaded of x
    static constexpr int kOffset = 12;   // of entries of tables

    // Of a chunk, as its lanes are multiplied: [odd][pair of rows], stored: [part][pair].
    struct Factors {
        __m256 scale[stored ? 4 : 2][4];
        __m256i zero[stored ? 4 : 2][4];
        __m256i less[4];  // of the lanes' sums where all zeros are the same
    };

    template <class T>
    static __m256i twice(const T (&from)[16 / sizeof(T)]) {
        return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(from)));
    }

    // 4 x 4 in either half.
    QK_INLINE static void transpose(const __m256 (&from)[4], __m256 (&to)[4]) {
        const __m256 a = _mm256_unpacklo_ps(from[0], from[1]);
        const __m256 b = _mm256_unpackhi_ps(from[0], from[1]);
        const __m256 c = _mm256_unpacklo_ps(from[2], from[3]);
        const __m256 d = _mm256_unpackhi_ps(from[2], from[3]);
        to[0] = _mm256_shuffle_ps(a, c, 0x44);
        to[1] = _mm256_shuffle_ps(a, c, 0xee);
        to[2] = _mm256_shuffle_ps(b, d, 0x44);
        to[3] = _mm256_shuffle_ps(b, d, 0xee);
    }

    QK_INLINE void prepare(const char *scales, const uint8_t *zeros, float unit, int odd,
                           Factors *to) const {
        __m256 scale[4], zero[4];
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int64_t group = groups_.group[2 * i + odd];
            scale[i] = scales_of(scales, group, unit);
            if (kind == CodeKind::kZeros) zero[i] = zeros_of(zeros, group);
        }
        transpose(scale, to->scale[odd]);
        if (kind != CodeKind::kZeros) return;
        __m256 turned[4];
        transpose(zero, turned);
        QK_UNROLL
        for (int i = 0; i < 4; ++i) to->zero[odd][i] = _mm256_castps_si256(turned[i]);
    }

    // Of the 8 rows: a group's scales times the unit of products, and its zeros as integers.
    QK_INLINE __m256 scales_of(const char *scales, int64_t group, float unit) const {
        const float *const of_rows = reinterpret_cast<const float *>(scales) + 8 * group;
        return _mm256_mul_ps(_mm256_loadu_ps(of_rows), _mm256_set1_ps(unit / steps_));
    }
    QK_INLINE static __m256 zeros_of(const uint8_t *zeros, int64_t group) {
        const __m256i all = _mm256_set1_epi32(load_as<int32_t>(zeros, group));
        const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        return _mm256_castsi256_ps(
            _mm256_and_si256(_mm256_srlv_epi32(all, shifts), _mm256_set1_epi32(15)));
    }
    // A part of stored rows is 32 columns, of one group or of two.
    QK_INLINE void prepare_parts(const char *scales, const uint8_t *zeros, float unit,
                                 Factors *to) const {
        QK_UNROLL
        for (int part = 0; part < 4; ++part) {
            const int64_t group = part * groups_.count / 4, next = group + groups_.odd_differ();
            const __m256 scale = scales_of(scales, group, unit);
            spread(scale, next == group ? scale : scales_of(scales, next, unit), to->scale[part]);
            if (kind != CodeKind::kZeros) continue;
            const __m256 zero = zeros_of(zeros, group);
            __m256 of_pairs[4];
            spread(zero, next == group ? zero : zeros_of(zeros, next), of_pairs);
            QK_UNROLL
            for (int i = 0; i < 4; ++i) to->zero[part][i] = _mm256_castps_si256(of_pairs[i]);
        }
    }
    // Pair r: two lanes of rows r and r + 4 of a, and two of b.
    QK_INLINE static void spread(__m256 a, __m256 b, __m256 (&to)[4]) {
        to[0] = _mm256_shuffle_ps(a, b, 0x00);
        to[1] = _mm256_shuffle_ps(a, b, 0x55);
        to[2] = _mm256_shuffle_ps(a, b, 0xaa);
        to[3] = _mm256_shuffle_ps(a, b, 0xff);
    }

    // Byte b of a row's four words side by side, of rows r and r + 4; stored, as they are.
    QK_INLINE static __m256i load_piece(const uint8_t *codes, int64_t pitch) {
        const auto at = [](const uint8_t *from) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        };
        const __m256i both =
            _mm256_inserti128_si256(_mm256_castsi128_si256(at(codes)), at(codes + 4 * pitch), 1);
        if (stored) return both;
        return _mm256_shuffle_epi8(
            both, _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
    }

    QK_INLINE __m256i nibbles(__m256i bytes, int odd) const {
        const __m256i of_lanes = odd != 0 ? _mm256_srli_epi16(bytes, 4) : bytes;
        const __m256i codes = _mm256_and_si256(of_lanes, _mm256_set1_epi8(15));
        return kind == CodeKind::kTable ? _mm256_shuffle_epi8(entries_, codes) : codes;
    }

    // `unlike`: the number of factors of odd lanes.
    QK_INLINE void add_pairs(const uint8_t *codes, int64_t pitch, const X &x,
                             const Factors &factors, int pair, int unlike, Sums &sums) const {
        QK_UNROLL
        for (int half = 0; half < 2; ++half) {
            __m256i bytes[kTogether][2];
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                const uint8_t *const row = codes + i * pitch;
                if (!stored && half == 0) {
                    prefetch_stream(row + kAhead);
                    prefetch_stream(row + 256 + kAhead);
                }
                bytes[i][0] = load_piece(row + 32 * half, pitch);
                bytes[i][1] = load_piece(row + 32 * half + 16, pitch);
            }
            QK_UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                __m256i dot[kTogether];
                dots(bytes, odd, half, x, dot);
                const int part = 2 * half + odd, like = stored ? part : odd & unlike;
                QK_UNROLL
                for (int i = 0; i < kTogether; ++i) {
                    const int at = pair + i;
                    const __m256i less =
                        kind == CodeKind::kZeros
                            ? _mm256_mullo_epi32(factors.zero[like][at], twice(x.sum[part]))
                            : factors.less[part];
                    sums.of[at][part] =
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(dot[i], less)),
                                        factors.scale[like][at], sums.of[at][part]);
                }
            }
        }
    }

    // [0] + 256 * [1] + 65536 * [2] of the lanes of a part.
    QK_INLINE void dots(const __m256i (&bytes)[kTogether][2], int odd, int half, const X &x,
                        __m256i (&to)[kTogether]) const {
        const auto &bytes_of_x = odd != 0 ? x.high : x.low;
        __m256i code[kTogether][2];
        QK_UNROLL
        for (int i = 0; i < kTogether; ++i) {
            code[i][0] = nibbles(bytes[i][stored ? odd : 0], stored ? 0 : odd);
            code[i][1] = nibbles(bytes[i][stored ? odd : 1], stored ? 1 : odd);
        }
        QK_UNROLL
        for (int place = 2; place >= 0; --place) {
            const int part = 2 * half + odd;
            const __m256i first = twice(stored ? x.low[place][part] : bytes_of_x[place][2 * half]);
            const __m256i second =
                twice(stored ? x.high[place][part] : bytes_of_x[place][2 * half + 1]);
            const __m256i weight = _mm256_set1_epi16(place == 1 ? 256 : 1);
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                const __m256i four = _mm256_add_epi16(_mm256_maddubs_epi16(code[i][0], first),
                                                      _mm256_maddubs_epi16(code[i][1], second));
                const __m256i sum = _mm256_madd_epi16(four, weight);
                to[i] = place == 2 ? _mm256_slli_epi32(sum, 16) : _mm256_add_epi32(to[i], sum);
            }
        }
    }

    const GroupsOfLanes groups_;
    const float steps_;
    const int offset_;  // of all codes from their entries
    __m256i entries_;
};

template <CodeKind kind>
using YmmGroups = YmmGroupsOf<kind, false>;

template <CodeKind kind>
struct YmmStoredGroups : YmmGroupsOf<kind, true> {
    static constexpr bool kAsStored = true;
    using YmmGroupsOf<kind, true>::YmmGroupsOf;

    template <class X, class Sums>
    QK_INLINE void add_stored(const uint8_t *codes, int64_t pitch, const X &x, const char *scales,
                              const uint8_t *zeros, Sums &sums) const {
        this->add_rows(codes, pitch, x, scales, zeros, sums);
    }
};

}  // namespace
}  // namespace qk::cpu

// Scales as f32 and zeros of 8 rows as files store them, a run of groups.
#pragma once
#include "cpu/x86_avx512/isa.hpp"

#include "cpu/shared/panel.hpp"
#include "cpu/traits.hpp"
#include "cpu/x86_avx512/look_up_planes.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kRun = 4096;                 // columns whose scales are widened at once
constexpr int64_t kRunGroups = kRun / 16 + 1;  // of 16 columns or more, one cut

// Scales as f32 and zeros of 8 rows, a run of groups; or minima in the place of scales.
class Groups8 {
  public:
    explicit Groups8(const Weight &w) : Groups8(w, w.scale) {}
    // `plane`: the weight's scales or its minima, perhaps none.
    Groups8(const Weight &w, const ScalePlane &plane)
        : w_(w), plane_(plane), group_of_code_(w.geometry),
          pitch_(w.layout->scale_at(w.geometry, {1, 0})), few_fills_((traits() & kFewFills) != 0) {
        if (plane.format == nullptr) return;
        const bool looked_up = has_coded_scales(plane) && plane.format->id != QK_FORMAT_I8;
        if (looked_up) load_nested_code(plane.code, &nested_);
        if (w.zero == nullptr) memset(zero, 0, sizeof(zero));
    }

    // Those of columns column .. end of rows row .. row + 7, each row's from its own first one on;
    // what the next call wants is fetched, and `bytes` of codes, an eighth in each row's turn.
    QK_NOINLINE void load(int64_t row, int64_t column, int64_t end, const uint8_t *codes = nullptr,
                          int64_t bytes = 0) {
        const auto for_each_row = [&](const auto &read) QK_INLINE {
            for (int64_t i = 0; i < 8; ++i) {
                for (int64_t at = 0; at < bytes / 8; at += 64) {
                    fetch_later(codes + i * (bytes / 8) + at, few_fills_);
                }
                read(i);
            }
        };
        if (w_.geometry.flat) {
            return for_each_row([&](int64_t i) { load_flat(row + i, column, end, i); });
        }
        const int64_t first = group_of_code_(column), count = group_of_code_(end - 1) - first + 1;
        const int64_t next = end < w_.geometry.k ? count : 8 * pitch_ - first;
        const auto read_rows = [&](const auto &read) QK_INLINE {
            for_each_row([&](int64_t i) QK_INLINE {
                const int64_t at = (row + i) * pitch_ + first;
                fetch(at + next, count);
                read(i, at);
            });
        };
        switch (plane_.format->id) {
            case QK_FORMAT_F16:
                read_rows([&](int64_t i, int64_t at) QK_INLINE {
                    widen(static_cast<const uint16_t *>(plane_.data) + at, count, scale[i]);
                });
                break;
            case QK_FORMAT_BF16:
            case QK_FORMAT_F32:
                read_rows([&](int64_t i, int64_t at) {
                    widen_x<Avx512>({plane_.format, 1, count, plane_.data}, at, count, scale[i]);
                });
                break;
            default:
                if (plane_.format->id != QK_FORMAT_I8 && takes_64s(first)) {
                    read_rows(Looked{*this, row, first, count});
                    break;
                }
                read_rows([&](int64_t i, int64_t at) {
                    load_nested({row + i, first}, count, at, scale[i]);
                });
        }
        if (w_.zero == nullptr) return;
        if (words_of_zeros(row)) return load_zero_words(row, first, count);
        load_zeros({row, first}, count, 8, zero);
    }

    alignas(64) float scale[8][kRunGroups + 15];
    uint8_t zero[8][kRunGroups + 15];

  private:
    void load_flat(int64_t row, int64_t column, int64_t end, int64_t i) {
        const Geometry &s = w_.geometry;
        const int64_t of_row = row * s.k, first = group_of_code_(of_row + column);
        const int64_t count = group_of_code_(of_row + end - 1) - first + 1;
        fetch(group_of_code_(of_row + column + 8 * s.k), count);
        if (has_coded_scales(plane_)) {
            load_nested({0, first}, count, first, scale[i]);
        } else {
            widen_x<Avx512>({plane_.format, 1, count, plane_.data}, first, count, scale[i]);
        }
        if (w_.zero != nullptr) load_zeros({0, first}, count, 1, zero + i);
    }

    static void widen(const uint16_t *from, int64_t count, float *to) {
        for (; count >= 16; count -= 16, from += 16, to += 16) {
            const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
            _mm512_store_ps(to, _mm512_cvtph_ps(halves));
        }
        if (count > 0) Avx512::store_f32(to, Avx512::load_f16(from, Avx512::first_lanes(count)));
    }

    // Whether 64 scales of a row from a multiple of 64 on share a second one.
    bool takes_64s(int64_t first) const {
        const int64_t size = plane_.second_group;
        if (size >= w_.geometry.group_count) return true;
        return (size % 64 == 0 && first % 64 == 0 && w_.geometry.groups_per_row % 64 == 0) ||
               size == w_.geometry.groups_per_row;
    }

    // Rows of codes of a table, 64 at a time; the table stays in registers.
    struct Looked {
        Groups8 &to;
        int64_t row, first, count;
        Plane planes[4];
        __m512 bias;

        Looked(Groups8 &groups, int64_t row, int64_t first, int64_t count)
            : to(groups), row(row), first(first), count(count) {
            for (int p = 0; p < 4; ++p) planes[p] = load_plane(to.nested_.plane[p]);
            bias = _mm512_set1_ps(load_as<float>(to.plane_.bias, 0));
        }
        QK_INLINE void operator()(int64_t i, int64_t at) const {
            const int64_t number = (row + i) * to.w_.geometry.groups_per_row + first;
            const uint8_t *const from = static_cast<const uint8_t *>(to.plane_.data) + at;
            for (int64_t g = 0; g < count; g += 64) {
                const __mmask64 mask =
                    count - g >= 64 ? ~__mmask64(0) : (__mmask64(1) << (count - g)) - 1;
                const int64_t second = to.second_of_number(number + g);
                const __m512 by = _mm512_set1_ps(load_as<float>(to.plane_.second, second));
                look_up_64(planes, _mm512_maskz_loadu_epi8(mask, from + g),
                           [&](__m512i bits, int quarter) QK_INLINE {
                    if (g + 16 * quarter >= count) return;
                    const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), by);
                    _mm512_store_ps(to.scale[i] + g + 16 * quarter, _mm512_add_ps(product, bias));
                });
            }
        }
    };

    void load_nested(GroupIndex first, int64_t count, int64_t at, float *to) const {
        const uint8_t *const from = static_cast<const uint8_t *>(plane_.data) + at;
        const bool integers = plane_.format->id == QK_FORMAT_I8;
        const int64_t number = group_number(w_.geometry, first), size = plane_.second_group;
        int64_t second = second_of_number(number);
        int64_t end = min64(count, (second + 1) * size - number);
        if (integers && number == second * size && (size == 8 || size % 16 == 0)) {
            return scale_whole_groups(from, count, second, to);
        }
        for (int64_t i = 0; i < count; ++second) {
            const float by = load_as<float>(plane_.second, second);
            if (integers) {
                scale_integers(from + i, end - i, by, to + i);
            } else {
                kLookUpBytesVbmi(nested_, from + i, end - i, by, to + i);
            }
            i = end;
            end = min64(count, end + plane_.second_group);
        }
        if (integers) return;
        const Lanes<Avx512> bias = Avx512::splat(load_as<float>(plane_.bias, 0));
        for (int64_t i = 0; i < count; i += 16)
            Avx512::store_f32(to + i, Avx512::add(Avx512::load_f32(to + i), bias));
    }

    // From a second group's start on, of 8 scales or whole 16s, into whole runs of 16. What the row
    // 8 further on will take of the second scales is fetched, too short a piece for a processor's
    // own prefetching.
    void scale_whole_groups(const uint8_t *from, int64_t count, int64_t second, float *to) const {
        const int64_t size = plane_.second_group;
        const char *by = static_cast<const char *>(plane_.second) + second * 4;
        const int64_t bytes = ceil_div(count, size) * 4;
        prefetch_lines(by, bytes, w_.geometry.groups_per_row / size * 32);
        int64_t i = 0;
        for (; size == 8 && i + 16 <= count; i += 16, by += 8) {
            const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i));
            const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(both));
            const __m512 two = Avx512::splat_two(reinterpret_cast<const float *>(by)).v;
            _mm512_storeu_ps(to + i, _mm512_mul_ps(codes, two));
        }
        for (int64_t left = size; i < count; i += 16) {
            const __mmask16 there = Avx512::first_lanes(count - i).v;
            const __m512i codes = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, from + i));
            __m512 scale = _mm512_set1_ps(load_as<float>(by, 0));
            if (size == 8) {
                if (count - i > 8) {
                    const __m512 next = _mm512_set1_ps(load_as<float>(by, 1));
                    scale = _mm512_mask_mov_ps(scale, 0xff00, next);
                }
                by += 8;
            } else if ((left -= 16) == 0) {
                by += 4;
                left = size;
            }
            _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale));
        }
    }

    static void scale_integers(const uint8_t *from, int64_t count, float by, float *to) {
        for (int64_t i = 0; i < count; i += 16) {
            const __mmask16 there = Avx512::first_lanes(count - i).v;
            const __m512i codes = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, from + i));
            _mm512_mask_storeu_ps(to + i, there,
                                  _mm512_mul_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(by)));
        }
    }

    int64_t second_of_number(int64_t number) const {  // divisions are slow
        const int64_t size = plane_.second_group;
        const bool power = (size & (size - 1)) == 0;
        return power ? number >> __builtin_ctzll(uint64_t(size)) : number / size;
    }

    void fetch(int64_t at, int64_t count) const {
        const int64_t size = plane_.format->bits / 8;
        const uint8_t *const from = static_cast<const uint8_t *>(plane_.data) + at * size;
        for (int64_t i = 0; i < count * size; i += 64) fetch_later(from + i, few_fills_);
    }

    // Whether the 8 rows have a word of zeros for each group.
    bool words_of_zeros(int64_t row) const {
        return w_.layout->id == QK_LAYOUT_WORD && row % 8 == 0 && !w_.geometry.flat;
    }
    void load_zero_words(int64_t row, int64_t group, int64_t count) {
        const int64_t at = w_.layout->zero_at(w_.geometry, {row, group}) / 8;
        const uint8_t *const next =
            static_cast<const uint8_t *>(w_.zero) + (at + w_.geometry.groups_per_row) * 4;
        for (int64_t i = 0; i < count * 4; i += 64) fetch_later(next + i, few_fills_);
        for (int64_t g = 0; g < count; g += 16) {
            const __mmask16 there = Avx512::first_lanes(count - g).v;
            const __m512i words =
                _mm512_maskz_loadu_epi32(there, static_cast<const char *>(w_.zero) + (at + g) * 4);
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                const __m512i nibbles =
                    _mm512_and_si512(_mm512_srli_epi32(words, 4 * i), _mm512_set1_epi32(15));
                _mm_storeu_si128(reinterpret_cast<__m128i *>(zero[i] + g),
                                 _mm512_cvtepi32_epi8(nibbles));
            }
        }
    }

    // Of some rows, `count` each, and past the last anything. A row's are equally far apart,
    // counted from either end of their bytes. What comes in their place 8 rows on is fetched.
    void load_zeros(GroupIndex first, int64_t count, int64_t rows,
                    uint8_t (*to)[kRunGroups + 15]) const {
        const int64_t high = w_.layout->id == QK_LAYOUT_ROW_HIGH ? 1 : 0;
        const auto place = [&](int64_t row, int64_t group) {
            return w_.layout->zero_at(w_.geometry, {row, group}) ^ high;
        };
        const int64_t start = place(first.row, first.group);
        const int64_t next = place(first.row, first.group + 1) - start;
        const int64_t pitch = rows > 1 ? place(first.row + 1, first.group) - start : 0;
        const uint8_t *const zeros = static_cast<const uint8_t *>(w_.zero);
        for (int64_t i = 0, at = start; i < rows; ++i, at += pitch) {
            if (next == 1 && at % 2 == 0) {
                for (int64_t g = 0; g < count; g += 128) {
                    fetch_later(zeros + (at + 8 * pitch + g) / 2, few_fills_);
                }
                spread_nibbles(zeros + at / 2, count, high != 0, to[i]);
                continue;
            }
            // The words of 8 rows, from other ones than their first on.
            if (next != 1) at = place(first.row + i, first.group);
            for (int64_t g = 0; g < count; ++g) {
                const int64_t nibble = at + g * next;
                to[i][g] = uint8_t(zeros[nibble >> 1] >> ((nibble ^ high) & 1) * 4 & 15);
            }
        }
    }
    static void spread_nibbles(const uint8_t *from, int64_t count, bool high_first, uint8_t *to) {
        for (int64_t g = 0; g < count; g += 16, from += 8) {
            const __mmask16 there = Avx512::first_lanes(ceil_div(min64(16, count - g), 2)).v;
            const __m128i pairs = _mm_maskz_loadu_epi8(there, from);
            const __m128i low = _mm_and_si128(pairs, _mm_set1_epi8(15));
            const __m128i upper = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
            _mm_storeu_si128(
                reinterpret_cast<__m128i *>(to + g),
                high_first ? _mm_unpacklo_epi8(upper, low) : _mm_unpacklo_epi8(low, upper));
        }
    }

    const Weight &w_;
    const ScalePlane &plane_;
    const GroupOfCode group_of_code_;
    const int64_t pitch_;  // from a row's scales to the next row's, where none straddles rows
    const bool few_fills_;
    NestedCode nested_;
};

}  // namespace
}  // namespace qk::cpu

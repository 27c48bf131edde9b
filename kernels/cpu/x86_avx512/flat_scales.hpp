// Scales of 32 rows of w whose groups straddle rows, for each step of 16 columns, AVX-512: groups
// of a row are read side by side, turned in registers, and kept for as many columns as they have; a
// step's are blended from two.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

class Avx512FlatScales {
  public:
    explicit Avx512FlatScales(const Weight &w)
        : s_(w.geometry), in_place_(w.scale.format->id == QK_FORMAT_F32),
          floats_(static_cast<const char *>(w.scale.data)),
          columns_((kGroups - 2) * s_.group_size / kPanel * kPanel), group_of_code_(s_) {}

    // Steps first .. first + count, which are kScaleChunks chunks at most, of rows from `row` on.
    template <class Panel>  // of scales
    void load(Panel &panel, int64_t row, int64_t first, int64_t count, TileFactors *to) {
        const int64_t column = first * 16;
        if (row != row_ || column < column_ || column >= column_ + columns_) {
            row_ = row;
            column_ = column;
            fill(panel, 0);
            fill(panel, 16);
        }
        blend(column - column_, count, to);
    }

  private:
    static constexpr int64_t kGroups = 64;  // of a row, read at once
    static constexpr int64_t kPanel = 512;  // columns of kScaleChunks chunks

    // Of 16 rows, each from the group on that it has at column_.
    template <class Panel>
    QK_NOINLINE void fill(Panel &panel, int64_t half) {
        const int64_t count = min64(columns_, s_.k - column_) / s_.group_size + 2;
        alignas(64) float widened[16][kGroups];
        const char *from[16];
        for (int64_t i = 0; i < 16; ++i) {
            const int64_t row = row_ + half + i, at = row * s_.k + column_;
            const int64_t group = group_of_code_(at), left = s_.group_count - group;
            from[i] = reinterpret_cast<const char *>(widened[i]);
            ends_[half + i] = int32_t(min64((group + 1) * s_.group_size - at, INT32_MAX));
            if (row >= s_.n) {
                memset(widened[i], 0, sizeof(widened[i]));
                continue;
            }
            const int64_t there = min64(count, left);
            if (!in_place_) {
                panel.load_groups(group, false, there, group + count, widened[i]);
                continue;
            }
            const char *const scales = floats_ + group * 4;
            prefetch_lines(scales, count * 4, count * 4);  // the next ones
            if (left >= kGroups) {
                from[i] = scales;
            } else {  // a vector would end past the last scale
                memcpy(widened[i], scales, size_t(there) * 4);
            }
        }
        for (int64_t g = 0; g < count; g += 16) {
            __m512i rows[16];
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
                rows[i] = _mm512_loadu_si512(from[i] + 4 * g);
            }
            Avx512::transpose_registers(rows, [&](int j, __m512i scales) QK_INLINE {
                _mm512_store_si512(scale_[g + j] + half, scales);
            });
        }
    }

    // A row's next group starts ends_[row] columns after a multiple of the group's size.
    QK_NOINLINE void blend(int64_t column, int64_t count, TileFactors *to) const {
        const __m512i low = _mm512_load_si512(ends_), high = _mm512_load_si512(ends_ + 16);
        const int64_t size = s_.group_size;
        const float(*at)[kTaskRows] = scale_ + column / size;
        int64_t past = column % size;
        for (int64_t i = 0; i < count; ++i, past += 16) {
            if (past >= size) past -= size, ++at;
            const __m512i place = _mm512_set1_epi32(int(past));
            const auto put = [&](__m512i ends, int64_t half) QK_INLINE {
                const __mmask16 next = _mm512_cmple_epi32_mask(ends, place);
                _mm512_store_ps(to[i].scale + half,
                                _mm512_mask_blend_ps(next, _mm512_load_ps(at[0] + half),
                                                     _mm512_load_ps(at[1] + half)));
            };
            put(low, 0);
            put(high, 16);
        }
    }

    const Geometry s_;
    const bool in_place_;  // f32 scales
    const char *const floats_;
    const int64_t columns_;  // whose groups are kept
    const GroupOfCode group_of_code_;
    int64_t row_ = -1, column_ = 0;  // of those that are kept
    alignas(64) int32_t ends_[kTaskRows];
    alignas(64) float scale_[kGroups][kTaskRows];
};

}  // namespace
}  // namespace qk::cpu

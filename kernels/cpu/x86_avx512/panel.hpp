// What the packed kernels share: the scales of 8 rows as f32, a run of groups at a time, and the
// entries that codes stand for as registers.
#pragma once
#include <immintrin.h>

#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};

constexpr int64_t kPanelChunks = 16;                   // chunks of 128 columns
constexpr int64_t kPanelGroups = kPanelChunks * 8;     // of 16 columns, the smallest group

// The scales of one block of 8 rows, groups first .. first + count, as [group][row]. f32 scales
// are read where they lie.
class ScalePanel {
  public:
    explicit ScalePanel(const Weight &w) : w_(w) {
        if (is_nested(w)) {
            memcpy(code_, w.scale.code, sizeof(code_));
            bias_ = load_as<float>(w.scale.bias, 0);
        }
    }

    const char *load(int64_t row_block, int64_t first, int64_t count) {
        const int64_t at = (row_block * w_.geometry.groups_per_row + first) * 8;
        const char *const data = static_cast<const char *>(w_.scale.data);
        switch (w_.scale.format->id) {
            case QK_FORMAT_F32: return data + at * 4;
            case QK_FORMAT_F16: load_f16(data + at * 2, count); break;
            case QK_FORMAT_BF16: load_bf16(data + at * 2, count); break;
            default: load_nested(data + at, row_block, first, count);
        }
        return reinterpret_cast<const char *>(scales_);
    }

  private:
    void load_f16(const char *from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * 16));
            _mm256_store_ps(scales_[i], _mm256_cvtph_ps(half));
        }
    }

    void load_bf16(const char *from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * 16));
            const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
            _mm256_store_si256(reinterpret_cast<__m256i *>(scales_[i]), wide);
        }
    }

    // Second scales by the running number of the scale, which differs from row to row.
    void load_nested(const char *from, int64_t row_block, int64_t first, int64_t count) {
        const int64_t per_row = w_.geometry.groups_per_row, size = w_.scale.second_group;
        const int64_t limit = ceil_div(w_.geometry.group_count, size) - 1;
        for (int64_t row = 0; row < 8; ++row) {
            int64_t number = (row_block * 8 + row) * per_row + first;
            for (int64_t i = 0; i < count;) {
                // Padding rows lie past the end: any second scale will do.
                const float second = load_as<float>(w_.scale.second, min64(number / size, limit));
                const int64_t run = min64(count - i, size - number % size);
                for (const int64_t end = i + run; i < end; ++i) {
                    const uint8_t code = uint8_t(from[i * 8 + row]);
                    scales_[i][row] = code_[code] * second + bias_;
                }
                number += run;
            }
        }
    }

    const Weight &w_;
    float bias_ = 0;
    float code_[256];
    alignas(64) float scales_[kPanelGroups][8];
};

// The 16 entries of a format whose entries are the same for every group.
class TableCodes {
  public:
    explicit TableCodes(const Weight &w) {
        float table[16];
        for (int code = 0; code < 16; ++code) {
            table[code] = w.format->kind == FormatKind::kTable ? w.format->value(code)
                                                               : float(code - 8);
        }
        entries_ = _mm512_loadu_ps(table);
    }
    __m512 entries(const uint8_t *, int) const { return entries_; }

  private:
    __m512 entries_;
};

// code - zero, for the 16 zeros.
class AffineCodes {
  public:
    explicit AffineCodes(const Weight &) {
        for (int zero = 0; zero < 16; ++zero) {
            for (int code = 0; code < 16; ++code) table_[zero][code] = float(code - zero);
        }
    }
    // `zeros`: a nibble a row.
    __m512 entries(const uint8_t *zeros, int row) const {
        return _mm512_load_ps(table_[zeros[row >> 1] >> (row & 1) * 4 & 15]);
    }

  private:
    alignas(64) float table_[16][16];
};

}  // namespace
}  // namespace qk::cpu

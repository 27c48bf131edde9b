// int8 mode over rows of nibbles as they are stored, AVX-512 VNNI and VBMI.
#pragma once
#include "cpu/int8/stored.hpp"
#include "cpu/x86_avx512/int8_dots.hpp"
#include "cpu/x86_avx512/scales_in_rows.hpp"

namespace qk::cpu {
namespace {

// Scales of 8 rows that are there, read where they are used; or those of a panel.
template <int kBlocks>
class Int8ScalesOfRows {
  public:
    Int8ScalesOfRows(const Weight &w, const Device &device)
        : Int8ScalesOfRows(w, w.scale, device) {}
    // `plane`: the weight's scales, or its minima.
    Int8ScalesOfRows(const Weight &w, const ScalePlane &plane, const Device &device)
        : n_(w.geometry.n), in_rows_(w, plane, 32), panel_(w, plane, device), codes_(panel_),
          shift_(panel_.second_shift()) {
        if (in_rows_.reads_codes()) {
            if (codes_.there()) stored_ = Kind::kCodes;
            if (shift_ >= 0) stored_ = Kind::kIntegers;
        } else if (in_rows_.reads()) {
            stored_ = Kind::kFloats;
        }
    }

    const char *load(int64_t row_block, int64_t group, int64_t groups) {
        row_ = row_block * 8;
        kind_ = row_ + 8 <= n_ ? stored_ : Kind::kPanel;
        if (kind_ == Kind::kPanel) return panel_.load(row_block, group, groups);
        if (kind_ == Kind::kIntegers) {
            first_ = group >> shift_;
            panel_.load_second(row_block, first_, (group + groups - 1) >> shift_, second_);
        }
        return "";
    }
    int64_t group_bytes() const { return kind_ == Kind::kPanel ? panel_.group_bytes() : 0; }

    QK_INLINE void widen(const char *from, int64_t group, int64_t there,
                         YmmSums::Floats8 (&to)[kBlocks]) const {
        if (kind_ == Kind::kPanel) return panel_.widen(from, group, there, to);
        __m512 pairs[kPairs<kBlocks>];
        if (kind_ == Kind::kFloats) {
            in_rows_.template load_numbers<kBlocks>(row_, group, pairs);
        } else if constexpr (kBlocks >= 4) {
            widen_codes(group, pairs);
        }
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            to[b].v = b % 2 == 0 ? _mm512_castps512_ps256(pairs[b / 2])
                                 : _mm512_extractf32x8_ps(pairs[b / 2], 1);
        }
    }

  private:
    enum class Kind { kPanel, kFloats, kCodes, kIntegers };

    QK_INLINE void widen_codes(int64_t group, __m512 (&to)[kPairs<kBlocks>]) const {
        const __m512i codes = in_rows_.template codes<kBlocks>(row_, group);
        const auto pair = [=](int i) QK_INLINE { return sixteen(codes, i); };
        if (kind_ == Kind::kCodes) return codes_.widen(codes, pair, to);
        widen_integers(pair, _mm512_load_ps(second_[(group >> shift_) - first_]), to);
    }

    const int64_t n_;
    const ScalesInRows in_rows_;
    PanelScales<Avx512Dots, kBlocks> panel_;
    const ScaleCodes codes_;
    const int32_t shift_;  // of i8 codes: log2 of the groups that share a second scale
    Kind stored_ = Kind::kPanel, kind_ = Kind::kPanel;
    int64_t row_ = 0;
    int64_t first_ = 0;  // of second_
    alignas(64) float second_[ScalePanel<Avx512>::kMostSecond][16];
};

// x in the order of rows of nibbles, which are multiplied as they are.
struct Avx512StoredDots : Avx512Dots {
    static constexpr bool kAsStored = true;
    template <int kBlocks>
    using Scales = Int8ScalesOfRows<kBlocks>;
    template <int kBlocks, bool table>
    using ChunkDots = DotsOfChunk<kBlocks, table, true>;

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        const ChunkQuantizer quantizer(x, blocks);
        quantizer.store_scales(unit, to->scale);
        const XBytes bytes = quantizer.integers(to->sum);
        for (int half = 0; half < 2; ++half) {
            const __m512i order =
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const __m512i pairs =
                place(bytes, _mm512_add_epi32(order, _mm512_set1_epi32(16 * half)));
            put(pairs, to->low + 32 * half);
            put(_mm512_srli_epi16(pairs, 8), to->high + 32 * half);
        }
    }

  private:
    // The low byte of each pair.
    static void put(__m512i pairs, int8_t *to) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_cvtepi16_epi8(pairs));
    }
};

}  // namespace
}  // namespace qk::cpu

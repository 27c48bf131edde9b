// The scales of 8 packed rows in int8 mode, in groups of 16 and 32, decoded where they are used
// instead of a panel of f32: as AVX-512 does (group_scales.hpp).
#pragma once
#include <type_traits>

#include "cpu/int8/x.hpp"
#include "cpu/int8/ymm.hpp"
#include "cpu/shared/panel.hpp"
#include "cpu/x86_avx2/byte_numbers.hpp"

namespace qk::cpu {
namespace {

template <class Isa, int kBlocks>
class YmmGroupScales {
  public:
    YmmGroupScales(const Weight &w, const Device &device) : YmmGroupScales(w, w.scale, device) {}
    // `plane`: the weight's scales, or its minima.
    YmmGroupScales(const Weight &w, const ScalePlane &plane, const Device &device)
        : w_(w), plane_(plane), panel_(w, plane, device) {
        if (w.layout->id != kLayoutRows8 || w.geometry.flat) return;
        const qk_format format = plane.format->id;
        if (format == QK_FORMAT_F16) kind_ = Kind::kF16;
        if (format == QK_FORMAT_BF16) kind_ = Kind::kBf16;
        float factor;
        const NestedCode *const code = panel_.code_of_all(&factor);
        if (code == nullptr) return;
        if (code->exponents && factor == 1) kind_ = Kind::kE8m0;
        if (code->e4m3 && Avx2E4m3::multiplies(factor)) {
            kind_ = Kind::kE4m3;
            unit_ = factor * Avx2E4m3::kUnit;
        }
        if (code->divisor != 0 && factor == 1) {
            kind_ = Kind::kQuotients;
            unit_ = code->divisor / Avx2E4m3::kUnit;
        }
    }

    // Those of a block of 8 rows from a group on: where they are stored, or as f32.
    const char *load(int64_t row_block, int64_t group, int64_t groups) {
        if (kind_ == Kind::kPanel) return panel_.load(row_block, group, groups);
        const int64_t at = row_block * w_.geometry.groups_per_row + group;
        return static_cast<const char *>(plane_.data) + at * group_bytes();
    }
    int64_t group_bytes() const {
        return kind_ == Kind::kPanel ? 32 : kind_ <= Kind::kBf16 ? 16 : 8;
    }

    // `there` of the groups are.
    QK_INLINE void widen(const char *from, int64_t, int64_t there,
                         YmmSums::Floats8 (&to)[kBlocks]) const {
        if (there >= kBlocks) return widen(from, to);
        alignas(32) char some[kBlocks * 32] = {};
        memcpy(some, from, size_t(there * group_bytes()));
        widen(some, to);
    }

  private:
    enum class Kind { kPanel, kF16, kBf16, kE8m0, kE4m3, kQuotients };

    QK_INLINE void widen(const char *from, YmmSums::Floats8 (&to)[kBlocks]) const {
        if (kind_ == Kind::kE4m3) return widen_fours<Avx2E4m3>(from, to);
        if (kind_ == Kind::kQuotients) return widen_fours<Avx2Quotients>(from, to);
        if (kind_ == Kind::kE8m0) return widen_fours<Avx2E8m0>(from, to);
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            const auto half = [=]() QK_INLINE {
                return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + 16 * b));
            };
            switch (kind_) {
                case Kind::kF16: to[b].v = _mm256_cvtph_ps(half()); break;
                case Kind::kBf16: to[b].v = Isa::bf16_to_f32(half()); break;
                default: to[b] = YmmSums::load_floats8(from + 32 * b);
            }
        }
    }
    template <class Number>
    QK_INLINE void widen_fours(const char *from, YmmSums::Floats8 (&to)[kBlocks]) const {
        QK_UNROLL
        for (int b = 0; b < kBlocks; b += 4) {
            __m256 numbers[4];
            Number::to_f32(from + 8 * b, unit_, numbers);
            for (int i = 0; i < 4; ++i) to[b + i].v = numbers[i];
        }
    }

    const Weight &w_;
    const ScalePlane &plane_;
    ScalePanel<Isa> panel_;  // of what is not decoded in place
    Kind kind_ = Kind::kPanel;
    float unit_ = 1;  // of E4M3, or what divides
};

template <class Isa, int kBlocks>
using YmmScales = std::conditional_t < (kBlocks >= 4),
      YmmGroupScales<Isa, kBlocks<4 ? 4 : kBlocks>, PanelScales<Isa, kBlocks>>;

}  // namespace
}  // namespace qk::cpu

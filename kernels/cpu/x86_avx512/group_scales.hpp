// The scales of 8 packed rows in groups of 16, 32 or 64, two groups a register, decoded where they
// are used: through memory they would cost 0.2 to 0.5 ns for 64 bytes of codes more.
#pragma once
#include "cpu/shared/panel.hpp"
#include "cpu/x86_avx512/isa.hpp"
#include "cpu/x86_avx512/scale_codes.hpp"

namespace qk::cpu {
namespace {

template <int kGroups>  // a chunk
class GroupScales {
  public:
    GroupScales(const Weight &w, const Device &device) : GroupScales(w, w.scale, device) {}
    // `plane`: the weight's scales, or its minima.
    GroupScales(const Weight &w, const ScalePlane &plane, const Device &device)
        : w_(w), plane_(plane), panel_(w, plane, device) {
        const bool packed = w.layout->id == kLayoutRows8 && !w.geometry.flat;
        if (packed) codes_ = ScaleCodes(panel_);
        if (packed) shift_ = panel_.second_shift();
        in_place_ = packed && (codes_.there() || shift_ >= 0 || !has_coded_scales(plane));
        format_ = in_place_ ? plane.format->id : QK_FORMAT_F32;
        bytes_ = in_place_ ? plane.format->bits / 8 : 4;
    }

    // Those of a block of 8 rows from a group on: where they are stored, or as f32.
    const char *load(int64_t row_block, int64_t group, int64_t groups) {
        const int64_t at = row_block * w_.geometry.groups_per_row + group;
        if (shift_ >= 0 && groups > 0) {
            first_ = group >> shift_;
            panel_.load_second(row_block, first_, (group + groups - 1) >> shift_, second_);
        }
        return in_place_ ? static_cast<const char *>(plane_.data) + at * 8 * bytes_
                         : panel_.load(row_block, group, groups);
    }
    int64_t group_bytes() const { return 8 * bytes_; }

    // Of a whole chunk, whose first group is `group`.
    QK_INLINE void widen(const char *from, int64_t group, __m512 (&to)[kGroups / 2]) const {
        if (shift_ >= 0) {
            const float *const second = second_[(group >> shift_) - first_];
            return widen_integers(pairs_at(from), _mm512_load_ps(second), to);
        }
        if (codes_.there()) return widen_codes(from, to);
        QK_UNROLL
        for (int i = 0; i < kGroups / 2; ++i) to[i] = widen_floats(from + 16 * i * bytes_);
    }
    // Of a chunk of which `there` groups are; past them anything.
    QK_INLINE void widen(const char *from, int64_t group, int64_t there,
                         __m512 (&to)[kGroups / 2]) const {
        there >= kGroups ? widen(from, group, to) : widen_some(from, group, there, to);
    }

    // A chunk's scales as E4M3 that is f16 (ScaleCodes).
    QK_INLINE bool are_halves(const char *from) const {
        return codes_.are_halves(_mm512_maskz_loadu_epi8(kThere, from));
    }
    float factor_of_halves() const { return codes_.factor_of_halves(); }

  private:
    static constexpr __mmask64 kThere = ~__mmask64(0) >> (64 - 8 * kGroups);  // codes of a chunk

    QK_NOINLINE void widen_some(const char *from, int64_t group, int64_t there,
                                __m512 (&to)[kGroups / 2]) const {
        alignas(64) char some[kGroups * 32] = {};
        memcpy(some, from, size_t(there * group_bytes()));
        widen(some, group, to);
    }
    QK_INLINE static auto pairs_at(const char *from) {
        return [=](int i) QK_INLINE {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from) + i);
        };
    }
    // Two groups of 8 rows.
    QK_INLINE __m512 widen_floats(const char *from) const {
        const auto halves = [=] {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        };
        switch (format_) {
            case QK_FORMAT_F16: return _mm512_cvtph_ps(halves());
            case QK_FORMAT_BF16:
                return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves()), 16));
            default: return _mm512_loadu_ps(from);
        }
    }
    QK_INLINE void widen_codes(const char *from, __m512 (&to)[kGroups / 2]) const {
        codes_.widen(_mm512_maskz_loadu_epi8(kThere, from), pairs_at(from), to);
    }

    const Weight &w_;
    const ScalePlane &plane_;
    ScalePanel<Avx512> panel_;  // those with second scales
    int32_t shift_ = -1;        // of i8 codes: log2 of the groups that share a second scale
    int64_t first_ = 0;         // of second_
    alignas(64) float second_[ScalePanel<Avx512>::kMostSecond][16];
    ScaleCodes codes_;  // of scales decoded in place
    bool in_place_;
    qk_format format_;
    int64_t bytes_;  // of a scale
};

}  // namespace
}  // namespace qk::cpu

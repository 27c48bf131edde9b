// Scales that are codes of a byte, two groups of 8 rows a vector.
#pragma once
#include "cpu/shared/e4m3.hpp"
#include "cpu/shared/panel.hpp"
#include "cpu/x86_avx512/isa.hpp"
#include "cpu/x86_avx512/look_up_planes.hpp"

namespace qk::cpu {
namespace {

// i8 codes, pair(i) two groups of 8 rows, times second scales that all of these groups share, as
// these are of 8 groups or more.
template <int kPairs, class Pair>
QK_INLINE inline void widen_integers(const Pair &pair, __m512 second, __m512 (&to)[kPairs]) {
    QK_UNROLL
    for (int i = 0; i < kPairs; ++i) {
        to[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(pair(i))), second);
    }
}

// Those that share one factor.
class ScaleCodes {
  public:
    ScaleCodes() = default;
    // Of a ScalePanel's weight, if its scales are such codes.
    template <class Panel>
    explicit ScaleCodes(const Panel &panel) {
        code_ = panel.code_of_all(&factor_);
        e4m3_ = code_ != nullptr && code_->e4m3 && E4m3::multiplies(factor_);
    }
    bool there() const { return code_ != nullptr; }

    // Whether these are E4M3's with neither a sign nor a NaN, as checkpoints have them. Shifted up
    // by 7 each is an f16, 256 times smaller: times factor_of_halves() it is the scale.
    QK_INLINE bool are_halves(__m512i codes) const {
        return e4m3_ && _mm512_cmpge_epu8_mask(codes, _mm512_set1_epi8(0x7f)) == 0;
    }
    float factor_of_halves() const { return factor_ * E4m3::kUnit; }

    // `all` of them; pair(i): two groups of 8 rows.
    template <int kPairs, class Pair>
    QK_INLINE void widen(__m512i all, const Pair &pair, __m512 (&to)[kPairs]) const {
        if (are_halves(all)) {
            for (int i = 0; i < kPairs; ++i) {
                const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(pair(i)), 7);
                to[i] = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(factor_of_halves()));
            }
            return;
        }
        if (code_->exponents) {
            for (int i = 0; i < kPairs; ++i) {
                to[i] = _mm512_castsi512_ps(exponents_to_bits(pair(i)));
            }
        } else {
            Plane planes[4];
            for (int p = 0; p < 4; ++p) planes[p] = load_plane(code_->plane[p]);
            look_up_64(planes, all, [&](__m512i bits, int quarter) {
                if (quarter < kPairs) to[quarter] = _mm512_castsi512_ps(bits);
            });
        }
        if (factor_ == 1) return;
        for (__m512 &scale : to) scale = _mm512_mul_ps(scale, _mm512_set1_ps(factor_));
    }

  private:
    const NestedCode *code_ = nullptr;  // in the panel
    float factor_ = 1;
    bool e4m3_ = false;  // that code, and 256 times its factor is a number
};

}  // namespace
}  // namespace qk::cpu

// Integer dot products of 8 rows of signed bytes, NEON; by SDOT where the file is built for it.
#pragma once
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/int8/rows.hpp"

namespace qk::cpu {
namespace {

struct NeonRowsOfBytes : NeonInt8 {
    using XChunk = ChunkInOrder;
    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        quantize_in_order(x, blocks, unit, to);
    }

    // 128 columns of 8 rows that are `stride` bytes apart.
    template <int kBlocks>
    QK_INLINE static void dot_rows(const uint8_t *codes, int64_t stride, const XChunk &x,
                                   Sums8 (&to)[kBlocks]) {
        constexpr int kSize = 128 / kBlocks;
        for (int b = 0; b < kBlocks; ++b) {
            int32x4_t d[8];
            for (int row = 0; row < 8; ++row) {
                const uint8_t *const w = codes + row * stride + b * kSize;
                const int8_t *const q = x.q + b * kSize;
                FourDots dots;
                if (kSize == 16) dots.add(entries(w), vld1q_s8(q));
                for (int i = 0; i + 32 <= kSize; i += 32) {
                    dots.add(entries(w + i), vld1q_s8(q + i), entries(w + i + 16),
                             vld1q_s8(q + i + 16));
                }
                d[row] = dots.get();
            }
            to[b] = {{fold_1(d), fold_1(d + 4)}};
        }
    }

  private:
    static int8x16_t entries(const uint8_t *from) { return vreinterpretq_s8_u8(vld1q_u8(from)); }
};

}  // namespace
}  // namespace qk::cpu

// Integer dot products of 8 rows of nibbles as they are stored, AVX2: x takes their order, and
// codes are multiplied where they are.
#pragma once
#include <string.h>

#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

// Rows of nibbles as they are stored: byte i has columns 2 i and 2 i + 1.
struct Avx2StoredDots : Avx2Dots {
    static constexpr bool kAsStored = true;
    template <int kBlocks>
    using Scales = PanelScales<Avx2StoredDots, kBlocks>;
    template <int kBlocks, bool table>
    using ChunkDots = DotsOfChunk<kBlocks, table, true>;

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        alignas(32) int8_t q[128];
        quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t size) {
            to->scale[b] = s.scale;
            to->sum[b] = s.sum;
            to->below[b] = rest_of(q + b * size, size);
        });
        for (int64_t i = 0; i < 64; ++i) {
            to->low[i] = q[2 * i];
            to->high[i] = q[2 * i + 1];
        }
        if (blocks != 2 && blocks != 4) return;
        put_in_turn(to->low);
        put_in_turn(to->high);
    }

  private:
    static void put_in_turn(int8_t *at) {
        const Bytes in_turn = group_stored<2>({load_256(at), load_256(at + 32)});
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), in_turn.half[0]);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at + 32), in_turn.half[1]);
    }
};
// The same where the high nibble comes first.
struct Avx2StoredHighDots : Avx2StoredDots {
    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        Avx2StoredDots::quantize_chunk(x, blocks, unit, to);
        int8_t low[64];  // not std::swap, which is a symbol that others could be lent
        memcpy(low, to->low, 64);
        memcpy(to->low, to->high, 64);
        memcpy(to->high, low, 64);
    }
};

}  // namespace
}  // namespace qk::cpu

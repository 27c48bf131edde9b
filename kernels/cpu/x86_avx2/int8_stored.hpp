// Integer dot products of 8 rows of nibbles as they are stored, 256 bits: AVX2 and AVX-VNNI.
#pragma once
#include "cpu/int8/stored.hpp"
#include "cpu/x86_avx2/int8_dots.hpp"

namespace qk::cpu {
namespace {

// `Dots`: of packed chunks.
template <class Dots>
struct YmmStoredDots : Dots {
    using typename Dots::XChunk;
    static constexpr bool kAsStored = true;
    template <int kBlocks>
    using Scales = PanelScales<Dots, kBlocks>;
    template <int kBlocks, bool table>
    using ChunkDots = typename Dots::template DotsOfChunk<kBlocks, table, true>;

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        alignas(32) int8_t q[128];
        quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t size) {
            to->scale[b] = s.scale;
            to->sum[b] = s.sum;
            Dots::set_rest(q + b * size, size, b, to);
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
        const auto in_turn =
            Dots::template group_stored<2>({Dots::load_256(at), Dots::load_256(at + 32)});
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), in_turn.half[0]);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at + 32), in_turn.half[1]);
    }
};

}  // namespace
}  // namespace qk::cpu

// The GRU on AVX-512 with VNNI (sums of four products) and VBMI (tables of 256 bytes).
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx512/gru_lanes.hpp"

namespace qk::cpu {
namespace {

constexpr uint32_t kGruFeatures = kAvx512 | kAvx512Vnni | kAvx512Vbmi;
constexpr int kGruTile = 8;  // 24 sums, 3 weights and a code fit the registers

// One block of 48 weight rows times `rows` rows of codes. The fewer rows, the more columns at a
// time: twelve sums in flight hide the unit's latency. Every loop over sums is unrolled: what is
// indexed at run time does not stay in registers.
template <int rows, bool words>
QK_GRU_INLINE inline void dot_groups(const int8_t *weights, int64_t groups,
                                     const uint8_t *const *codes, int32_t (*sums)[3][kGruUnits]) {
    constexpr int together = rows >= 4 ? 1 : 4 / rows;
    __m512i acc[together * rows * 3];
#pragma GCC unroll 24
    for (__m512i &sum : acc) sum = _mm512_setzero_si512();
    const auto add_group = [&](int64_t group, __m512i *to) QK_GRU_INLINE {
        const int8_t *const at = weights + group * (3 * kGruUnits * 4);
        const __m512i w[3] = {_mm512_load_si512(at), _mm512_load_si512(at + 64),
                              _mm512_load_si512(at + 128)};
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) {
            int32_t four;
            memcpy(&four, codes[row] + 4 * group, 4);
            const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 3
            for (int gate = 0; gate < 3; ++gate)
                to[row * 3 + gate] = words ? _mm512_dpwssd_epi32(to[row * 3 + gate], x, w[gate])
                                           : _mm512_dpbusd_epi32(to[row * 3 + gate], x, w[gate]);
        }
    };
    int64_t group = 0;
    for (; group + together <= groups; group += together) {
#pragma GCC unroll 4
        for (int i = 0; i < together; ++i) add_group(group + i, acc + i * rows * 3);
    }
    for (; group < groups; ++group) add_group(group, acc);
#pragma GCC unroll 24
    for (int row = 0; row < rows * 3; ++row) {
        __m512i sum = acc[row];
#pragma GCC unroll 4
        for (int i = 1; i < together; ++i) sum = _mm512_add_epi32(sum, acc[i * rows * 3 + row]);
        _mm512_store_si512(&sums[0][0][0] + row * kGruUnits, sum);
    }
}

template <int rows>
__attribute__((noinline)) void dot(const int8_t *weights, int64_t groups,
                                   const uint8_t *const *codes, int32_t (*sums)[3][kGruUnits]) {
    dot_groups<rows, false>(weights, groups, codes, sums);
}
// Two columns of 16 bits a group instead of four of 8.
template <int rows>
__attribute__((noinline)) void dot_words(const int8_t *weights, int64_t groups,
                                         const uint8_t *const *codes,
                                         int32_t (*sums)[3][kGruUnits]) {
    dot_groups<rows, true>(weights, groups, codes, sums);
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/gru_run.hpp"

namespace qk::cpu {

const Kernel<GruArgs> kGruAvx512Vnni = {"avx512 vnni", can_run_gru, nullptr, run_gru};

}  // namespace qk::cpu

// The GRU on AVX2: pairs of 16-bit products (vpmaddwd), exact for 8-bit weights and any code.
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/x86_avx2/gru_lanes.hpp"

namespace qk::cpu {
namespace {

constexpr uint32_t kGruFeatures = kAvx2;
constexpr int kGruTile = 2;

// Four rows by four columns: a dword holds two columns of a row.
QK_GRU_INLINE inline __m256i add_rows(__m256i sum, __m256i weights, __m256i codes) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(weights, codes));
}
QK_GRU_INLINE inline __m256i widen(const int8_t *weights) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i *>(weights)));
}
QK_GRU_INLINE inline __m256i four_codes(const uint8_t *codes, int64_t group) {
    int64_t four;
    memcpy(&four, codes + 8 * group, 8);
    return _mm256_set1_epi64x(four);
}
inline void store_sums(const __m256i (&sum)[4], int32_t *to) {
    for (int q = 0; q < 2; ++q) {
        const __m256i pairs = _mm256_hadd_epi32(sum[2 * q], sum[2 * q + 1]);
        store_256(to + 8 * q, _mm256_permute4x64_epi64(pairs, 0xd8));
    }
}

// One block of 48 weight rows times `rows` rows of codes. A single row takes the three gates
// together, in the order of memory; more of them share the widened weights instead.
template <int rows>
__attribute__((noinline)) void dot(const int8_t *weights, int64_t groups,
                                   const uint8_t *const *codes, int32_t (*sums)[3][kGruUnits]) {
    constexpr int together = rows == 1 ? 3 : 1;
    for (int first = 0; first < 3; first += together) {
        __m256i acc[together][rows][4];
        for (auto &gate : acc)
            for (auto &row : gate)
                for (__m256i &sum : row) sum = _mm256_setzero_si256();
        for (int64_t group = 0; group < groups; ++group) {
            __m256i x[rows];
            for (int row = 0; row < rows; ++row) x[row] = four_codes(codes[row], group);
            for (int gate = 0; gate < together; ++gate) {
                const int8_t *const at = weights + (group * 3 + first + gate) * kGruUnits * 4;
#pragma GCC unroll 4
                for (int q = 0; q < 4; ++q) {
                    const __m256i w = widen(at + 16 * q);
                    for (int row = 0; row < rows; ++row)
                        acc[gate][row][q] = add_rows(acc[gate][row][q], w, x[row]);
                }
            }
        }
        for (int gate = 0; gate < together; ++gate)
            for (int row = 0; row < rows; ++row)
                store_sums(acc[gate][row], sums[row][first + gate]);
    }
}

// The same of weights of 16 bits: a dword holds two columns of a row, a register eight rows.
template <int rows>
__attribute__((noinline)) void dot_words(const int8_t *weights, int64_t groups,
                                         const uint8_t *const *codes,
                                         int32_t (*sums)[3][kGruUnits]) {
    __m256i acc[rows][6];
    for (auto &row : acc)
        for (__m256i &sum : row) sum = _mm256_setzero_si256();
    for (int64_t group = 0; group < groups; ++group, weights += 3 * kGruUnits * 4) {
        for (int row = 0; row < rows; ++row) {
            int32_t pair;
            memcpy(&pair, codes[row] + 4 * group, 4);
            const __m256i x = _mm256_set1_epi32(pair);
#pragma GCC unroll 6
            for (int part = 0; part < 6; ++part)
                acc[row][part] = add_rows(acc[row][part], load_256(weights + 32 * part), x);
        }
    }
    for (int row = 0; row < rows; ++row)
        for (int part = 0; part < 6; ++part) store_256(&sums[row][0][0] + 8 * part, acc[row][part]);
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/gru_run.hpp"

namespace qk::cpu {

const Kernel<GruArgs> kGruAvx2 = {"avx2", can_run_gru, nullptr, run_gru};

}  // namespace qk::cpu

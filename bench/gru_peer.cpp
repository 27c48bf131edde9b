#include "gru_peer.hpp"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

constexpr float kScale = 127;  // of activations

// 16 rows times codes + 128; AVX-512 VNNI where the machine has it.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void dot_vnni(const signed char *weights,
                                                                     int groups,
                                                                     const unsigned char *codes,
                                                                     int32_t *to) {
    __m512i sum[4] = {};
    for (int group = 0; group < groups; group += 4) {
        for (int i = 0; i < 4; ++i) {
            int32_t four;
            memcpy(&four, codes + 4 * (group + i), 4);
            sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_set1_epi32(four),
                                         _mm512_loadu_si512(weights + 64 * (group + i)));
        }
    }
    sum[0] = _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
    _mm512_storeu_si512(to, sum[0]);
}

__attribute__((target("avx2"))) void dot_avx2(const signed char *weights, int groups,
                                              const unsigned char *codes, int32_t *to) {
    __m256i sum[4][2] = {};
    const __m256i ones = _mm256_set1_epi16(1);
    for (int group = 0; group < groups; group += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            int32_t four;
            memcpy(&four, codes + 4 * (group + i), 4);
            const __m256i x = _mm256_set1_epi32(four);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m256i w = _mm256_loadu_si256(
                    reinterpret_cast<const __m256i *>(weights + 64 * (group + i) + 32 * half));
                const __m256i pairs = _mm256_maddubs_epi16(x, w);
                sum[i][half] = _mm256_add_epi32(sum[i][half], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + 8 * half),
                            _mm256_add_epi32(_mm256_add_epi32(sum[0][half], sum[1][half]),
                                             _mm256_add_epi32(sum[2][half], sum[3][half])));
}

void dot_plain(const signed char *weights, int groups, const unsigned char *codes, int32_t *to) {
    memset(to, 0, 64);
    for (int group = 0; group < groups; ++group)
        for (int row = 0; row < 16; ++row)
            for (int i = 0; i < 4; ++i)
                to[row] += weights[64 * group + 4 * row + i] * codes[4 * group + i];
}

// tanh by a rational function, within 1e-3: (x^4 + 105 x^2 + 945) x / (15 x^4 + 420 x^2 + 945),
// the continued fraction cut at its fifth term. Loops over it become vectors.
inline float tanh_near(float x) {
    x = x < -3.8f ? -3.8f : x > 3.8f ? 3.8f : x;
    const float s = x * x;
    return x * (945 + s * (105 + s)) / (945 + s * (420 + s * 15));
}
inline float sigmoid_near(float x) { return 0.5f + 0.5f * tanh_near(0.5f * x); }

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))) void gates(
    int h, const float *from_x, const float *from_h, float *state) {
    for (int j = 0; j < h; ++j) {
        const float r = sigmoid_near(from_x[j] + from_h[j]);
        const float z = sigmoid_near(from_x[h + j] + from_h[h + j]);
        const float n = tanh_near(from_x[2 * h + j] + r * from_h[2 * h + j]);
        state[j] = z * state[j] + (1 - z) * n;
    }
}
void gates_plain(int h, const float *from_x, const float *from_h, float *state) {
    for (int j = 0; j < h; ++j) {
        const float r = sigmoid_near(from_x[j] + from_h[j]);
        const float z = sigmoid_near(from_x[h + j] + from_h[h + j]);
        const float n = tanh_near(from_x[2 * h + j] + r * from_h[2 * h + j]);
        state[j] = z * state[j] + (1 - z) * n;
    }
}

// -1..1 to 1..255, saturating.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))) void quantize(
    int h, const float *input, unsigned char *codes) {
    for (int k = 0; k < h; ++k) {
        const float x = input[k] < -1 ? -1 : input[k] > 1 ? 1 : input[k];
        codes[k] = static_cast<unsigned char>(int(x * kScale + 128.5f));
    }
}
void quantize_plain(int h, const float *input, unsigned char *codes) {
    for (int k = 0; k < h; ++k) {
        const float x = input[k] < -1 ? -1 : input[k] > 1 ? 1 : input[k];
        codes[k] = static_cast<unsigned char>(int(x * kScale + 128.5f));
    }
}

bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_vnni() {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

PeerGru::PeerGru(int h, bool is_narrow, const float *w, const float *r, const float *bw,
                 const float *br)
    : h_(h), is_narrow_(is_narrow), input_(make(h, w, bw)), recurrent_(make(h, r, br)),
      state_(size_t(h)), from_x_(size_t(3 * h)), from_h_(size_t(3 * h)), codes_(size_t(h)) {}

// h is a multiple of 16.
PeerGru::Part PeerGru::make(int h, const float *weights, const float *bias) {
    Part part;
    part.weights.resize(size_t(3) * size_t(h) * size_t(h));
    for (int row = 0; row < 3 * h; ++row) {
        float most = 1e-9f;
        for (int k = 0; k < h; ++k) most = std::max(most, fabsf(weights[row * h + k]));
        int sum = 0;
        for (int k = 0; k < h; ++k) {
            const int code = int(lrintf(weights[row * h + k] * 127 / most));
            sum += code;
            part.weights[size_t(row / 16 * h + k / 4 * 4) * 16 + size_t(row % 16 * 4 + k % 4)] =
                static_cast<signed char>(code);
        }
        part.scale.push_back(most / 127 / kScale);
        part.offset.push_back(bias[row] - float(128 * sum) * part.scale.back());
    }
    return part;
}

void PeerGru::multiply(const Part &part, const float *input, float *to) {
    static const bool vnni = has_vnni(), avx2 = has_avx2();
    (vnni ? quantize : quantize_plain)(h_, input, codes_.data());
    const auto dot = vnni && !is_narrow_ ? dot_vnni : avx2 ? dot_avx2 : dot_plain;
    for (int row = 0; row < 3 * h_; row += 16) {
        int32_t sums[16];
        dot(part.weights.data() + size_t(row) * size_t(h_), h_ / 4, codes_.data(), sums);
        for (int i = 0; i < 16; ++i)
            to[row + i] =
                float(sums[i]) * part.scale[size_t(row + i)] + part.offset[size_t(row + i)];
    }
}

void PeerGru::step(const float *x) {
    static const bool vnni = has_vnni();
    multiply(input_, x, from_x_.data());
    multiply(recurrent_, state_.data(), from_h_.data());
    (vnni ? gates : gates_plain)(h_, from_x_.data(), from_h_.data(), state_.data());
}

}  // namespace bench

#include <immintrin.h>

#include "measure.hpp"

namespace bench {

namespace {

const bool has_avx512 = __builtin_cpu_supports("avx512f");

__attribute__((target("avx512f"))) void read_512(const uint8_t *data, size_t bytes) {
    __m512i sum[8] = {};
    for (size_t i = 0; i + 512 <= bytes; i += 512) {
        for (size_t j = 0; j < 8; ++j) {
            _mm_prefetch(reinterpret_cast<const char *>(data + i + 4096 + 64 * j), _MM_HINT_T0);
        }
        for (size_t j = 0; j < 8; ++j) {
            sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(data + i + 64 * j));
        }
    }
    for (size_t j = 1; j < 8; ++j) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
    asm volatile("" : : "v"(sum[0]));
}

__attribute__((target("avx2"))) void read_256(const uint8_t *data, size_t bytes) {
    __m256i sum[8] = {};
    for (size_t i = 0; i + 512 <= bytes; i += 512) {
        for (size_t j = 0; j < 8; ++j) {
            _mm_prefetch(reinterpret_cast<const char *>(data + i + 4096 + 64 * j), _MM_HINT_T0);
        }
        for (size_t j = 0; j < 16; ++j) {
            const __m256i *const at = reinterpret_cast<const __m256i *>(data + i + 32 * j);
            sum[j % 8] = _mm256_xor_si256(sum[j % 8], _mm256_loadu_si256(at));
        }
    }
    for (size_t j = 1; j < 8; ++j) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
    asm volatile("" : : "x"(sum[0]));
}

__attribute__((target("avx2"))) void stream_line(uint8_t *to, __m256i value) {
    _mm256_stream_si256(reinterpret_cast<__m256i *>(to), value);
    _mm256_stream_si256(reinterpret_cast<__m256i *>(to + 32), value);
}

__attribute__((target("avx512f"))) void multiply_and_add_512(int64_t rounds) {
    __m512 sum[24], factor = _mm512_set1_ps(0.5f), other = _mm512_set1_ps(0.25f);
    asm volatile("" : "+v"(factor), "+v"(other));
    _Pragma("GCC unroll 24") for (int j = 0; j < 24; ++j) sum[j] = _mm512_set1_ps(float(j));
    for (int64_t i = 0; i < rounds; ++i) {
        _Pragma("GCC unroll 24") for (int j = 0; j < 24; ++j) {
            sum[j] = _mm512_fmadd_ps(sum[j], factor, other);
        }
    }
    _Pragma("GCC unroll 24") for (int j = 0; j < 24; ++j) asm volatile("" : : "v"(sum[j]));
}

// 12 sums of 8 lanes fit its registers: four times a round.
__attribute__((target("avx2,fma"))) void multiply_and_add_256(int64_t rounds) {
    __m256 sum[12], factor = _mm256_set1_ps(0.5f), other = _mm256_set1_ps(0.25f);
    asm volatile("" : "+x"(factor), "+x"(other));
    _Pragma("GCC unroll 12") for (int j = 0; j < 12; ++j) sum[j] = _mm256_set1_ps(float(j));
    for (int64_t i = 0; i < 4 * rounds; ++i) {
        _Pragma("GCC unroll 12") for (int j = 0; j < 12; ++j) {
            sum[j] = _mm256_fmadd_ps(sum[j], factor, other);
        }
    }
    _Pragma("GCC unroll 12") for (int j = 0; j < 12; ++j) asm volatile("" : : "x"(sum[j]));
}

}  // namespace

void read_stream(const uint8_t *data, size_t bytes) {
    has_avx512 ? read_512(data, bytes) : read_256(data, bytes);
}

__attribute__((target("avx2"))) void write_stream(uint8_t *data, size_t bytes) {
    const __m256i value = _mm256_set1_epi32(7);
    for (size_t i = 0; i + 64 <= bytes; i += 64) stream_line(data + i, value);
    _mm_sfence();
}

// Lines out of fewer lines (dequantize), or fewer lines out of lines (quantize).
__attribute__((target("avx2"))) void move_stream(const uint8_t *from, size_t from_bytes,
                                                 uint8_t *to, size_t to_bytes) {
    if (from_bytes == 0) return write_stream(to, to_bytes);
    const size_t written = to_bytes > from_bytes ? to_bytes / from_bytes : 1;
    const size_t read = from_bytes > to_bytes ? from_bytes / to_bytes : 1;
    const __m256i one = _mm256_set1_epi32(1);
    for (size_t i = 0; i + 64 * read <= from_bytes; i += 64 * read) {
        __m256i value = one;
        for (size_t j = 0; j < 64 * read; j += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(from + i + j + 4096), _MM_HINT_T0);
            const __m256i *const at = reinterpret_cast<const __m256i *>(from + i + j);
            value = _mm256_xor_si256(value, _mm256_loadu_si256(at));
            value = _mm256_xor_si256(value, _mm256_loadu_si256(at + 1));
        }
        for (size_t j = 0; j < written; ++j, to += 64) {
            value = _mm256_add_epi32(value, one);
            stream_line(to, value);
        }
    }
    _mm_sfence();
}

void multiply_and_add(int64_t rounds) {
    has_avx512 ? multiply_and_add_512(rounds) : multiply_and_add_256(rounds);
}

}  // namespace bench

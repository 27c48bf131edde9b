#include <immintrin.h>

#include "measure.hpp"

namespace bench {

__attribute__((target("avx512f"))) void read_stream(const uint8_t *data, size_t bytes) {
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

__attribute__((target("avx512f"))) void write_stream(uint8_t *data, size_t bytes) {
    const __m512i value = _mm512_set1_epi32(7);
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i *>(data + i), value);
    }
    _mm_sfence();
}

// Lines out of fewer lines (dequantize), or fewer lines out of lines (quantize).
__attribute__((target("avx512f"))) void move_stream(const uint8_t *from, size_t from_bytes,
                                                    uint8_t *to, size_t to_bytes) {
    if (from_bytes == 0) return write_stream(to, to_bytes);
    const size_t written = to_bytes > from_bytes ? to_bytes / from_bytes : 1;
    const size_t read = from_bytes > to_bytes ? from_bytes / to_bytes : 1;
    const __m512i one = _mm512_set1_epi32(1);
    for (size_t i = 0; i + 64 * read <= from_bytes; i += 64 * read) {
        __m512i value = one;
        for (size_t j = 0; j < 64 * read; j += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(from + i + j + 4096), _MM_HINT_T0);
            value = _mm512_xor_si512(value, _mm512_loadu_si512(from + i + j));
        }
        for (size_t j = 0; j < written; ++j, to += 64) {
            value = _mm512_add_epi32(value, one);
            _mm512_stream_si512(reinterpret_cast<__m512i *>(to), value);
        }
    }
    _mm_sfence();
}

__attribute__((target("avx512f"))) void multiply_and_add(int64_t rounds) {
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

}  // namespace bench

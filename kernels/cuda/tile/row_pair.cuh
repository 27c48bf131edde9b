// A packed tile as kernels on plain lanes hold it: a lane has 16 bytes, 16 columns of row r and of
// row r + 8, whose scales are stored side by side.
#pragma once
#include <cuda_fp16.h>

#include "cuda/view.cuh"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

// Scales, or minima, of rows `quad` and `quad` + 8 of a tile as they are stored: bits of f32, two
// of 16 bits in one word, or two codes there with their second scales.
struct RawPair {
    uint2 bits;
    float2 second;
};

// The second scale of a row, which may be past the last.
template <bool kAligned>
__device__ inline float second_of_row(const WeightView &w, const uint8_t *seconds,
                                      int32_t second_shift, int64_t row, int64_t group) {
    const int64_t number = min64(row, w.geometry.n - 1) * w.geometry.groups_per_row + group;
    const int64_t at = second_shift < 0 ? number / w.second_group : number >> second_shift;
    return kAligned ? reinterpret_cast<const float *>(seconds)[at] : load_as<float>(seconds, at);
}

// kAligned: whether second scales are.
template <bool kAligned>
__device__ inline RawPair load_pair(const WeightView &w, const uint8_t *plane,
                                    const uint8_t *seconds, int32_t second_shift, int64_t row_tile,
                                    int quad, int64_t group) {
    const int64_t at = (row_tile * w.geometry.groups_per_row + group) * 8 + quad;
    switch (w.scale_format) {
        case QK_FORMAT_F32: return {reinterpret_cast<const uint2 *>(plane)[at], {0, 0}};
        case QK_FORMAT_F16:
        case QK_FORMAT_BF16: return {{reinterpret_cast<const uint32_t *>(plane)[at], 0}, {0, 0}};
        default: {
            const int64_t row = row_tile * 16 + quad;
            return {{reinterpret_cast<const uint16_t *>(plane)[at], 0},
                    {second_of_row<kAligned>(w, seconds, second_shift, row, group),
                     second_of_row<kAligned>(w, seconds, second_shift, row + 8, group)}};
        }
    }
}

__device__ inline float coded_scale_of(const WeightView &w, float code, float second, float bias) {
    return w.divides ? __fadd_rn(__fdiv_rn(code, second), bias) : nested_scale(code, second, bias);
}

// Their values; code_value(code): a coded scale's before its second scale.
template <class CodeValue>
__device__ inline float2 pair_value(const WeightView &w, const RawPair &raw, float bias,
                                    const CodeValue &code_value) {
    const uint32_t both = raw.bits.x;
    switch (w.scale_format) {
        case QK_FORMAT_F32: return {__uint_as_float(both), __uint_as_float(raw.bits.y)};
        case QK_FORMAT_F16:
            return {__half2float(__ushort_as_half(uint16_t(both))),
                    __half2float(__ushort_as_half(uint16_t(both >> 16)))};
        case QK_FORMAT_BF16:
            return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
        default:
            return {coded_scale_of(w, code_value(both & 255), raw.second.x, bias),
                    coded_scale_of(w, code_value(both >> 8), raw.second.y, bias)};
    }
}

// Code number `column` of row r (`high` 0) or r + 8 (1) in words of a tile, 4 columns each.
template <bool pairs>
__device__ inline uint32_t word_code(uint32_t word, int high, int column) {
    const int quarter = (column & 2) + high, odd = column & 1;
    const int nibble = pairs ? quarter * 2 + odd : quarter + odd * 4;
    return word >> 4 * nibble & 15;
}

// The 16 codes of a row in a lane's words, in the order of columns.
template <bool pairs>
__device__ inline uint32_t tile_code(const uint4 &words, int high, int column) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    return word_code<pairs>(word[column / 4], high, column);
}

}  // namespace
#endif

}  // namespace qk::cuda

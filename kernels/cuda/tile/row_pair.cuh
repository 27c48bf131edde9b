// A packed tile as kernels on plain lanes hold it: a lane has 16 bytes, 16 columns of row r and of
// row r + 8, whose scales are stored side by side.
#pragma once
#include <cuda_fp16.h>

#include "cuda/view.cuh"

namespace qk::cuda {

// log2 of second_group, or -1 where it is no power of two.
inline int32_t second_shift_of(const ScalePlane &scale) {
    return power_of_two(scale.second_group) ? log2_of(scale.second_group) : -1;
}

#if defined(__CUDACC__)
namespace {

// A coded scale of a row, which may be past the last.
__device__ inline float coded_row_scale(const WeightView &w, uint8_t code, const uint8_t *seconds,
                                        int32_t second_shift, int64_t row, int64_t group) {
    const int64_t number = min64(row, w.geometry.n - 1) * w.geometry.groups_per_row + group;
    const int64_t at = second_shift < 0 ? number / w.second_group : number >> second_shift;
    const float value = load_as<float>(w.code, code), second = load_as<float>(seconds, at);
    const float bias = load_as<float>(w.bias, 0);
    return w.divides ? __fadd_rn(__fdiv_rn(value, second), bias)
                     : nested_scale(value, second, bias);
}

// Scales, or minima, of rows `quad` and `quad` + 8 of a tile, decoded.
__device__ inline float2 row_pair(const WeightView &w, const uint8_t *plane, const uint8_t *seconds,
                                  int32_t second_shift, int64_t row_tile, int quad, int64_t group) {
    const int64_t at = (row_tile * w.geometry.groups_per_row + group) * 16 + quad * 2;
    switch (w.scale_format) {
        case QK_FORMAT_F32: return reinterpret_cast<const float2 *>(plane)[at / 2];
        case QK_FORMAT_F16: {
            const uint32_t both = reinterpret_cast<const uint32_t *>(plane)[at / 2];
            return {__half2float(__ushort_as_half(uint16_t(both))),
                    __half2float(__ushort_as_half(uint16_t(both >> 16)))};
        }
        case QK_FORMAT_BF16: {
            const uint32_t both = reinterpret_cast<const uint32_t *>(plane)[at / 2];
            return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
        }
        default: {
            const int64_t row = row_tile * 16 + quad;
            return {coded_row_scale(w, plane[at], seconds, second_shift, row, group),
                    coded_row_scale(w, plane[at + 1], seconds, second_shift, row + 8, group)};
        }
    }
}

// The 16 codes of row r (`high` 0) or r + 8 (1) in a lane's words, in the order of columns.
template <bool pairs>
__device__ inline uint32_t tile_code(const uint4 &words, int high, int column) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    const int quarter = (column & 2) + high, odd = column & 1;
    const int nibble = pairs ? quarter * 2 + odd : quarter + odd * 4;
    return word[column / 4] >> 4 * nibble & 15;
}

}  // namespace
#endif

}  // namespace qk::cuda

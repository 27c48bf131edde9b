// What the kernels of this folder share: the problem, the walk over a row's groups, and how the
// sums of a block's warps become y. Warps of a block share k; their sums meet in shared memory and
// are added in warp order, so y depends on n, k and the groups alone, not on the batch.
#pragma once
#include <type_traits>

#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// x in f32: three bf16 parts that add up to it exactly, in columns of the product of their own.
template <class T>
struct XOperand {
    using Operand = T;
    static constexpr int kRows = 8;  // of x in the 8 columns of a product
    static constexpr int kBytes = 2;
};
template <>
struct XOperand<F32> {
    using Operand = BF16;
    static constexpr int kRows = 2;
    static constexpr int kBytes = 4;
};

// The part of x that column `piece` of a product multiplies: truncations to bf16, so that every
// difference is exact. An infinity is all in the first.
__device__ inline float part_of(float x, int piece) {
    for (int i = 0; i < piece; ++i) {
        const float top = __uint_as_float(__float_as_uint(x) & 0xffff0000u);
        x = x == top ? 0.0f : __fadd_rn(x, -top);
    }
    return piece < 3 ? x : 0.0f;
}

// Rows of x as columns of products; lanes without a row multiply zeros.
template <class T, int kBatches>
struct XRows {
    const uint8_t *row[kBatches];
    bool inside[kBatches];

    __device__ XRows(const void *x, int64_t m, int64_t k, int64_t first) {
        const int column = int(threadIdx.x) % 32 / 4;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const int64_t at = first + b * XOperand<T>::kRows + column * XOperand<T>::kRows / 8;
            inside[b] = at < m && !(std::is_same_v<T, F32> && column % 4 == 3);
            row[b] = static_cast<const uint8_t *>(x) + min64(at, m - 1) * k * XOperand<T>::kBytes;
            keep(row[b]);
        }
    }

    // Columns at .. at + 7, neighbours paired; zeros unless `there`.
    __device__ uint4 load(int batch, int32_t at, bool there) const {
        uint4 v = {0, 0, 0, 0};
        if (!there || !inside[batch]) return v;
        const uint4 *const from =
            reinterpret_cast<const uint4 *>(row[batch] + int64_t(at) * XOperand<T>::kBytes);
        if constexpr (!std::is_same_v<T, F32>) return __ldg(from);
        const int piece = int(threadIdx.x) % 32 / 4 % 4;
        const uint4 low = __ldg(from), high = __ldg(from + 1);
        v.x = top_halves(low.x, low.y, piece);
        v.y = top_halves(low.z, low.w, piece);
        v.z = top_halves(high.x, high.y, piece);
        v.w = top_halves(high.z, high.w, piece);
        return v;
    }
    static __device__ uint32_t top_halves(uint32_t a, uint32_t b, int piece) {
        const uint32_t low = __float_as_uint(part_of(__uint_as_float(a), piece));
        const uint32_t high = __float_as_uint(part_of(__uint_as_float(b), piece));
        return byte_permute(low, high, 0x7632u);
    }
};

// Warps of a block: many where few blocks must fill the GPU; few where blocks are many, so that
// three (two, for 16 rows of x) share a multiprocessor and start and end at different times.
constexpr int kManyWarps = 16, kFewWarps = 8;
constexpr int min_blocks(int warps, int batches) {
    return warps == kManyWarps ? 1 : batches == 1 ? 3 : 2;
}
constexpr int kPart = 32;  // columns that always share a group

// Places of scales and zeros are linear: row * .._row + group * .._step (but for WORD's zeros).
struct Problem : LinearView {
    int32_t steps;        // that k is cut by
    int32_t group_parts;  // parts a group
    uint32_t scale_row, scale_step, zero_row, zero_step;
    int32_t scale_bytes;
    int32_t second_shift;  // nested: log2 of second_group
};

// Rows of units are dealt to the blocks in turn, so that neighbouring blocks read neighbouring
// memory: in GPTQ each row of words of a unit is only 128 bytes, far from the next.
__device__ inline int32_t unit_row(int32_t of_block) {
    return int32_t(blockIdx.x) + of_block * int32_t(gridDim.x);
}

// The place of a zero; in ROW_HIGH that of its neighbour, as these are swapped.
__device__ inline uint32_t zero_place(const Problem &p, uint32_t row, uint32_t group) {
    if (p.w.layout != QK_LAYOUT_WORD) return row * p.zero_row + group * p.zero_step;
    return (row >> 3) * uint32_t(p.w.geometry.groups_per_row) * 8 + (row & 7) + group * 8;
}

// 8 columns of x as U4 pairs codes: i and i + 4. `even` and `odd` select halves: those of
// kEvenColumns and kOddColumns, the other way round where neighbours are swapped.
constexpr uint32_t kEvenColumns = 0x5410u, kOddColumns = 0x7632u;
__device__ inline uint4 paired(uint4 v, uint32_t even, uint32_t odd) {
    return {byte_permute(v.x, v.z, even), byte_permute(v.x, v.z, odd), byte_permute(v.y, v.w, even),
            byte_permute(v.y, v.w, odd)};
}

// The group that a warp is in, for kRows rows a lane, `stride` apart. Zeros are there a group
// ahead: the first product of a group needs them, scales only its end. Places fit 32 bits.
template <int kRows>
struct Groups {
    const Problem &p;
    const float *codes;  // nested: what scale codes stand for
    float bias;          // nested
    uint32_t first_row, stride;
    int32_t group, left;  // parts left in it
    // As they are stored, the zeros as bytes of the next group: whatever is done with a load at
    // once would wait for it.
    uint32_t scale[kRows], zero[kRows];

    __device__ Groups(const Problem &problem, const float *scale_codes, int32_t first_part,
                      int64_t row, int row_stride)
        : p(problem), codes(scale_codes),
          bias(p.w.scale_format == QK_FORMAT_LUT8 ? __ldg(reinterpret_cast<const float *>(p.w.bias))
                                                  : 0.0f),
          first_row(uint32_t(row)), stride(uint32_t(row_stride)) {
        group = int32_t(uint32_t(first_part) / uint32_t(p.group_parts));
        left = (group + 1) * p.group_parts - first_part;
        load_scales();
    }

    __device__ uint32_t row(int i) const {
        const uint32_t at = first_row + uint32_t(i) * stride, n = uint32_t(p.w.geometry.n);
        return at < n ? at : n - 1;
    }
    __device__ uint32_t place_of_zero(uint32_t of_row, uint32_t of_group) const {
        return zero_place(p, of_row, of_group) ^ uint32_t(p.w.layout == QK_LAYOUT_ROW_HIGH);
    }
    __device__ void load_zeros(int32_t of_group) {
        if (of_group >= p.w.geometry.groups_per_row) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            zero[i] = uint32_t(8 - p.w.zero_offset) * 0x11;
            if (p.w.zero == nullptr) continue;
            zero[i] = __ldg(p.w.zero + (place_of_zero(row(i), uint32_t(of_group)) >> 1));
        }
    }
    // Of the group that load_zeros was called with.
    __device__ uint32_t zero_of_row(int i, int32_t of_group) const {
        const uint32_t shift = (place_of_zero(row(i), uint32_t(of_group)) & 1) * 4;
        return ((zero[i] >> shift) + uint32_t(p.w.zero_offset)) & 15;
    }
    __device__ void load_scales() {
        uint32_t at[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            at[i] = row(i) * p.scale_row + uint32_t(group) * p.scale_step;
        }
        if (p.scale_bytes == 4) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                scale[i] = __ldg(reinterpret_cast<const uint32_t *>(p.w.scale) + at[i]);
            }
        } else if (p.scale_bytes == 2) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                scale[i] = __ldg(reinterpret_cast<const uint16_t *>(p.w.scale) + at[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i) scale[i] = __ldg(p.w.scale + at[i]);
        }
    }
    __device__ float second(int i) const {
        const uint32_t number = row(i) * uint32_t(p.w.geometry.groups_per_row) + uint32_t(group);
        return __ldg(reinterpret_cast<const float *>(p.w.second) + (number >> p.second_shift));
    }
    // The scales of the lane's rows.
    __device__ void scales(float (&value)[kRows]) const {
        if (p.w.scale_format == QK_FORMAT_F32) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) value[i] = __uint_as_float(scale[i]);
        } else if (p.w.scale_format == QK_FORMAT_F16) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                value[i] = __half2float(__ushort_as_half(uint16_t(scale[i])));
            }
        } else if (p.w.scale_format == QK_FORMAT_BF16) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) value[i] = __uint_as_float(scale[i] << 16);
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                value[i] = nested_scale(codes[scale[i]], second(i), bias);
            }
        }
    }
    // To the next group, where there is one; its zeros were known before.
    __device__ void advance() {
        left = p.group_parts;
        if (group + 1 >= p.w.geometry.groups_per_row) return;
        ++group;
        load_scales();
    }
};

// sum += part * scale for a pair of rows, and part = 0.
template <int kBatches>
__device__ void fold(float (&sum)[kBatches][4], float (&part)[kBatches][4], float low, float high) {
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum[b][i] = __fmaf_rn(part[b][i], i < 2 ? low : high, sum[b][i]);
            part[b][i] = 0;
        }
    }
}

// The same for all of a lane's rows, at the end of a group.
template <int kRows, int kTiles, int kBatches>
__device__ void fold_group(const Groups<kRows> &groups, float (&sum)[kTiles][kBatches][4],
                           float (&part)[kTiles][kBatches][4]) {
    float scale[kRows];
    groups.scales(scale);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
        fold<kBatches>(sum[tile], part[tile], scale[2 * tile], scale[2 * tile + 1]);
    }
}

// A warp's steps [first, last). load(step): its codes, loaded a step ahead, and so is x where
// kAhead says that there are registers for it.
template <bool kAhead, class Product, class Load>
__device__ void multiply_steps(Product &product, int32_t first, int32_t last, const Load &load) {
    decltype(load(first)) next = {};
    decltype(product.load_columns(first)) next_x = {};
    if (first < last) {
        next = load(first);
        if constexpr (kAhead) next_x = product.load_columns(first);
    }
    for (int32_t step = first; step < last; ++step) {
        const auto now = next;
        auto now_x = next_x;
        if constexpr (!kAhead) now_x = product.load_columns(step);
        if (step + 1 < last) {
            next = load(step + 1);
            if constexpr (kAhead) next_x = product.load_columns(step + 1);
        }
        product.multiply(now, now_x);
    }
    if (first < last && product.groups.left < product.p.group_parts) {
        fold_group(product.groups, product.sum, product.part);
    }
}

__device__ inline void load_scale_codes(const WeightView &w, float *codes) {
    if (w.scale_format != QK_FORMAT_LUT8) return;
    for (int i = int(threadIdx.x); i < 256; i += int(blockDim.x)) {
        codes[i] = load_as<float>(w.code, i);
    }
}

// Rows [first_row, first_row + 16 kTiles) of y's columns, from the sums of all warps of the block:
// row_of(tile, high) is the lane's row, counted from first_row. `room`: kWarps * 128 * kTiles
// floats.
template <class T, int kWarps, int kTiles, int kBatches, class RowOf>
__device__ void store_sums(const Problem &p, float *room, int64_t first_row, int64_t x_first,
                           const float (&sum)[kTiles][kBatches][4], const RowOf &row_of) {
    constexpr int kRows = 16 * kTiles, kColumns = XOperand<T>::kRows;
    const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) / 32;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
        __syncthreads();
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = lane % 4 * 2 + i % 2;
                room[(warp * 8 + column) * kRows + row_of(tile, i / 2)] = sum[tile][b][i];
            }
        }
        __syncthreads();
        for (int at = int(threadIdx.x); at < kColumns * kRows; at += kWarps * 32) {
            const int64_t row = first_row + at % kRows;
            const int64_t x_row = x_first + b * kColumns + at / kRows;
            if (row >= p.w.geometry.n || x_row >= p.m) continue;
            // f32: the three parts of x, the smallest first.
            constexpr int kParts = std::is_same_v<T, F32> ? 3 : 1;
            float y = 0;
#pragma unroll
            for (int part = kParts - 1; part >= 0; --part) {
                const int column = at / kRows * (8 / kColumns) + part;
                float total = 0;
#pragma unroll
                for (int w = 0; w < kWarps; ++w) {
                    total = __fadd_rn(total, room[(w * 8 + column) * kRows + at % kRows]);
                }
                y = __fadd_rn(y, total);
            }
            store_output(p, p.type, row, x_row * p.w.geometry.n + row, y);
        }
    }
}

inline Problem problem_of(const LinearArgs &args, int64_t step_columns) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const int64_t second = w.scale.second_group;
    const bool one_group = s.groups_per_row == 1;
    const GroupIndex first = {0, 0}, down = {s.n > 1, 0}, along = {0, !one_group};
    const int64_t swap = w.layout->id == QK_LAYOUT_ROW_HIGH;  // of neighbours in the zeros
    const auto scale = [&](GroupIndex at) { return uint32_t(w.layout->scale_at(s, at)); };
    const auto zero = [&](GroupIndex at) { return uint32_t(w.layout->zero_at(s, at) ^ swap); };
    return {view_of(args),
            int32_t(ceil_div(s.k, step_columns)),
            one_group ? int32_t{1} << 30 : int32_t(s.group_size / kPart),
            scale(down) - scale(first),
            scale(along) - scale(first),
            zero(down) - zero(first),
            zero(along) - zero(first),
            w.scale.format->bits / 8,
            log2_of(second)};
}

// Whether two blocks a multiprocessor are there, whatever the batch.
inline bool fills_twice(const Problem &p, int64_t block_rows, const Device &device) {
    return ceil_div(p.w.geometry.n, block_rows) >= 2 * device.multiprocessors;
}

// The grid of passes over x.
template <class T>
Shape3 shape_of(const Problem &p, int64_t block_rows, int warps, int batches) {
    return {dim3(uint32_t(ceil_div(p.w.geometry.n, block_rows)),
                 uint32_t(ceil_div(p.m, XOperand<T>::kRows * batches))),
            warps * 32};
}

}  // namespace
}  // namespace qk::cuda

// What a warp of the kernel for one row of x and 8-bit codes (bytes_gemv.cu) knows of a unit: its
// codes, its scales, x for its columns.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/linear/stored/bytes_codes.cuh"
#include "cuda/linear/stored/gemv_plan.hpp"
#include "cuda/linear/stored/words_parts.cuh"

namespace qk::cuda {
namespace {

struct ByteRowProblem : LinearView {
    GemvPlan plan;
    int32_t group_shift;   // log2 of the tiles a group
    int32_t second_shift;  // nested: log2 of second_group
};

// 16 bytes that are read once.
__device__ inline uint4 load_once(const uint8_t *from) {
#if defined(__CUDA_ARCH__)
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#else
    return *reinterpret_cast<const uint4 *>(from);
#endif
}

// A lane's codes of a tile: 16 columns, of two rows.
struct ByteTile {
    uint4 low, high;

    // Past the end of k x is 0, but what is there of w is 0 in no table.
    __device__ void end(uint32_t finite) {
        asm volatile("" : "+r"(finite));  // or all units would select
        low = high = {finite, finite, finite, finite};
    }
};

// Where the codes of a unit are.
struct ByteSource {
    const uint8_t *low, *high;  // the lane's first
    int32_t left = 0;           // columns from there to the end of k

    __device__ void enter(const ByteRowProblem &p, Unit unit, int lane) {
        const int64_t k = p.w.geometry.k, end = p.w.geometry.n - 1;
        const int64_t row = unit_row(unit.row) * int64_t{16} + lane / 4;
        const int32_t column = unit.column * int32_t(kUnitColumns) + lane % 4 * 16;
        low = p.w.data + min64(row, end) * k + column;
        high = p.w.data + min64(row + 8, end) * k + column;
        left = int32_t(k) - column;
    }
    __device__ void load(int tile, ByteTile &to) const {
        if (tile * 64 >= left) return;
        to.low = load_once(low + tile * 64);
        to.high = load_once(high + tile * 64);
    }
};

// Scales of a lane's two rows, of the groups of its tiles 2 pair and 2 pair + 1, as they are
// stored: whatever is done with a load at once would wait for it.
struct ByteScales {
    uint32_t raw[2][2];

    // Where the scale of row j of group i of a lane's is. Where both tiles have one, i is 0.
    static __device__ int64_t place(const ByteRowProblem &p, Unit unit, int lane, int i, int j) {
        const int64_t row = unit_row(unit.row) * int64_t{16} + lane / 4 + j * 8;
        const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
        const uint32_t tile = uint32_t(unit.column * kUnitTiles + lane % 4 * 2 + i);
        return min64(row, p.w.geometry.n - 1) * groups + min(tile >> p.group_shift, groups - 1);
    }
    __device__ void load(const ByteRowProblem &p, Unit unit, int lane) {
        const WeightView &w = p.w;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (i == 1 && p.group_shift > 0) continue;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int64_t at = place(p, unit, lane, i, j);
                if (w.scale_format == QK_FORMAT_F32) {
                    raw[i][j] = __ldg(reinterpret_cast<const uint32_t *>(w.scale) + at);
                } else if (w.scale_format == QK_FORMAT_LUT8) {
                    raw[i][j] = __ldg(w.scale + at);
                } else {
                    raw[i][j] = __ldg(reinterpret_cast<const uint16_t *>(w.scale) + at);
                }
            }
        }
    }
    // codes: what scale codes stand for, and then the bias.
    __device__ void take(const ByteRowProblem &p, Unit unit, int lane, const float *codes,
                         float2 (&to)[2]) const {
        const WeightView &w = p.w;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (i == 1 && p.group_shift > 0) {
                to[1] = to[0];
                continue;
            }
            if (w.scale_format == QK_FORMAT_F32) {
                to[i] = {__uint_as_float(raw[i][0]), __uint_as_float(raw[i][1])};
            } else if (w.scale_format == QK_FORMAT_LUT8) {
                float value[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int64_t second = place(p, unit, lane, i, j) >> p.second_shift;
                    value[j] = nested_scale(
                        codes[raw[i][j]], __ldg(reinterpret_cast<const float *>(w.second) + second),
                        codes[256]);
                }
                to[i] = {value[0], value[1]};
            } else if (w.scale_format == QK_FORMAT_F16) {
                to[i] = scale_pair_of<ScaleKind::kF16>(raw[i][0] | raw[i][1] << 16);
            } else {
                to[i] = scale_pair_of<ScaleKind::kBF16>(raw[i][0] | raw[i][1] << 16);
            }
        }
    }
};

// x of a lane's 16 columns of its tile, as the operands of that tile's products: for two terms of
// an entry each value twice.
template <class Decode>
struct ByteX {
    uint32_t of[8 * Decode::kTerms];

    __device__ void load(const ByteRowProblem &p, int32_t unit, int lane) {
        const int32_t column = unit * int32_t(kUnitColumns) + lane / 4 * 64 + lane % 4 * 16;
        const auto *const from = static_cast<const uint4 *>(p.x) + column / 8;
        const bool there = column < p.w.geometry.k;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            uint4 v = {0, 0, 0, 0};
            if (there) v = __ldg(from + i / 4);
            of[i] = v.x, of[i + 1] = v.y, of[i + 2] = v.z, of[i + 3] = v.w;
        }
    }
    // What is loaded is paired only when it is used.
    __device__ void take() {
        if constexpr (Decode::kTerms > 1) {
#pragma unroll
            for (int i = 7; i >= 0; --i) {
                const uint32_t pair = of[i];
                of[2 * i] = byte_permute(pair, 0, 0x1010u);
                of[2 * i + 1] = byte_permute(pair, 0, 0x3232u);
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda

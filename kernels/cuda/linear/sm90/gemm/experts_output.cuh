// What becomes of the sums of an item (experts.cuh). Where gate and up are halves of an expert,
// half of a block's rows are of either: the sums of both pass through shared memory, 16 rows of x
// at a time, before they become y.
#pragma once
#include "cuda/linear/sm90/gemm/experts_problem.hpp"
#include "cuda/linear/sm90/gemm/large.cuh"

namespace qk::cuda {
namespace {

// Activations in f32: join() of base/activation.hpp, in double, takes half as long as the product,
// whose weights are rounded to 16 bits. |x| above 87 would overflow.
__device__ inline float sigmoid_f32(float x) {
    const float near = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-near)));
}

__device__ inline float silu_f32(float gate, float scaled) {
    return __fmul_rn(gate, sigmoid_f32(scaled));
}
__device__ inline float gelu_tanh_f32(float gate) {
    const float cube = __fmul_rn(__fmul_rn(gate, gate), gate);
    return silu_f32(gate, __fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, gate)));
}
__device__ inline float gelu_f32(float gate) {
    return __fmul_rn(__fmul_rn(0.5f, gate), __fadd_rn(1.0f, erff(__fmul_rn(gate, 0.70710678f))));
}
__device__ inline float clamped_swiglu_f32(const ExpertsView &e, float gate, float up) {
    const float low = gate > e.limit ? e.limit : gate;
    const float near = up > e.limit ? e.limit : up < -e.limit ? -e.limit : up;
    return __fmul_rn(silu_f32(low, __fmul_rn(e.alpha, low)), __fadd_rn(near, 1.0f));
}

// y[i] of pairs of gate and up, all by one activation, so that none waits for another.
template <int count>
__device__ inline void join_f32(const ExpertsView &e, const float (&gate)[count],
                                const float (&up)[count], float (&y)[count]) {
    const auto each = [&](auto one) {
#pragma unroll
        for (int i = 0; i < count; ++i) y[i] = one(gate[i], up[i]);
    };
    switch (e.activation) {
        case QK_ACTIVATION_SILU:
            return each([](float g, float u) { return __fmul_rn(silu_f32(g, g), u); });
        case QK_ACTIVATION_GELU_TANH:
            return each([](float g, float u) { return __fmul_rn(gelu_tanh_f32(g), u); });
        case QK_ACTIVATION_SWIGLU_CLAMPED:
            return each([&](float g, float u) { return clamped_swiglu_f32(e, g, u); });
        default: return each([](float g, float u) { return __fmul_rn(gelu_f32(g), u); });
    }
}

// A part of the product: an item and a block of rows of w.
template <class S>
struct ListedUnit {
    const GemmExpertsProblem &p;
    int32_t expert, first, count;  // of the item
    int32_t block;

    // Row of tiles of the block's first of w, in its expert.
    __device__ int32_t first_tile() const {
        return block * (p.e.halves() ? S::kRowTiles / 2 : S::kRowTiles);
    }
    __device__ Item work() const {
        const int32_t stages = (p.gemm.tiles + S::kTiles - 1) / S::kTiles;
        const int32_t gap = p.e.halves() ? p.of_expert / 2 - S::kRowTiles / 2 : 0;
        return {
            expert * p.of_expert + first_tile(),  first - p.first_row, 0, stages * S::kTiles, gap,
            (count + kListedBox - 1) / kListedBox};
    }
    __device__ bool is_there() const { return expert < p.e.count; }
};

// Sums become y 16 rows of x at a time. Each thread has 4 rows of w of one row of x in either half
// of the block's, and its neighbors the next ones, so that whole lines leave. What comes from
// memory is asked for before the products: the slots of the item's rows, and the next item.
template <class S>
struct ListedOutput {
    using T = typename S::T;
    static constexpr int kAcross = S::kRows / 8;
    static_assert(S::kConsumers * 128 == 16 * kAcross);
    using Four = float[4];

    const ExpertsView &e;
    const bool pieces;  // columns of y leave in pieces of several
    const int32_t count;
    const uint32_t slots;  // in shared memory: of the item's rows
    uint32_t to, from;     // shared memory: its sums; those that it makes y of
    int32_t column[2];     // of y: the first that either four become
    Four bias[2];

    __device__ ListedOutput(const ListedUnit<S> &unit, uint32_t buffers, uint32_t table)
        : e(unit.p.e), pieces(unit.p.pieces), count(unit.count), slots(table) {
        const int32_t first = int32_t(threadIdx.x) % kAcross * 4;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        to = buffers + lane % 4 * 2 * S::kColumn + (warp * 16 + lane / 4) * 4;
        from = buffers + threadIdx.x / kAcross * S::kColumn + uint32_t(first) * 4;
        const int32_t row = unit.first_tile() * 16 + first;
        const int32_t rows[] = {row, row + (e.halves() ? int32_t(e.columns) : S::kRows / 2)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            column[half] = rows[half] >> (e.interleaved && e.joins());
#pragma unroll
            for (int i = 0; i < 4; ++i) bias[half][i] = 0.0f;
            if (e.bias == nullptr || rows[half] >= e.rows) continue;
            const int64_t at = unit.expert * e.rows + rows[half];
#pragma unroll
            for (int i = 0; i < 4; ++i) bias[half][i] = load_float(e.bias_type, e.bias, at + i);
        }
    }
    __device__ bool has(int half) const { return column[half] < e.columns; }

    // Element `first` of y, and those behind it.
    template <int count>
    __device__ void store_y(int64_t first, const float (&v)[count]) const {
        if (!pieces) {
#pragma unroll
            for (int i = 0; i < count; ++i) store_value(first + i, v[i]);
        } else if (e.y_type == QK_FORMAT_F32) {
            float *const at = static_cast<float *>(e.y) + first;
            const uint2 a = {__float_as_uint(v[0]), __float_as_uint(v[1])};
            if constexpr (count == 2) return global_store_8(at, a);
            global_store_16(
                at, {a.x, a.y, __float_as_uint(v[count - 2]), __float_as_uint(v[count - 1])});
        } else {
            uint16_t *const at = static_cast<uint16_t *>(e.y) + first;
            const uint32_t a = pack_pair(T{}, v[0], v[1]);
            if constexpr (count == 2) return global_store_4(at, a);
            global_store_8(at, {a, pack_pair(T{}, v[count - 2], v[count - 1])});
        }
    }
    __device__ void store_value(int64_t at, float v) const {
        if (e.accumulate) v = __fadd_rn(v, load_float(e.y_type, e.y, at));
        store_float(e.y_type, e.y, at, v);
    }

    // `row`: of y, its first element.
    __device__ void make_y(int64_t row, const Four &a, const Four &b) const {
        if (!e.joins()) {
            store_y(row + column[0], a);
            if (has(1)) store_y(row + column[1], b);
            return;
        }
        Four y;
        if (!e.interleaved) {
            join_f32(e, a, b, y);
            return store_y(row + column[0], y);
        }
        join_f32<4>(e, {a[0], a[2], b[0], b[2]}, {a[1], a[3], b[1], b[3]}, y);
        store_y<2>(row + column[0], {y[0], y[1]});
        if (has(1)) store_y<2>(row + column[1], {y[2], y[3]});
    }

    // The sums of rows of x 16 `piece` and on.
    template <int piece, int sums>
    __device__ void write_piece(uint32_t at, const float (&acc)[sums]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t place = uint32_t(i / 4 * 8 + i % 2) * S::kColumn + i / 2 % 2 * 32;
            shared_store_4(at + place, __float_as_uint(acc[piece * 8 + i]));
        }
    }

    template <int piece, int sums>
    __device__ void write_one_of(int32_t wanted, uint32_t at, const float (&acc)[sums]) const {
        if constexpr (piece * 8 < sums) {
            if (wanted == piece) return write_piece<piece>(at, acc);
            write_one_of<piece + 1>(wanted, at, acc);
        }
    }

    __device__ void load_four(uint32_t at, const Four &of_bias, Four &z) const {
        const float4 v = shared_load_floats(at);
        z[0] = __fadd_rn(v.x, of_bias[0]), z[1] = __fadd_rn(v.y, of_bias[1]);
        z[2] = __fadd_rn(v.z, of_bias[2]), z[3] = __fadd_rn(v.w, of_bias[3]);
    }

    // `turn`: of two buffers, one after the other, so one barrier a piece keeps them apart.
    template <int sums>
    __device__ void store(const float (&acc)[sums], uint32_t &turn) const {
        const int32_t x_row = int32_t(threadIdx.x) / kAcross;
#pragma unroll 1
        for (int32_t piece = 0; piece * 16 < count; ++piece) {
            const uint32_t buffer = turn * 16 * S::kColumn;
            turn ^= 1;
            const int32_t number = piece * 16 + x_row;
            write_one_of<0>(piece, to + buffer, acc);
            named_barrier_wait(2, S::kConsumers * 128);
            if (number >= count || !has(0)) continue;
            Four a, b;
            load_four(from + buffer, bias[0], a);
            load_four(from + buffer + S::kRows / 2 * 4, bias[1], b);
            make_y(shared_load_4(slots + uint32_t(number) * 4) * e.y_stride, a, b);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

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

__device__ inline float join_f32(const ExpertsView &e, float gate, float up) {
    switch (e.activation) {
        case QK_ACTIVATION_SILU: return __fmul_rn(__fmul_rn(gate, sigmoid_f32(gate)), up);
        case QK_ACTIVATION_GELU_TANH: {
            const float cube = __fmul_rn(__fmul_rn(gate, gate), gate);
            const float u = __fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, gate));
            return __fmul_rn(__fmul_rn(gate, sigmoid_f32(u)), up);
        }
        case QK_ACTIVATION_SWIGLU_CLAMPED: {
            const float low = gate > e.limit ? e.limit : gate;
            const float near = up > e.limit ? e.limit : up < -e.limit ? -e.limit : up;
            return __fmul_rn(__fmul_rn(low, sigmoid_f32(__fmul_rn(e.alpha, low))),
                             __fadd_rn(near, 1.0f));
        }
        default: {
            const float half = __fmul_rn(0.5f, gate);
            const float both = __fadd_rn(1.0f, erff(__fmul_rn(gate, 0.70710678f)));
            return __fmul_rn(__fmul_rn(half, both), up);
        }
    }
}

// A part of the product: an item and a block of rows of w.
template <class S>
struct ListedUnit {
    const GemmExpertsProblem &p;
    ExpertsItem item;
    int32_t block;

    // Row of tiles of the block's first of w, in its expert.
    __device__ int32_t first_tile() const {
        return block * (p.e.halves() ? S::kRowTiles / 2 : S::kRowTiles);
    }
    __device__ Item work() const {
        const int32_t stages = (p.gemm.tiles + S::kTiles - 1) / S::kTiles;
        const int32_t gap = p.e.halves() ? p.of_expert / 2 - S::kRowTiles / 2 : 0;
        return {item.expert * p.of_expert + first_tile(),  item.first, 0, stages * S::kTiles, gap,
                (item.count + kListedBox - 1) / kListedBox};
    }
    __device__ bool is_there() const { return item.expert < p.e.count; }
};

// Sums become y 16 rows of x at a time. Each thread has 8 rows of w of one row of x. What comes
// from memory is asked for before the products: the slots of the item's rows, and the next item.
template <class S>
struct ListedOutput {
    using T = typename S::T;
    static constexpr int kEach = 8, kAcross = S::kRows / kEach;
    static_assert(S::kConsumers * 128 == 16 * kAcross);

    const ExpertsView &e;
    const ExpertsItem item;
    uint32_t slots;             // in shared memory: of the item's rows
    int64_t row, other;         // of w, in the expert: the first four of this thread, the others
    int64_t column;             // of y: its first
    int32_t count;              // of its columns; 0: past the last
    uint32_t to, from, second;  // shared memory: its sums; what it makes y of
    float bias[kEach];

    __device__ ListedOutput(const ListedUnit<S> &unit, uint32_t buffers, uint32_t table)
        : e(unit.p.e), item(unit.item), slots(table) {
        const int32_t across = int32_t(threadIdx.x) % kAcross;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        to = buffers + lane % 4 * 2 * S::kColumn + (warp * 16 + lane / 4) * 4;
        const bool halves = e.halves();
        const int32_t first = across * (halves ? kEach / 2 : kEach);
        from = buffers + threadIdx.x / kAcross * S::kColumn + uint32_t(first) * 4;
        second = from + (halves ? S::kRows / 2 * 4 : 16);
        row = int64_t(unit.first_tile()) * 16 + first;
        other = row + (halves ? e.columns : 4);
        column = e.joins() && !halves ? row / 2 : row;
        count = column >= e.columns ? 0 : e.joins() ? kEach / 2 : kEach;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t at = item.expert * e.rows + (i < 4 ? row + i : other + i - 4);
            bias[i] = e.bias == nullptr || count == 0 ? 0.0f : load_float(e.bias_type, e.bias, at);
        }
    }

    __device__ void store_y(int64_t slot, const float (&y)[kEach]) const {
        const int64_t at = slot * e.y_stride + column;
        const int bytes = e.y_type == QK_FORMAT_F32 ? 4 : 2;
        uint8_t *const to_y = static_cast<uint8_t *>(e.y) + at * bytes;
        const bool lines = reinterpret_cast<uintptr_t>(to_y) % 16 == 0 && !e.accumulate;
        if (lines && e.y_type == QK_FORMAT_F32) {
            const auto four = [&](int i) {
                return uint4{__float_as_uint(y[i]), __float_as_uint(y[i + 1]),
                             __float_as_uint(y[i + 2]), __float_as_uint(y[i + 3])};
            };
            global_store_16(to_y, four(0));
            if (count == kEach) global_store_16(to_y + 16, four(4));
        } else if (lines && count == kEach) {
            global_store_16(to_y, {pack_pair(T{}, y[0], y[1]), pack_pair(T{}, y[2], y[3]),
                                   pack_pair(T{}, y[4], y[5]), pack_pair(T{}, y[6], y[7])});
        } else {
            store_values(at, y);
        }
    }

    __device__ void store_values(int64_t at, const float (&y)[kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (i >= count) return;
            const float v =
                e.accumulate ? __fadd_rn(y[i], load_float(e.y_type, e.y, at + i)) : y[i];
            store_float(e.y_type, e.y, at + i, v);
        }
    }

    __device__ void make_y(int64_t slot, const float (&z)[kEach]) const {
        if (!e.joins()) return store_y(slot, z);
        float y[kEach] = {};
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) {
            const float gate = e.interleaved ? z[2 * i] : z[i];
            const float up = e.interleaved ? z[2 * i + 1] : z[i + 4];
            y[i] = join_f32(e, gate, up);
        }
        store_y(slot, y);
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

    // `turn`: of two buffers, one after the other, so one barrier a piece keeps them apart.
    template <int sums>
    __device__ void store(const float (&acc)[sums], uint32_t &turn) const {
        const int32_t x_row = int32_t(threadIdx.x) / kAcross;
#pragma unroll 1
        for (int32_t piece = 0; piece * 16 < item.count; ++piece) {
            const uint32_t buffer = turn * 16 * S::kColumn;
            turn ^= 1;
            const int32_t number = piece * 16 + x_row;
            const bool there = number < item.count && count > 0;
            write_one_of<0>(piece, to + buffer, acc);
            named_barrier_wait(2, S::kConsumers * 128);
            if (!there) continue;
            const int64_t slot = shared_load_4(slots + uint32_t(number) * 4);
            const float4 a = shared_load_floats(from + buffer);
            const float4 b = shared_load_floats(second + buffer);
            make_y(slot, {__fadd_rn(a.x, bias[0]), __fadd_rn(a.y, bias[1]), __fadd_rn(a.z, bias[2]),
                          __fadd_rn(a.w, bias[3]), __fadd_rn(b.x, bias[4]), __fadd_rn(b.y, bias[5]),
                          __fadd_rn(b.z, bias[6]), __fadd_rn(b.w, bias[7])});
        }
    }
};

}  // namespace
}  // namespace qk::cuda

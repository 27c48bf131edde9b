// The problem of the kernel for one row of x (decode/vector.cuh), and a warp's place in shared
// memory.
#pragma once
#include "cuda/choose/vector.hpp"
#include "cuda/decode/ring.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kRowBytes = 16 * 4;  // of a partial sum of 16 rows

struct VectorProblem {
    const uint8_t *codes, *scale, *zero;  // zero: null where every zero is 8
    const float *second, *scale_code, *scale_bias;
    const void *x, *bias;  // bias may be null
    void *y;
    int64_t n;
    int32_t k;
    uint32_t groups;       // of a row
    int32_t group_shift;   // log2 of the tiles a group; 31: one group a row
    int32_t second_shift;  // nested: log2 of second_group
    uint32_t last_second;  // nested: of the second scales that a block has room for
    qk_format bias_type;
    VectorPlan plan;
    float entries[16];  // what codes stand for, where they are looked up
};

// A unit of the weight.
struct Unit {
    int32_t row, column;  // of tiles, of units

    __device__ void advance(const VectorPlan &plan) {
        row += plan.row_step;
        column += plan.unit_step;
        if (column >= plan.units) {
            column -= plan.units;
            ++row;
        }
    }
};

// A warp's slot: the codes of a unit, then for its lanes' tiles (2 i and 2 i + 1, or the first of
// them where groups are wider): scales and zeros.
template <ScaleKind kind, bool pairs, uint32_t kTiles>
struct SlotMap {
    static constexpr uint32_t kScales = kUnitBytes;
    static constexpr uint32_t kScaleStride = 32 * kPairBytes<kind>;
    static constexpr uint32_t kZeros = kScales + kTiles * kScaleStride;
    static constexpr uint32_t kBytes = kZeros + (pairs ? 0 : kTiles * 32);
    static_assert(kBytes % 16 == 0);
};

__device__ inline uint32_t from_lane(uint32_t v, uint32_t lane) {
    return __shfl_sync(~0u, v, int(lane));
}

// The compiler shall neither compute v anew nor later.
__device__ inline void keep(uint32_t &v) {
    asm volatile("" : "+r"(v));
}

// x as a sum of matrix operands: 16 columns of a lane, two an operand register.
template <class T>
struct XTerms {
    using Operand = T;
    // Terms, registers of them, bytes of a value, blocks a multiprocessor.
    static constexpr int kCount = 1, kOperands = 1, kBytes = 2, kBlocks = 2;

    static __device__ void split(const uint4 (&q)[2], uint32_t (&b)[1][8]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            b[0][4 * i] = q[i].x;
            b[0][4 * i + 1] = q[i].y;
            b[0][4 * i + 2] = q[i].z;
            b[0][4 * i + 3] = q[i].w;
        }
    }
};

struct F32 {};

// Three terms of 8 bits are a float: each is the nearest bfloat16 of what the ones before left.
struct ThreeTerms {
    float term[3];

    __device__ explicit ThreeTerms(float x) {
        float left = x;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            float near = __bfloat162float(__float2bfloat16_rn(left));
            if (isinf(near) && !isinf(left)) {  // rounded up past the largest: cut instead
                near = __uint_as_float(__float_as_uint(left) & 0xffff0000u);
            }
            term[i] = near;
            left = isfinite(near) ? __fadd_rn(left, -near) : 0;
        }
    }
};

template <>
struct XTerms<F32> {
    using Operand = BF16;
    static constexpr int kCount = 3, kOperands = 4, kBytes = 4, kBlocks = 1;
    static constexpr int kFinite = 3;  // the first term, 0 where x is not finite: for terms of
                                       // weights that may be 0 where the weight is not

    static __device__ void split(const uint4 (&q)[4], uint32_t (&b)[4][8]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t words[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const ThreeTerms low(__uint_as_float(words[2 * j]));
                const ThreeTerms high(__uint_as_float(words[2 * j + 1]));
#pragma unroll
                for (int t = 0; t < 3; ++t) {
                    b[t][2 * i + j] = DecodePairs<BF16>::pair(low.term[t], high.term[t]);
                }
                b[kFinite][2 * i + j] =
                    DecodePairs<BF16>::pair(isfinite(low.term[0]) ? low.term[0] : 0,
                                            isfinite(high.term[0]) ? high.term[0] : 0);
            }
        }
    }
};

// Weights for f32 x. Whole numbers are one term; an entry of a table is three, each with a table.
struct NumberTerms : RingNumbers<BF16> {
    static constexpr int kTerms = 1;
    static __device__ void decode_term(int, uint32_t word, const Zeros &zero, uint32_t lanes,
                                       uint32_t (&a)[4]) {
        decode(word, zero, lanes, a);
    }
};

struct TableTerms {
    static constexpr bool kPairs = true;
    static constexpr int kTerms = 3;
    template <int term>
    using Table = DecodeTable<BF16, kSharedStart + term * kTableBytes>;

    static __device__ void prepare(const float (&entries)[16], uint32_t threads) {
        const ThreeTerms own(entries[threadIdx.x & 15]);
        Table<0>::prepare_own(own.term[0], threads);
        Table<1>::prepare_own(own.term[1], threads);
        Table<2>::prepare_own(own.term[2], threads);
    }
    static __device__ uint32_t lanes() { return Table<0>::lanes(); }
    static __device__ Zeros zeros(uint32_t) { return {}; }
    static __device__ void decode_term(int term, uint32_t word, const Zeros &zero, uint32_t lanes,
                                       uint32_t (&a)[4]) {
        if (term == 0) Table<0>::decode(word, zero, lanes, a);
        if (term == 1) Table<1>::decode(word, zero, lanes, a);
        if (term == 2) Table<2>::decode(word, zero, lanes, a);
    }
};

}  // namespace
}  // namespace qk::cuda

// Matrix operands of the kernel for small batches (linear/sm90/some_rows/kernel.cuh): x and weights
// as sums of 16-bit terms.
#pragma once
#include "cuda/tile/ring.cuh"

namespace qk::cuda {
namespace {

// x as a sum of matrix operands: columns of a lane, two an operand register, from 16 bytes.
template <class T>
struct SliceTerms {
    using Operand = T;
    // Terms, registers of them, bytes of a value; columns that are split together.
    static constexpr int kCount = 1, kOperands = 1, kBytes = 2, kColumns = 8;

    static __device__ void split(const uint4 &q, uint32_t (&b)[1][4]) {
        b[0][0] = q.x;
        b[0][1] = q.y;
        b[0][2] = q.z;
        b[0][3] = q.w;
    }
};

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
struct SliceTerms<F32> {
    using Operand = BF16;
    static constexpr int kCount = 3, kOperands = 4, kBytes = 4, kColumns = 4;
    static constexpr int kFinite = 3;  // the first term, 0 where x is not finite: for terms of
                                       // weights that may be 0 where the weight is not

    static __device__ void split(const uint4 &q, uint32_t (&b)[4][2]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const ThreeTerms low(__uint_as_float(words[2 * j]));
            const ThreeTerms high(__uint_as_float(words[2 * j + 1]));
#pragma unroll
            for (int t = 0; t < 3; ++t) {
                b[t][j] = pack_pair(BF16{}, low.term[t], high.term[t]);
            }
            b[kFinite][j] = pack_pair(BF16{}, isfinite(low.term[0]) ? low.term[0] : 0,
                                      isfinite(high.term[0]) ? high.term[0] : 0);
        }
    }
};

// Weights for f32 x. Whole numbers are one term; an entry of a table is three, each with a table.
struct U4Terms : RingU4<BF16> {
    static constexpr int kTerms = 1;
    static __device__ void decode_term(int, uint32_t word, const Zeros &zero, uint32_t lanes,
                                       uint32_t (&a)[4]) {
        decode(word, zero, lanes, a);
    }
};

struct Lut4Terms {
    static constexpr bool kLut4 = true;
    static constexpr int kTerms = 3;
    template <int term>
    using Table = DecodeTable<BF16, kSharedStart + term * kTableBytes>;

    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t own = 0) {
        const ThreeTerms mine(entries[threadIdx.x & 15]);
        Table<0>::prepare_own(mine.term[0], threads, own);
        Table<1>::prepare_own(mine.term[1], threads, own);
        Table<2>::prepare_own(mine.term[2], threads, own);
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

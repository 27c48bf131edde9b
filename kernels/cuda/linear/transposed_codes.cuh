// Codes of a transposed product as operands of the tensor core. A tile is turned over where it is
// loaded (ldmatrix): a lane's word has 16 bits of row 2 q below, of row 2 q + 1 above, codes of two
// columns, of these rows and of those 8 further down. Operands are pairs of rows: two of a column
// (rows as they are, 8 further down), then two of the other.
#pragma once
#include "cuda/tile/decode.cuh"

namespace qk::cuda {
namespace {

// Nibbles of bytes 0 and 2, 1 and 3 change places crosswise: a word as in a tile.
__device__ inline uint32_t word_across(uint32_t v) {
    uint32_t differ = (v ^ v >> 12) & 0x0000f0f0u;
    keep(differ);  // it would be made once for each place otherwise
    return v ^ differ ^ differ << 12;
}

template <class T>
struct AcrossU4 : U4<T> {
    static constexpr uint32_t kTableBytes = 0;
    static constexpr int32_t kOther = 2;  // columns from the first to the other

    static __device__ int32_t lane_of(int32_t column) { return column / 4 * 2 + column % 2; }
    static __device__ uint32_t lanes_of(const uint32_t *) { return 0; }
    static __device__ void decode(uint32_t word, const Zeros &zero, const uint32_t *table, uint32_t,
                                  uint32_t (&a)[4]) {
        U4<T>::decode(word, zero, table, a);
    }
};

// kWide: the table takes 64 KiB in place of 32.
template <class T, bool kWide>
struct AcrossLut4 : Lut4<T> {
    static constexpr uint32_t kTableBytes = kTableWords * (kWide ? 8 : 4);
    static constexpr int32_t kOther = 1;

    static __device__ int32_t lane_of(int32_t column) { return column / 2; }

    // As Lut4's.
    static __device__ void prepare(const WeightView &w, uint32_t *table) {
        if constexpr (!kWide) {
            Lut4<T>::prepare(w, table, false);
        } else {
            fill_pair_table<T>(w, reinterpret_cast<uint4 *>(table), int(threadIdx.x),
                               int(blockDim.x));
        }
    }
    // `lanes`: lanes_of the table.
    static __device__ void decode(uint32_t v, const Zeros &zero, const uint32_t *table,
                                  uint32_t lanes, uint32_t (&a)[4]) {
        const uint32_t word = word_across(v);
        if constexpr (!kWide) {
            Lut4<T>::decode(word, zero, table, a);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t at = byte_permute(word, lanes, 0x7604u | i << 4);
                a[i] = pair_at(table, at);
            }
        }
    }
    // A lane's bank, and what addresses of this block's memory begin with in a cluster: the top
    // byte. The rest is a constant in the instruction, where the table is the first of the memory
    // that starts at kSharedStart; by pointers each look-up would add it.
    static __device__ uint32_t lanes_of(const uint32_t *table) {
#if __CUDA_ARCH__ == 900
        return threadIdx.x % 32 * 4 + shared_address(table) - kSharedStart;
#else
        return threadIdx.x % 32 * 4;
#endif
    }
    static __device__ uint32_t pair_at(const uint32_t *table, uint32_t at) {
        uint32_t pair;
#if __CUDA_ARCH__ == 900
        asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(pair) : "r"(at), "n"(kSharedStart));
#else
        memcpy(&pair, reinterpret_cast<const uint8_t *>(table) + at, 4);
#endif
        return pair;
    }
};

}  // namespace
}  // namespace qk::cuda

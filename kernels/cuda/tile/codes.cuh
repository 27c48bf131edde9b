// A word of 8 codes to 4 matrix-operand registers (8 values as pairs), two ways.
//
// Numbers (U4): a half in [1024, 2048) has its unit at bit 0, so 0x6400 | q is 1024 + q; one in
// [64, 128) has it at bit 4, so 0x5400 | q << 4 is 64 + q (src/base/int_to_half.hpp): one lop3 and
// one subtraction a pair, exact. The zero point rides along in the constant. A bfloat16 has 7
// mantissa bits: 0x4300 is 128, and only nibbles at bits 0..3 fit, so bf16 shifts three times.
//
// Look-ups (NF4, FP4, E2M1): a byte holds two codes; a table of 256 pairs turns it into a register.
// The table is copied 32 times, one for each bank of shared memory: lane l reads bank l whatever
// its byte is, so no two lanes ever wait for each other. Entry b of lane l lies at byte
// 256 b + 4 l: one prmt builds the address.
#pragma once
#include <type_traits>

#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr size_t kPairTableBytes = 256 * 256;

// Constants that take a group's zero points off, of row r (low nibbles) and of row r + 8 (high).
struct Zeros {
    uint32_t low, high;
};

template <class T>
struct DecodeU4;

template <>
struct DecodeU4<F16> {
    static constexpr bool kPairs = false;
    static __device__ void prepare(const WeightView &, uint8_t *) {}
    static __device__ Zeros zeros(uint32_t byte) {
        return {0x64006400u + (byte & 0x0f) * 0x00010001u,
                0x54005400u + (byte & 0xf0) * 0x00010001u};
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
        uint32_t r;
        asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
    }
    static __device__ void decode(uint32_t word, const Zeros &z, uint32_t, uint32_t,
                                  uint32_t (&a)[4]) {
        const uint32_t upper = word >> 8;
        a[0] = subtract(and_or(word, 0x000f000fu, 0x64006400u), z.low);
        a[1] = subtract(and_or(word, 0x00f000f0u, 0x54005400u), z.high);
        a[2] = subtract(and_or(upper, 0x000f000fu, 0x64006400u), z.low);
        a[3] = subtract(and_or(upper, 0x00f000f0u, 0x54005400u), z.high);
    }
};

template <>
struct DecodeU4<BF16> {
    static constexpr bool kPairs = false;
    static __device__ void prepare(const WeightView &, uint8_t *) {}
    static __device__ Zeros zeros(uint32_t byte) {
        return {0x43004300u + (byte & 15) * 0x00010001u, 0x43004300u + (byte >> 4) * 0x00010001u};
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
        const __nv_bfloat162 r = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a),
                                         *reinterpret_cast<__nv_bfloat162 *>(&b));
        return *reinterpret_cast<const uint32_t *>(&r);
    }
    static __device__ void decode(uint32_t word, const Zeros &z, uint32_t, uint32_t,
                                  uint32_t (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[i] = subtract(and_or(word >> 4 * i, 0x000f000fu, 0x43004300u),
                            i % 2 == 0 ? z.low : z.high);
        }
    }
};

template <class T>
struct DecodeLut4 {
    static constexpr bool kPairs = true;

    static __device__ uint32_t pair(float low, float high) {
        typename T::Pair p;
        if constexpr (std::is_same_v<T, F16>) {
            p = __floats2half2_rn(low, high);
        } else {
            p = __floats2bfloat162_rn(low, high);
        }
        return *reinterpret_cast<uint32_t *>(&p);
    }
    // Every thread of the block calls it, or some of them with a number below `threads` each; a
    // barrier must follow.
    static __device__ void prepare(const WeightView &w, uint8_t *table) {
        prepare(w, table, int(threadIdx.x), int(blockDim.x));
    }
    static __device__ void prepare(const WeightView &w, uint8_t *table, int thread, int threads) {
        constexpr int kVectors = 8;  // of 16 bytes, 32 copies of an entry
        for (int i = thread; i < 256 * kVectors; i += threads) {
            const int byte = i / kVectors;
            const uint32_t entry = pair(w.entries[byte & 15], w.entries[byte >> 4]);
            *reinterpret_cast<uint4 *>(table + byte * 256 + i % kVectors * 16) = {entry, entry,
                                                                                  entry, entry};
        }
    }
    static __device__ Zeros zeros(uint32_t) { return {}; }
    static __device__ void decode(uint32_t word, const Zeros &, uint32_t table,
                                  uint32_t lane_offset, uint32_t (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Byte 0: the lane's bank; byte 1: the codes; bytes 2, 3: zeros of lane_offset.
            const uint32_t at = __byte_perm(word, lane_offset, 0x5504u | uint32_t(i) << 4);
            a[i] = shared_load_4(table + at);
        }
    }
};

// The same look-up with the table in 32 KiB at a fixed address: entry b of lane l lies at byte
// 256 (b mod 128) + 128 (b / 128) + 4 l. Two operations a word put the top bit of each byte beside
// the lane; prmt replicates the sign of a byte whose top bit is now clear for the upper half of the
// address.
template <class T, uint32_t kTable>
struct DecodeTable {
    static constexpr bool kPairs = true;

    // By `threads` threads, whole warps; a barrier must follow. `own`: what addresses of a block's
    // memory begin with in a cluster.
    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t own = 0) {
        prepare_own(entries[threadIdx.x & 15], threads, own);
    }
    // `mine`: the entry of this thread's number mod 16.
    static __device__ void prepare_own(float mine, uint32_t threads, uint32_t own = 0) {
        const uint32_t both = DecodeLut4<T>::pair(mine, mine);
        for (uint32_t i = threadIdx.x; i < 256 * 8; i += threads) {
            const uint32_t byte = i / 8;
            const uint32_t low = __shfl_sync(~0u, both, int(byte & 15));
            const uint32_t e = __byte_perm(low, __shfl_sync(~0u, both, int(byte >> 4)), 0x5410);
            const uint32_t to = own + kTable + byte % 128 * 256 + byte / 128 * 128 + i % 8 * 16;
            shared_store_16(to, {e, e, e, e});
        }
    }
    static __device__ uint32_t lanes() { return threadIdx.x % 32 * 0x04040404u; }
    static __device__ Zeros zeros(uint32_t) { return {}; }
    template <uint32_t i>
    static __device__ uint32_t look_up(uint32_t low, uint32_t high, uint32_t own) {
        uint32_t at, value;
        asm("prmt.b32 %0, %1, %2, %3;"
            : "=r"(at)
            : "r"(low), "r"(high), "n"(0x8804u + 0x1111u * i));
        asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(value) : "r"(at + own), "n"(kTable));
        return value;
    }
    // There are no zeros to take off: their place is for `own`.
    static __device__ void decode(uint32_t word, const Zeros &z, uint32_t lanes, uint32_t (&a)[4]) {
        const uint32_t low = word & 0x7f7f7f7fu, high = (word & 0x80808080u) | lanes;
        a[0] = look_up<0>(low, high, z.low);
        a[1] = look_up<1>(low, high, z.low);
        a[2] = look_up<2>(low, high, z.low);
        a[3] = look_up<3>(low, high, z.low);
    }
};

}  // namespace
}  // namespace qk::cuda

// Words of 8 codes of 4 bits as 4 registers, a pair of 16-bit numbers each: matrix operands.
//
// u4: a half in [1024, 2048) has its unit at bit 0, so 0x6400 | q is 1024 + q; one in [64, 128) has
// it at bit 4, so 0x5400 | q << 4 is 64 + q (src/base/int_to_half.hpp): one lop3 and one
// subtraction a pair, exact. The zero point is part of the constant that is subtracted. A bfloat16
// has 7 mantissa bits: 0x4300 is 128, and only nibbles at bits 0..3 fit, so bf16 shifts three
// times.
//
// lut4 (NF4, FP4): a byte holds two codes; a table of 256 pairs gives its register. The table
// is copied 32 times, once for each bank of shared memory: lane l reads bank l whatever its byte
// is, so no two lanes ever wait for each other. In 32 KiB pair b of lane l is at byte
// 256 (b mod 128) + 128 (b / 128) + 4 l: two operations a word put the top bit of each byte beside
// the lane; prmt replicates the sign of a byte whose top bit is now clear for the upper half of the
// address.
#pragma once
#include <cuda_fp16.h>
#include <type_traits>

#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/tile/problem.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// What to subtract for zero points from pairs 0 and 2 of a word and from pairs 1 and 3: of row r
// (low nibbles) and of row r + 8 (high) in a tile.
struct Zeros {
    uint32_t low, high;
};

// Pair i of a word: codes i and i + 4, each plus a power of two that is subtracted with the zero.
template <class T>
struct U4 {
    static constexpr bool kLut4 = false;

    static __device__ uint32_t pair(uint32_t word, int i) {
        if constexpr (std::is_same_v<T, F16>) {
            const uint32_t w = i < 2 ? word : word >> 8;
            return i % 2 == 0 ? and_or(w, 0x000f000fu, 0x64006400u)
                              : and_or(w, 0x00f000f0u, 0x54005400u);
        } else {
            return and_or(word >> 4 * i, 0x000f000fu, 0x43004300u);
        }
    }
    static __device__ void pairs(uint32_t word, uint32_t (&to)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = pair(word, i);
    }
    static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
        if constexpr (std::is_same_v<T, F16>) {
            return subtract_f16(a, b);
        } else {
            return subtract_bf16(a, b);
        }
    }
    // Of a word of one row.
    static __device__ Zeros zeros_of_code(uint32_t zero) {
        if constexpr (std::is_same_v<T, F16>) {
            return {0x64006400u + zero * 0x00010001u, 0x54005400u + zero * 0x00100010u};
        }
        return {0x43004300u + zero * 0x00010001u, 0x43004300u + zero * 0x00010001u};
    }
    // Of a word whose even nibbles are one zero point, whose odd ones the other.
    static __device__ Zeros zeros_of(uint32_t word) {
        uint32_t both[4];
        pairs(word, both);
        return {both[0], both[1]};
    }
    static __device__ void decode(uint32_t word, const Zeros &z, const uint32_t *,
                                  uint32_t (&to)[4]) {
        pairs(word, to);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = subtract(to[i], i % 2 == 0 ? z.low : z.high);
    }
};

constexpr uint32_t kTableWords = 32 * 256;  // of the table of pairs

template <class T>
struct Lut4 {
    static constexpr bool kLut4 = true;

    // Every thread of the block; a barrier must follow. `high_first`: the even code is the high
    // nibble.
    static __device__ void prepare(const WeightView &w, uint32_t *table, bool high_first) {
        for (uint32_t i = threadIdx.x; i < 256 * 8; i += blockDim.x) {
            const uint32_t byte = i / 8, low = byte & 15, high = byte >> 4;
            const uint32_t pair = pack_pair(T{}, w.entries[high_first ? high : low],
                                            w.entries[high_first ? low : high]);
            reinterpret_cast<uint4 *>(table)[byte % 128 * 16 + byte / 128 * 8 + i % 8] = {
                pair, pair, pair, pair};
        }
    }
    static __device__ Zeros zeros_of_code(uint32_t) { return {}; }
    static __device__ Zeros zeros_of(uint32_t) { return {}; }
    static __device__ void decode(uint32_t word, const Zeros &, const uint32_t *table,
                                  uint32_t (&pair)[4]) {
        const uint32_t low = word & 0x7f7f7f7fu;
        const uint32_t high = (word & 0x80808080u) | threadIdx.x % 32 * 0x04040404u;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t at = byte_permute(low, high, 0x8804u + 0x1111u * i);
            pair[i] =
                *reinterpret_cast<const uint32_t *>(reinterpret_cast<const char *>(table) + at);
        }
    }
};

// The table in 64 KiB: pair b of lane l is at byte 256 b + 4 l, so one prmt makes an address of a
// word as it is. By threads with a number below `threads` each; a barrier must follow.
template <class T>
__device__ void fill_pair_table(const WeightView &w, uint4 *table, int thread, int threads) {
    constexpr int kVectors = 8;  // 32 copies of a pair
    for (int i = thread; i < 256 * kVectors; i += threads) {
        const int byte = i / kVectors;
        const uint32_t pair = pack_pair(T{}, w.entries[byte & 15], w.entries[byte >> 4]);
        table[byte * 16 + i % kVectors] = {pair, pair, pair, pair};
    }
}

// The scales of rows r and r + 8, stored side by side as f16 or bf16.
template <ScaleKind kind>
__device__ float2 scale_pair_of(uint32_t both) {
    static_assert(kind == ScaleKind::kF16 || kind == ScaleKind::kBF16);
    if constexpr (kind == ScaleKind::kBF16) {
        return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
    }
    return {__half2float(__ushort_as_half(uint16_t(both))),
            __half2float(__ushort_as_half(uint16_t(both >> 16)))};
}

// ---- By addresses of shared memory
//
// They are absolute: these kernels have no static shared memory, so their dynamic part starts at
// kSharedStart or (on other architectures) below. Addresses become constants in the instructions; a
// look-up would need an addition for each load otherwise.
#if !defined(QK_CUDA_SIMULATED)
// Two E4M3 numbers in the low half of `both`, exactly: halves hold them all.
__device__ inline float2 e4m3_pair(uint32_t both) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(both)));
    return __half22float2(*reinterpret_cast<const __half2 *>(&halves));
}

// Two E8M0 numbers in the low half of `both`. Their codes are the exponents of bf16: the least is
// what code 0 stands for, and of infinity, code 255, a product with 0 makes a NaN.
__device__ inline float2 e8m0_pair(uint32_t both) {
    using Pair = __nv_bfloat162;
    const uint32_t exponents = __byte_perm(both, 0, 0x4140) << 7, least = 0x00400040u, zero = 0;
    const Pair number = __hmax2(*reinterpret_cast<const Pair *>(&exponents),
                                *reinterpret_cast<const Pair *>(&least));
    return __bfloat1622float2(__hfma2(number, *reinterpret_cast<const Pair *>(&zero), number));
}

constexpr size_t kPairTableBytes = 256 * 256;
constexpr uint32_t kTableBytes = kTableWords * 4;
constexpr uint32_t kSharedStart = 1024;

template <class T>
struct DecodeU4 : U4<T> {
    static constexpr uint32_t kEntryBytes = 0;  // of a table
    static __device__ Zeros zeros(uint32_t byte) {
        if constexpr (std::is_same_v<T, F16>) {
            return {0x64006400u + (byte & 0x0f) * 0x00010001u,
                    0x54005400u + (byte & 0xf0) * 0x00010001u};
        }
        return {0x43004300u + (byte & 15) * 0x00010001u, 0x43004300u + (byte >> 4) * 0x00010001u};
    }
    static __device__ void decode(uint32_t word, const Zeros &z, uint32_t, uint32_t,
                                  uint32_t (&a)[4]) {
        // As a loop or written out: by this the compiler decides whether it unrolls those around.
        using U = U4<T>;
        if constexpr (std::is_same_v<T, F16>) {
            a[0] = U::subtract(U::pair(word, 0), z.low);
            a[1] = U::subtract(U::pair(word, 1), z.high);
            a[2] = U::subtract(U::pair(word, 2), z.low);
            a[3] = U::subtract(U::pair(word, 3), z.high);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = U::subtract(U::pair(word, i), i % 2 == 0 ? z.low : z.high);
            }
        }
    }
};

// The table in 64 KiB.
template <class T>
struct DecodeLut4 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = kPairTableBytes;

    static __device__ void prepare(const WeightView &w, uint8_t *table, int thread, int threads) {
        fill_pair_table<T>(w, reinterpret_cast<uint4 *>(table), thread, threads);
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

// Both entries of every byte of codes, eight times in a row, at place(byte, time). `mine`: the
// entry of this thread's number mod 16; by `threads` threads, whole warps; a barrier must follow.
template <class T, class Place>
__device__ inline void fill_table(float mine, uint32_t threads, const Place &place) {
    const uint32_t both = pack_pair(T{}, mine, mine);
    for (uint32_t i = threadIdx.x; i < 256 * 8; i += threads) {
        const uint32_t byte = i / 8;
        const uint32_t low = __shfl_sync(~0u, both, int(byte & 15));
        const uint32_t e = __byte_perm(low, __shfl_sync(~0u, both, int(byte >> 4)), 0x5410);
        shared_store_16(place(byte, i % 8), {e, e, e, e});
    }
}

// The table in 32 KiB, at a fixed address.
template <class T, uint32_t kTable>
struct DecodeTable {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kTableBytes = kTableWords * 4;

    // As fill_table. `own`: what addresses of a block's memory begin with in a cluster.
    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t own = 0) {
        prepare_own(entries[threadIdx.x & 15], threads, own);
    }
    static __device__ void prepare_own(float mine, uint32_t threads, uint32_t own = 0) {
        fill_table<T>(mine, threads, [=](uint32_t byte, uint32_t i) {
            return own + kTable + byte % 128 * 256 + byte / 128 * 128 + i * 16;
        });
    }
    static __device__ uint32_t lanes(uint32_t = 0) { return threadIdx.x % 32 * 0x04040404u; }
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

template <class T>
struct RingU4 : DecodeU4<T> {
    static constexpr uint32_t kTableBytes = 0;
    static __device__ void prepare(const float (&)[16], uint32_t, uint32_t = 0) {}
    static __device__ uint32_t lanes(uint32_t = 0) { return 0; }
    static __device__ void decode(uint32_t word, const Zeros &zeros, uint32_t, uint32_t (&a)[4]) {
        DecodeU4<T>::decode(word, zeros, 0, 0, a);
    }
};
template <class T>
using RingLut4 = DecodeTable<T, kSharedStart>;

// Whether weights are two halves each.
template <class Decode, class = void>
constexpr bool kTwoTerms = false;
template <class Decode>
constexpr bool kTwoTerms<Decode, std::void_t<decltype(&Decode::decode_two)>> = true;

// The table in 64 KiB, as DecodeLut4's, so that one permute makes an address. In blocks of clusters
// what addresses of a block's memory begin with (`own`) is in the high bytes of `lanes`.
template <class T>
struct WideLut4 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kTableBytes = uint32_t(kPairTableBytes);

    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t own) {
        fill_table<T>(entries[threadIdx.x & 15], threads, [=](uint32_t byte, uint32_t i) {
            return own + kSharedStart + byte * 256 + i * 16;
        });
    }
    static __device__ uint32_t lanes(uint32_t own) { return own | threadIdx.x % 32 * 4; }
    static __device__ Zeros zeros(uint32_t) { return {}; }
    template <uint32_t i>
    static __device__ uint32_t look_up(uint32_t word, uint32_t lanes) {
        uint32_t at, value;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(at) : "r"(word), "r"(lanes), "n"(0x7604u | i << 4));
        asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(value) : "r"(at), "n"(kSharedStart));
        return value;
    }
    static __device__ void decode(uint32_t word, const Zeros &, uint32_t lanes, uint32_t (&a)[4]) {
        a[0] = look_up<0>(word, lanes);
        a[1] = look_up<1>(word, lanes);
        a[2] = look_up<2>(word, lanes);
        a[3] = look_up<3>(word, lanes);
    }
};

// The same of E8M0 or E4M3 codes (`coded`), each times `one`.
__device__ inline float2 coded_pair(qk_format coded, uint32_t both, float one) {
    const float2 scale = coded == QK_FORMAT_E8M0
                             ? float2{e8m0_value(int(both & 255)), e8m0_value(int(both >> 8))}
                             : e4m3_pair(both);
    return {__fmul_rn(scale.x, one), __fmul_rn(scale.y, one)};
}
template <ScaleKind kind>
__device__ float2 coded_pair(uint32_t both, float one) {
    static_assert(kIsCoded<kind>);
    const float2 scale = kind == ScaleKind::kE8M0 ? e8m0_pair(both) : e4m3_pair(both);
    return {__fmul_rn(scale.x, one), __fmul_rn(scale.y, one)};
}

// The same from shared memory, where they may be f32 too.
template <ScaleKind kind>
__device__ float2 scale_pair(uint32_t address) {
    static_assert(kind != ScaleKind::kNested && !kIsCoded<kind>);
    if constexpr (kind == ScaleKind::kF32) {
        const uint2 both = shared_load_8(address);
        return {__uint_as_float(both.x), __uint_as_float(both.y)};
    } else {
        return scale_pair_of<kind>(shared_load_4(address));
    }
}
// As numbers of x's type.
template <class T, ScaleKind kind>
__device__ uint32_t scale_pair_as(uint32_t address) {
    constexpr bool kSame = kind == (std::is_same_v<T, F16> ? ScaleKind::kF16 : ScaleKind::kBF16);
    if constexpr (kSame) return shared_load_4(address);
    const float2 v = scale_pair<kind>(address);
    return pack_pair(T{}, v.x, v.y);
}

// Operands of 16 columns times the scales of rows r and r + 8, each twice in a register.
template <class T>
__device__ void scale_step(uint32_t (&a)[4], const uint32_t (&both)[2]) {
    using Pair = typename T::Pair;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Pair c = __hmul2(*reinterpret_cast<const Pair *>(&a[i]),
                               *reinterpret_cast<const Pair *>(&both[i & 1]));
        a[i] = *reinterpret_cast<const uint32_t *>(&c);
    }
}
template <class T>
__device__ void scale_step(uint32_t (&a)[4], uint32_t pair) {
    scale_step<T>(a, {__byte_perm(pair, 0, 0x1010), __byte_perm(pair, 0, 0x3232)});
}
// The same where ptxas sees that it is a half twice: a product takes it from the pair.
template <class T>
__device__ void scale_by_halves(uint32_t (&a)[4], uint32_t pair) {
    using Pair = typename T::Pair;
    const Pair both = *reinterpret_cast<const Pair *>(&pair);
    const Pair low = {both.x, both.x}, high = {both.y, both.y};
    scale_step<T>(
        a, {*reinterpret_cast<const uint32_t *>(&low), *reinterpret_cast<const uint32_t *>(&high)});
}
#endif

}  // namespace
}  // namespace qk::cuda

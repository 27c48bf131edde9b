// 8-bit codes as operands of products: what the kernels for them in this folder share.
#pragma once
#include "cuda/prim/copy.cuh"
#include "cuda/tile/lut8.cuh"
#include "format/codebook.hpp"

namespace qk::cuda {
namespace {

// Four codes as the registers of two products with x in the order of columns. kFinite: every code
// is that of a number.
//
// Signed: 1024 + u has u in the lowest bits of a half; u is the code plus 128. bf16 has room for 7
// bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <class T>
struct SignedBytes;

template <>
struct SignedBytes<F16> {
    static constexpr int kTerms = 1;
    static constexpr bool kFinite = true;
    static __device__ void decode(uint32_t word, uint32_t, const uint8_t *, uint32_t (&to)[2]) {
        const uint32_t u = word ^ 0x80808080u;
        to[0] = subtract_f16(byte_permute(u, 0x64646464u, 0x4140u), 0x64806480u);
        to[1] = subtract_f16(byte_permute(u, 0x64646464u, 0x4342u), 0x64806480u);
    }
};

template <>
struct SignedBytes<BF16> {
    static constexpr int kTerms = 1;
    static constexpr bool kFinite = true;
    static __device__ void decode(uint32_t word, uint32_t, const uint8_t *, uint32_t (&to)[2]) {
        const uint32_t lower = word & 0x7f7f7f7fu, sign = word & 0x80808080u;
        to[0] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4140u),
                              byte_permute(sign, 0x43434343u, 0x4140u));
        to[1] = subtract_bf16(byte_permute(lower, 0x43434343u, 0x4342u),
                              byte_permute(sign, 0x43434343u, 0x4342u));
    }
};

// E4M3 without a table.
template <class T>
struct E4m3Bytes {
    static constexpr int kTerms = 1;
    static constexpr bool kFinite = false;
    static __device__ void decode(uint32_t word, uint32_t, const uint8_t *, uint32_t (&to)[2]) {
        to[0] = pair_of_e4m3(T{}, word);
        to[1] = pair_of_e4m3(T{}, word >> 16);
    }
};

// Kernels with a table have no static shared memory, so their dynamic part starts here, with the
// table; addresses are constants in the instructions (tile/ring.cuh). Simulated threads have a
// pointer to it instead.
constexpr uint32_t kBytesStart = 1024, kByteTable = 32 * 1024;

// Entries of a table: two terms of 16 bits in a word, in shared memory 32 times, once for each
// bank. Entry b of lane l is at byte 256 (b mod 128) + 128 (b / 128) + 4 l; a permute makes that
// of the lower bits of a code and, in another word, its top bit beside the lane. An entry's word is
// an operand as it is: its terms are two columns, and x is there twice.
template <class T>
struct TableBytes {
    static constexpr int kTerms = 2;
    static constexpr bool kFinite = false;

    static __device__ uint32_t look_up(uint32_t at, const uint8_t *table) {
        uint32_t value;
#if defined(QK_CUDA_SIMULATED)
        value = *reinterpret_cast<const uint32_t *>(table + at);
#else
        asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(value) : "r"(at), "n"(kBytesStart));
#endif
        return value;
    }
    // `lanes`: this one's place in an entry, in every byte.
    static __device__ void decode(uint32_t word, uint32_t lanes, const uint8_t *table,
                                  uint32_t (&to)[4]) {
        const uint32_t lower = word & 0x7f7f7f7fu, upper = (word & 0x80808080u) | lanes;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            to[i] = look_up(byte_permute(lower, upper, 0x8804u + 0x1111u * i), table);
        }
    }
};

__device__ inline bool is_finite(uint32_t bits) { return (bits & 0x7fffffffu) < 0x7f800000u; }

// The number of an entry that is a number; 0 where there is none. By whole warps.
__device__ inline uint32_t finite_code(const LaneEntries &entries) {
    uint32_t code = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        code = is_finite(entries.bits[i]) ? i * 32 + threadIdx.x % 32 : code;
    }
    return warp_max(code);
}

// An entry as its two terms; their unit, which sums are multiplied by; whether they are the entry
// to 2^-17 of it.
struct TwoTerms {
    uint32_t word;
    bool fits;
};

__device__ inline TwoTerms two_terms(F16, float entry, float unit) {
    // The inverse of a power of two, so exactly a quotient.
    const float inverse = __uint_as_float((254u << 23) - __float_as_uint(unit));
    const float scaled = __fmul_rn(entry, inverse);
    const __half first = __float2half_rn(scaled);
    const float rest = isfinite(scaled) ? __fadd_rn(scaled, -__half2float(first)) : 0.0f;
    const __half second = __float2half_rn(rest);
    const float back = __fmul_rn(__fadd_rn(__half2float(first), __half2float(second)), unit);
    const bool fits = !isfinite(entry) || fabsf(__fadd_rn(entry, -back)) <= fabsf(entry) * 0x1p-17f;
    return {uint32_t(__half_as_ushort(second)) << 16 | __half_as_ushort(first), fits};
}
__device__ inline TwoTerms two_terms(BF16, float entry, float) {
    __nv_bfloat16 first = __float2bfloat16_rn(entry);
    if (isinf(__bfloat162float(first)) && !isinf(entry)) first = __float2bfloat16_rz(entry);
    const float rest = isfinite(entry) ? __fadd_rn(entry, -__bfloat162float(first)) : 0.0f;
    const __nv_bfloat16 second = __float2bfloat16_rn(rest);
    return {uint32_t(__bfloat16_as_ushort(second)) << 16 | __bfloat16_as_ushort(first), true};
}

// By the 512 threads of a block, with entry threadIdx.x / 2 each; ends with a barrier. False where
// two terms are not exact enough, or where no entry is a number. Lanes side by side store at banks
// of their own.
template <class T>
__device__ bool fill_table(const LaneEntries &entries, float entry, float unit, uint8_t *table) {
    const uint32_t b = threadIdx.x / 2;
    const TwoTerms of = two_terms(T{}, entry, unit);
    const uint32_t to = b % 128 * 256 + b / 128 * 128 + threadIdx.x % 2 * 64;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t at = to + (i + b) % 4 * 16;
        const uint4 words = {of.word, of.word, of.word, of.word};
#if defined(QK_CUDA_SIMULATED)
        *reinterpret_cast<uint4 *>(table + at) = words;
#else
        shared_store_16(kBytesStart + at, words);
#endif
    }
    bool own = false;  // finite, of the lane's entries
#pragma unroll
    for (const uint32_t bits : entries.bits) own |= is_finite(bits);
    const bool any = __any_sync(~0u, own) != 0;
    return __syncthreads_and(of.fits && any) != 0;
}

}  // namespace
}  // namespace qk::cuda

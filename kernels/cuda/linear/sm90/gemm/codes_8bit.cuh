// 8-bit codes as operands of the matrix kernels (linear/sm90/gemm/source_8bit.cuh). A lane has two
// words: of codes of columns 2 t, 2 t + 1 of 16, and of columns 8 + 2 t, 9 + 2 t, either in the
// lower halves or (odd lanes) in the upper ones. Each becomes a pair of numbers.
#pragma once
#include "cuda/linear/sm90/gemm/shape.cuh"
#include "cuda/tile/lut8.cuh"

namespace qk::cuda {
namespace {

// (word & mask) ^ bits in one instruction: without help both constants are immediates, one each.
__device__ inline uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t bits) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
    return result;
}

// The even bytes of a word as signed numbers, exactly.
//
// f16: 1024 + u has u in its lowest bits (or 32 + u / 32); u is the code plus 128. bf16 has room
// for 7 bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <bool scaled>
__device__ uint32_t signed_numbers(F16, uint32_t bytes) {
    constexpr uint32_t kZero = scaled ? 0x50805080u : 0x64806480u;
    return subtract_f16(and_xor(bytes, 0x00ff00ffu, kZero), kZero);
}
template <bool scaled>
__device__ uint32_t signed_numbers(BF16, uint32_t bytes) {
    return subtract_bf16(and_or(bytes, 0x007f007fu, 0x43004300u),
                         and_or(bytes, 0x00800080u, 0x43004300u));
}

// Signed codes, 6 instructions for four in f16, 8 in bf16. The scales of the large kernel are
// rounded to x's type: f16 lacks the range for small ones, so there a code is 32nds of itself, and
// its scale 32 times as large.
template <class T>
struct DecodeS8 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = 0;

    template <bool scaled>
    static __device__ bool prepare(const WeightView &, uint8_t *, int, int) {
        return true;
    }
    template <bool scaled>
    static __device__ float scale_unit(const WeightView &) {
        return scaled && std::is_same_v<T, F16> ? 32 : 1;
    }

    struct Lane {
        uint32_t pick;
        __device__ explicit Lane(uint32_t) : pick(threadIdx.x & 1 ? 0x7362u : 0x5140u) {}

        template <bool scaled>
        __device__ void decode(uint32_t first, uint32_t second, uint32_t &low,
                               uint32_t &high) const {
            const uint32_t bytes = __byte_perm(first, second, pick);
            low = signed_numbers<scaled>(T{}, bytes);
            high = signed_numbers<scaled>(T{}, bytes >> 8);
        }
    };
};

// Codes as entries of a table, each rounded once to x's type, in units of a power of two that
// scales are multiplied by. Entry b of lane l is at byte 256 b + 4 l (tile/codes.cuh).
template <class T>
struct DecodeLut8 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = kPairTableBytes;

    // Large: entries to 16, so that scales, rounded to f16 as well, are not far from what they
    // were.
    template <bool scaled>
    static __device__ float scale_unit(const WeightView &w) {
        constexpr int kTop = scaled ? 3 : 14;  // exponent
        return std::is_same_v<T, F16> ? table_unit<kTop>(w.table) : 1;
    }

    static __device__ uint32_t number(F16, float entry) {
        return __half_as_ushort(__float2half_rn(entry));
    }
    static __device__ uint32_t number(BF16, float entry) {
        __nv_bfloat16 v = __float2bfloat16_rn(entry);
        if (isinf(__bfloat162float(v)) && !isinf(entry)) v = __float2bfloat16_rz(entry);
        return __bfloat16_as_ushort(v);
    }
    // In f16 an entry far below the largest has few digits; the large kernel's bound allows that.
    // What is past k is code 0 times zeros, so its entry must be finite.
    template <bool scaled>
    static __device__ bool fits(int code, float entry, float unit) {
        if (!isfinite(entry)) return code > 0;
        if (scaled || std::is_same_v<T, BF16>) return true;
        const float back = __fmul_rn(__half2float(__float2half_rn(__fdiv_rn(entry, unit))), unit);
        return fabsf(__fadd_rn(entry, -back)) <= fabsf(entry) * 0x1p-11f;
    }

    // By `threads` threads, whole warps; whether all entries fit.
    template <bool scaled>
    static __device__ bool prepare(const WeightView &w, uint8_t *table, int thread, int threads) {
        const float unit = scale_unit<scaled>(w);
        const auto *const entries = reinterpret_cast<const float *>(w.table);
        bool all = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int code = thread % 32 + i * 32;
            all = all && fits<scaled>(code, __ldg(entries + code), unit);
        }
        for (int i = thread; i < 256 * 8; i += threads) {
            const uint32_t v = number(T{}, __fdiv_rn(__ldg(entries + i / 8), unit));
            *reinterpret_cast<uint4 *>(table + i / 8 * 256 + i % 8 * 16) = {v, v, v, v};
        }
        return __all_sync(~0u, all);
    }

    // Byte 0 of an address: the lane's bank; byte 1: the code; bytes 2, 3: zeros of `bank`.
    struct Lane {
        uint32_t table, bank, select[2];
        __device__ explicit Lane(uint32_t at)
            : table(at), bank((threadIdx.x & 31) * 4), select{threadIdx.x & 1 ? 0x5524u : 0x5504u,
                                                              threadIdx.x & 1 ? 0x5534u : 0x5514u} {
        }

        __device__ uint32_t pair(uint32_t word) const {
            const uint32_t first = shared_load_4(table + __byte_perm(word, bank, select[0]));
            const uint32_t second = shared_load_4(table + __byte_perm(word, bank, select[1]));
            return __byte_perm(first, second, 0x5410);
        }
        template <bool scaled>
        __device__ void decode(uint32_t first, uint32_t second, uint32_t &low,
                               uint32_t &high) const {
            low = pair(first);
            high = pair(second);
        }
    };
};

}  // namespace
}  // namespace qk::cuda

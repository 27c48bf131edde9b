// Words of 8 codes as matrix operands in the kernels of packed tiles (codes.cuh says how), zero
// points subtracted.
//
// Shared memory is addressed absolutely: these kernels have no static shared memory, so their
// dynamic part starts at kSharedStart or (on other architectures) below. Addresses become constants
// in the instructions; a look-up would need an addition for each load otherwise.
#pragma once
#include <type_traits>

#include "cuda/prim/copy.cuh"
#include "cuda/tile/codes.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr size_t kPairTableBytes = 256 * 256;
constexpr uint32_t kTableBytes = kTableWords * 4;
constexpr uint32_t kSharedStart = 1024;

// What to subtract for a group's zero points, of row r (low nibbles) and of row r + 8 (high).
struct Zeros {
    uint32_t low, high;
};

template <class T>
struct DecodeU4 : U4<T> {
    static __device__ void prepare(const WeightView &, uint8_t *) {}
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

// The table in 64 KiB: entry b of lane l is at byte 256 b + 4 l, one prmt builds the address.
template <class T>
struct DecodeLut4 {
    static constexpr bool kLut4 = true;

    // Every thread of the block calls it, or some of them with a number below `threads` each; a
    // barrier must follow.
    static __device__ void prepare(const WeightView &w, uint8_t *table) {
        prepare(w, table, int(threadIdx.x), int(blockDim.x));
    }
    static __device__ void prepare(const WeightView &w, uint8_t *table, int thread, int threads) {
        constexpr int kVectors = 8;  // of 16 bytes, 32 copies of an entry
        for (int i = thread; i < 256 * kVectors; i += threads) {
            const int byte = i / kVectors;
            const uint32_t entry = pack_pair(T{}, w.entries[byte & 15], w.entries[byte >> 4]);
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

// The table in 32 KiB (codes.cuh), at a fixed address.
template <class T, uint32_t kTable>
struct DecodeTable {
    static constexpr bool kLut4 = true;

    // By `threads` threads, whole warps; a barrier must follow. `own`: what addresses of a block's
    // memory begin with in a cluster.
    static __device__ void prepare(const float (&entries)[16], uint32_t threads, uint32_t own = 0) {
        prepare_own(entries[threadIdx.x & 15], threads, own);
    }
    // `mine`: the entry of this thread's number mod 16.
    static __device__ void prepare_own(float mine, uint32_t threads, uint32_t own = 0) {
        const uint32_t both = pack_pair(T{}, mine, mine);
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

template <class T>
struct RingU4 : DecodeU4<T> {
    static __device__ void prepare(const float (&)[16], uint32_t, uint32_t = 0) {}
    static __device__ uint32_t lanes() { return 0; }
    static __device__ void decode(uint32_t word, const Zeros &zeros, uint32_t, uint32_t (&a)[4]) {
        DecodeU4<T>::decode(word, zeros, 0, 0, a);
    }
};
template <class T>
using RingLut4 = DecodeTable<T, kSharedStart>;

}  // namespace
}  // namespace qk::cuda

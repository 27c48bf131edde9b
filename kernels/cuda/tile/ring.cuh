// What the kernels on a ring of stages share (linear/sm90/few_rows, linear/sm90/some_rows): a
// packed weight as stages in shared memory, filled by one thread of a warp of its own and read by
// the others. So a stage is two or three bulk copies, and the warps that multiply spend no
// instruction on addresses of global memory. Each slot has two barriers: a full one that counts
// bytes in, an empty one that counts readers out.
#pragma once
#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/tile/problem.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kRingWarps = 16;  // that multiply; one more issues the copies
constexpr int32_t kRingThreads = (kRingWarps + 1) * 32;
// Between the first copies of a block. Memory does not serve requests strictly in turn: the first
// round is spread over time, so that its first stage is there well before its last.
constexpr int64_t kIssueClocks = 600;

// A place in the ring; the parity of its round starts at 0.
template <uint32_t slots>
struct Slot {
    uint32_t index = 0, parity = 0;

    __device__ void advance() {
        if (++index == slots) {
            index = 0;
            parity ^= 1;
        }
    }
};

// Zeros of 8 in every slot, for weights without a plane of zeros: nothing overwrites them. By all
// threads that multiply, as the next two.
template <class Map>
__device__ void fill_zeros() {
#pragma unroll 1
    for (uint32_t slot = 0; slot < Map::kSlots; ++slot) {
        const uint32_t to = Map::kRing + slot * Map::kStage + Map::kZeroAt;
        constexpr uint32_t kWords = kRingWarps * Map::kChunkZeros / 4;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < kWords; i += kRingWarps * 32) {
            shared_store_4(to + i * 4, 0x88888888u);
        }
    }
}

// Under way until copies_wait.
template <class Map, class Problem>
__device__ void fill_scale_codes(const Problem &p, uint32_t to = Map::kScaleCodes) {
    for (uint32_t i = threadIdx.x; i < 256; i += kRingWarps * 32) {
        copy_word(to + i * 4, p.scale_code + i);
    }
}

// Nested scales: the second scales of a block's rows, those from number `first` on; they come in as
// the codes do.
template <class Map>
struct Seconds {
    uint32_t at, first, codes = Map::kScaleCodes;

    template <class Problem>
    __device__ void fill(const Problem &p, Run rows) {
        const uint32_t end = uint32_t(min64(int64_t(rows.last) * 16, p.n)) * p.groups;
        first = uint32_t(rows.first) * 16 * p.groups >> p.second_shift;
        const uint32_t last = (end - 1) >> p.second_shift;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i <= last - first; i += kRingWarps * 32) {
            copy_word(at + i * 4, p.second + first + i);
        }
    }

    // The scale of a group of a row of this block, by its number in w; past the end of w the
    // result is arbitrary. `code`: its 8-bit code.
    template <class Problem>
    __device__ float scale(const Problem &p, uint32_t code, uint32_t number, float bias) const {
        const uint32_t second = shared_load_4(at + ((number >> p.second_shift) - first) * 4);
        const uint32_t value = shared_load_4(codes + code * 4);
        return nested_scale(__uint_as_float(value), __uint_as_float(second), bias);
    }
    // Those of `row` and row + 8, none after `last`, which is in w, whose codes are in `both`.
    template <class Problem>
    __device__ float2 scales(const Problem &p, uint32_t both, int64_t row, int64_t last,
                             int32_t group, float bias) const {
        const auto of_row = [&](uint32_t code, int64_t r) {
            const uint32_t number = uint32_t(min64(r, last)) * p.groups + uint32_t(group);
            return scale(p, code, number, bias);
        };
        return {of_row(both & 255, row), of_row(both >> 8, row + 8)};
    }
};

// By the warp that issues the copies: it does not wait for the others.
__device__ inline void announce_barriers() {
    asm volatile("bar.arrive 0, %0;" ::"n"(kRingThreads) : "memory");
}

__device__ inline void wait_for_all() {
    asm volatile("bar.sync 0, %0;" ::"n"(kRingThreads) : "memory");
}

__device__ inline void wait_for_consumers() {
    asm volatile("bar.sync 1, %0;" ::"n"(kRingWarps * 32) : "memory");
}

}  // namespace
}  // namespace qk::cuda

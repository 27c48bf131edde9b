// What the kernels for sm_90 and later share (linear/sm90/gemv/gemv.cu): a packed weight as
// a ring of stages in shared memory, filled by one thread and read by the other warps.
//
//     row of tiles    |  chunk 0  |  chunk 1  | ... | chunk 15 || chunk 16 | ...      16 rows of w
//                     |<------------- stage ------------------>|
//     warp                  0           1              15           0
//
// A chunk is 16 rows x 256 columns: 2 KiB of contiguous codes, and so are the codes, the
// scales and the zeros of all chunks of a stage. So a stage of 32 KiB is two or three bulk copies,
// and the warps spend no instruction on addresses of global memory. A full barrier a slot counts
// bytes in, an empty one counts warps out.
#pragma once
#include "cuda/tile/ring_plan.hpp"
#include "cuda/conditions.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/tile/output.cuh"
#include "cuda/tile/problem.hpp"
#include "cuda/tile/scale.cuh"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kRingThreads = (kRingWarps + 1) * 32;
constexpr int64_t kIssueClocks = 600;  // between the first copies of a block

struct RingProblem : TilesProblem {
    uint32_t second_bytes;  // nested: of the second scales of a block's rows, at most
    RingPlan plan;
};

// The map of shared memory: [table] [slots] [scale codes] [barriers] and then what the
// kernel adds. kGroupTiles: tiles of 64 columns a group.
template <class Decode, ScaleKind kind, int kGroupTiles, int kDepth>
struct RingMap {
    static constexpr uint32_t kSlots = kDepth;
    static constexpr uint32_t kChunkBytes = kChunkTiles * 512;
    static constexpr uint32_t kGroups = kChunkTiles / kGroupTiles;  // of a chunk
    static constexpr uint32_t kGroupScales = 8 * kPairBytes<kind>;
    static constexpr uint32_t kChunkScales = kGroups * kGroupScales;
    static constexpr uint32_t kChunkZeros = Decode::kLut4 ? 0 : kGroups * 8;
    static constexpr uint32_t kScaleAt = kRingWarps * kChunkBytes;
    static constexpr uint32_t kZeroAt = kScaleAt + kRingWarps * kChunkScales;
    static constexpr uint32_t kStage = (kZeroAt + kRingWarps * kChunkZeros + 127) / 128 * 128;

    static constexpr uint32_t kTable = kSharedStart;
    static constexpr uint32_t kRing = kTable + (Decode::kLut4 ? kTableBytes : 0);
    static constexpr uint32_t kScaleCodes = kRing + kDepth * kStage;
    static constexpr uint32_t kBarriers = kScaleCodes + (kind == ScaleKind::kNested ? 256 * 4 : 0);
    static constexpr uint32_t kEnd = kBarriers + kDepth * 16;
    QK_HD static constexpr uint32_t full(uint32_t slot) { return kBarriers + slot * 16; }
    QK_HD static constexpr uint32_t empty(uint32_t slot) { return full(slot) + 8; }
};

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

// The thread that issues the stages of a block, row of tiles by row of tiles: contiguous memory.
template <class Map>
struct Producer {
    const RingProblem &p;
    const uint8_t *codes, *scale, *zero;  // of the next stage
    int32_t chunk = 0;                    // of its row of tiles
    int32_t left;                         // stages
    Slot<Map::kSlots> slot;

    __device__ Producer(const RingProblem &problem, Run run) : p(problem) {
        const int64_t first = int64_t(run.first) * p.plan.chunks;
        codes = p.codes + first * Map::kChunkBytes;
        scale = p.scale + first * Map::kChunkScales;
        zero = p.zero == nullptr ? nullptr : p.zero + first * Map::kChunkZeros;
        left = (run.last - run.first) * p.plan.row_stages;
    }
    __device__ void init_barriers() const {
        for (uint32_t i = 0; i < Map::kSlots; ++i) {
            barrier_init(Map::full(i), 1);
            barrier_init(Map::empty(i), kRingWarps);
        }
        barrier_init_fence();
    }
    __device__ void issue() {
        const uint32_t count = uint32_t(min(kRingWarps, p.plan.chunks - chunk));
        const uint32_t to = Map::kRing + slot.index * Map::kStage, full = Map::full(slot.index);
        const bool zeros = Map::kChunkZeros != 0 && zero != nullptr;
        barrier_expect(
            full, count * (Map::kChunkBytes + Map::kChunkScales + (zeros ? Map::kChunkZeros : 0)));
        copy_bulk(to, codes, count * Map::kChunkBytes, full);
        copy_bulk(to + Map::kScaleAt, scale, count * Map::kChunkScales, full);
        if (zeros) copy_bulk(to + Map::kZeroAt, zero, count * Map::kChunkZeros, full);
        const auto chunks = int64_t(int32_t(count));
        codes += chunks * Map::kChunkBytes;
        scale += chunks * Map::kChunkScales;
        if (zeros) zero += chunks * Map::kChunkZeros;
        chunk = chunk + kRingWarps < p.plan.chunks ? chunk + kRingWarps : 0;
        slot.advance();
        --left;
    }
    // Everything but the first stage. Memory does not serve requests strictly in turn: the
    // first round is spread over time, so that its first stage is there well before its last.
    __device__ void issue_rest() {
#pragma unroll 1
        for (uint32_t i = 1; i < Map::kSlots && left > 0; ++i) {
            const int64_t start = clock64();
            while (clock64() - start < kIssueClocks) continue;
            issue();
        }
#pragma unroll 1
        while (left > 0) {
            barrier_wait(Map::empty(slot.index), slot.parity ^ 1);
            issue();
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
    // The scale of `row` and `group`, whose 8-bit code is `code`.
    template <class Problem>
    __device__ float scale(const Problem &p, uint32_t code, int64_t row, int32_t group,
                           float bias) const {
        const uint32_t number = uint32_t(min64(row, p.n - 1)) * p.groups + uint32_t(group);
        const uint32_t second = shared_load_4(at + ((number >> p.second_shift) - first) * 4);
        const uint32_t value = shared_load_4(codes + code * 4);
        return nested_scale(__uint_as_float(value), __uint_as_float(second), bias);
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

// The host side: what every kernel on the ring asks of a problem.

inline uint32_t second_bytes(const Weight &w, const RingPlan &plan) {
    if (w.scale.second_group == 0) return 0;
    const int64_t rows = int64_t(plan.rows.each + 1) * 16;
    return uint32_t(rows * w.geometry.groups_per_row / w.scale.second_group + 2) * 4;
}

inline bool fits_ring(const LinearArgs &args, const Device &device) {
    const Weight &w = args.w;
    if (is_dense(*w.format)) return false;
    const Geometry &s = w.geometry;
    const bool packed = w.layout->id == kLayoutTiles || w.layout->id == kLayoutTilesPairs;
    const int64_t second = w.scale.second_group;
    const bool groups = s.groups_per_row * 64 == s.k || s.groups_per_row * 128 == s.k;
    return packed && !s.flat && groups && s.k % kChunkColumns == 0 && s.k < (int64_t{1} << 24) &&
           power_of_two(second) && s.group_count < (int64_t{1} << 32) &&
           ceil_div(s.n, 16) <= 2147483647 && args.x.format->id != QK_FORMAT_F32 &&
           aligned(args.x.data) && aligned(w.data) && aligned(w.scale.data) && aligned(w.zero) &&
           aligned(w.scale.second) && aligned(w.scale.code) && aligned(w.scale.bias) &&
           device.capability >= 90;
}

}  // namespace
}  // namespace qk::cuda

// What a warp of the kernel of transposed products of few rows (linear/transposed_rows.cu) does:
// how its stacks of tiles come to it, and what it adds up of them.
#pragma once
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_rows_plan.hpp"
#include "cuda/prim/tensor_copy.cuh"

namespace qk::cuda {
namespace {

struct StripProblem : TransposedView {
    CUtensorMap code_map, x_map;  // boxes of a stack: its tiles, and all of x that meets them
    StripPlan plan;
};

// A warp's sums: of 64 columns and 8 rows of x, columns apart by banks.
using StripSums = float[8][kStripColumns + 4];
// What blocks of a cluster send each other: of each 32 sums, one of every block.
using StripMail = float[kStripWarps + kMaxSplit][32];

// One of two stages, which hold a stack for every warp: boxes of codes and of x, as the copy engine
// swizzles lines of 128 bytes; the rest, which is scales, second scales and zeros of the tiles'
// groups; barriers. kX: 8 rows of x each.
template <ScaleKind kind, bool lut4, int kX>
struct StageMap {
    static constexpr int kHalves = kStackTiles / 2;           // of two tiles
    static constexpr uint32_t kPairs = 8 * kPairBytes<kind>;  // of a group's scales
    static constexpr uint32_t kCodes = kStackTiles * 512, kBoxes = kCodes + kX * 1024;
    static constexpr uint32_t kSeconds = kStackTiles * kPairs;
    static constexpr uint32_t kZeros = kSeconds + (kind == ScaleKind::kNested ? kHalves * 128 : 0);
    static constexpr uint32_t kRest = kZeros + (lut4 ? 0 : kStackTiles * 16);
    static constexpr uint32_t kRests = kStripWarps * kBoxes;
    static constexpr uint32_t kFull = kRests + kStripWarps * kRest;  // whether the boxes are there
    static constexpr uint32_t kPosted = kFull + kStripWarps * 8;     // the same of others' sums
    static constexpr uint32_t kStage = kFull + 1024;
    static_assert(kStage % 1024 == 0);

    static constexpr uint32_t kMade = kStackTiles * 32;  // of a warp's scales in x's type
    static constexpr uint32_t kTable = lut4 ? kTableWords * 4 : 0;
    static constexpr uint32_t kScaleTable = kind == ScaleKind::kNested ? 1024 : 0;
    static constexpr uint32_t kShared = kTable + kScaleTable + 2 * kStage +
                                        kStripWarps * uint32_t(sizeof(StripSums) + kMade) +
                                        2 * uint32_t(sizeof(StripMail));
    static_assert(kShared <= 227 * 1024);
};

// Where things are in a block's memory: at addresses that are constants.
template <class Map>
struct StripRoom {
    uint32_t *const table;
    float *const scale_table;
    uint8_t *const stages;
    StripSums *const sums;
    StripMail *const mail;  // two, in turns
    uint8_t *const made;

    __device__ explicit StripRoom(uint4 *shared)
        : table(reinterpret_cast<uint32_t *>(shared)),
          scale_table(reinterpret_cast<float *>(table + Map::kTable / 4)),
          stages(reinterpret_cast<uint8_t *>(scale_table) + Map::kScaleTable),
          sums(reinterpret_cast<StripSums *>(stages + 2 * Map::kStage)),
          mail(reinterpret_cast<StripMail *>(sums + kStripWarps)),
          made(reinterpret_cast<uint8_t *>(mail + 2)) {}
};

template <class T, class Code, ScaleKind kind, int kX>
struct StripWarp {
    using Map = StageMap<kind, Code::kLut4, kX>;
    using Acc = float[kX][4][4];
    static constexpr int32_t kPieces = int32_t(Map::kPairs) / 16;  // of 16 bytes, of a group
    const StripProblem &p;
    const StripRoom<Map> &room;
    // Places in a stage: of the warp's boxes and of the rest; of what the lane copies there; of a
    // row of a matrix of codes and of x, of the lane's scale and zeros.
    uint32_t boxes, rest, copied, second, place, x_place, stored, zero;
    // Of the scale that the lane makes, and those that it takes; the row of w of the former.
    uint32_t made, taken;
    int32_t scale_row;
    uint32_t full;  // the warp's barrier in the first stage
    float scale_bias = 0;
    int32_t lane, q, g;
    int32_t first, own;  // stacks: the warp's first of a strip, how many of a strip
    // The next stack to be asked for: its strip, its row of tiles, and how many the warp has of the
    // strip from it on.
    int32_t strip, row, more = 0;
    const uint8_t *scales, *zeros;  // of this lane
    uint32_t number = 0;            // of the lane's group among second scales
    int32_t short_row = -1;  // of tiles, the last, where the plane of zeros ends in mid 16 bytes

    __device__ StripWarp(const StripProblem &problem, const StripRoom<Map> &of_block, int warp,
                         uint32_t cluster, uint32_t rank)
        : p(problem), room(of_block), boxes(uint32_t(warp) * Map::kBoxes),
          rest(Map::kRests + uint32_t(warp) * Map::kRest),
          full(shared_address(room.stages) + Map::kFull + uint32_t(warp) * 8),
          lane(int32_t(threadIdx.x % 32)), q(lane % 4), g(lane / 4) {
        copied = rest + uint32_t(lane) * 16;
        second = rest + Map::kSeconds + uint32_t(lane) * 4;
        keep(copied), keep(second);
        const Run of_block_stacks = p.plan.stacks.part(int32_t(rank));
        first = of_block_stacks.first + warp;
        own =
            int32_t(uint32_t(max(of_block_stacks.last - first + kStripWarps - 1, 0)) / kStripWarps);
        strip = int32_t(cluster);
        if (own > 0) find();
        constexpr uint32_t kApart = Map::kPosted - Map::kFull;
        if (lane < 4) barrier_init(full + lane / 2 * Map::kStage + lane % 2 * kApart, 1);
        barrier_init_fence();
        __syncwarp();
    }

    // What is not needed before copies are under way.
    __device__ void settle() {
        const uint32_t r = uint32_t(lane) % 8, i = uint32_t(lane) / 8;
        // Rows of a matrix, lanes (r, i) of one i, are in different banks.
        place = boxes + r / 2 * 128 + (r % 2 * 4 + (i ^ r / 2)) * 16;
        x_place = boxes + Map::kCodes + r * 128 + (i ^ r) * 16;
        const uint32_t of = uint32_t(lane) % 16, tile = uint32_t(lane) / 16;
        stored = rest + tile * Map::kPairs + of * (kPairBytes<kind> / 2);
        zero = rest + Map::kZeros + uint32_t(q) * 2;
        taken = threadIdx.x / 32 * Map::kMade + uint32_t(q) * 8;
        made = threadIdx.x / 32 * Map::kMade + tile * 32 + of / 4 * 8 + of % 2 * 4 + of / 2 % 2 * 2;
        scale_row = row_of_scale();
        keep(place), keep(x_place), keep(stored), keep(zero), keep(taken), keep(made);
        keep(scale_row);
        if constexpr (!Code::kLut4) {
            if (p.w.zero == nullptr && lane < kStackTiles) store_middle_zeros();
        }
    }

    // All zeros are 8 where the weight has none: its codes are signed.
    __device__ void store_middle_zeros() {
        for (uint32_t stage = 0; stage < 2 * Map::kStage; stage += Map::kStage) {
            uint8_t *const at = room.stages + stage + copied + Map::kZeros;
            *reinterpret_cast<uint4 *>(at) = {0x88888888u, 0x88888888u, 0x88888888u, 0x88888888u};
        }
    }

    __device__ int32_t row_of_scale() const {
        return lane / 16 * 16 + lane % 16 / 2 + lane % 2 * 8;
    }

    // The warp's first stack of the strip: what boxes need, which are asked for before the rest.
    __device__ void find() { row = first * kStackTiles, more = own; }
    __device__ void find_rest() {
        const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
        const uint32_t group = uint32_t(strip * int32_t(kStripColumns)) >> p.group_shift;
        const auto at = [&](int32_t each) {  // of the tile that the lane copies something of
            return uint32_t(row + lane / each % kStackTiles) * groups + group;
        };
        scales = p.w.scale + uint64_t(at(kPieces)) * Map::kPairs + lane % kPieces * 16;
        if constexpr (!Code::kLut4) {  // 16 bytes are those of two groups
            zeros = p.w.zero + uint64_t(at(1) / 2) * 16;
            const uint32_t last = uint32_t(p.row_tiles) * groups - 1;
            short_row = group + 1 == groups && last % 2 == 0 ? p.row_tiles - 1 : -1;
        }
        if constexpr (kind == ScaleKind::kNested) {
            number = uint32_t(row * 16 + row_of_scale()) * groups + group;
        }
    }

    // Asks for the next stack, which goes to stage `to`.
    __device__ void issue(uint32_t to) {
        if (more > 0) {
            copy_boxes(to);
            if (more == own) find_rest();
            copy_rest(room.stages + to);
            const int64_t groups = p.w.geometry.groups_per_row;
            constexpr int kDown = kStripWarps * kStackTiles;  // rows of tiles to the next stack
            scales += groups * int64_t(Map::kPairs) * kDown;
            if constexpr (!Code::kLut4) zeros += groups * 8 * kDown;
            row += kDown;
            if constexpr (kind == ScaleKind::kNested) number += uint32_t(16 * kDown * groups);
            if (--more == 0 && (strip += p.plan.clusters) < p.plan.strips) find();
        }
        copies_commit();
    }

    // Zeros where there are no tiles, no columns of x.
    __device__ void copy_boxes(uint32_t to) const {
        if (elect_one()) {
            const uint32_t at = shared_address(room.stages) + to + boxes, barrier = full + to;
            barrier_expect(barrier, Map::kCodes + uint32_t(p.m) * 128);
            tensor_copy(at, p.code_map, 0, strip * 4, row, barrier);
            tensor_copy(at + Map::kCodes, p.x_map, row * 16, 0, barrier);
        }
        __syncwarp();
    }

    __device__ void copy_rest(uint8_t *to) const {
        const int32_t there = min(p.row_tiles - row, kStackTiles);
        copy_ahead<16>(to + copied, scales, 16, lane < there * kPieces);
        if constexpr (!Code::kLut4) {
            copy_ahead<16>(to + Map::kZeros + copied, zeros, row + lane == short_row ? 8 : 16,
                           p.w.zero != nullptr && lane < there);
        }
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
            const uint32_t last = uint32_t(p.w.geometry.n) * groups - 1;
#pragma unroll
            for (int half = 0; half < Map::kHalves; ++half) {
                const uint32_t of = min(number + uint32_t(half * 32) * groups, last);
                const uint32_t at = p.second_shift < 31 ? of >> p.second_shift : 0;
                copy_ahead<4>(to + half * 128 + second, p.w.second + uint64_t(at) * 4, 4, true);
            }
        }
    }

    // ---- What has arrived

    // Of scale_row, in x's type.
    __device__ uint16_t scale_of(const uint8_t *stage, int half) const {
        const uint8_t *const at = stage + stored + uint32_t(half) * 2 * Map::kPairs;
        constexpr bool kIsF16 = std::is_same_v<T, F16>;
        if constexpr (kind == (kIsF16 ? ScaleKind::kF16 : ScaleKind::kBF16)) {
            return *reinterpret_cast<const uint16_t *>(at);
        }
        float v;
        if constexpr (kind == ScaleKind::kF32) {
            v = *reinterpret_cast<const float *>(at);
        } else if constexpr (kind == ScaleKind::kNested) {
            const auto of_row = *reinterpret_cast<const float *>(stage + half * 128 + second);
            v = nested_scale(room.scale_table[*at], of_row, scale_bias);
        } else {
            const uint16_t bits = *reinterpret_cast<const uint16_t *>(at);
            v = kIsF16 ? __uint_as_float(uint32_t(bits) << 16)
                       : __half2float(__ushort_as_half(bits));
        }
        return uint16_t(pack_pair(T{}, v, 0.0f));
    }

    // Scales of the stack in x's type, for lane q those of rows 2 q, 2 q + 1, 2 q + 8, 2 q + 9.
    // `rows`: of w from the stack's first on; 0 past the last, where the padding may be a NaN.
    __device__ void make_scales(const uint8_t *stage, int32_t rows) const {
#pragma unroll
        for (int half = 0; half < Map::kHalves; ++half) {
            const uint16_t scale = scale_of(stage, half);
            *reinterpret_cast<uint16_t *>(room.made + made + half * 64) =
                half * 32 + scale_row < rows ? scale : 0;
        }
        __syncwarp();
    }

    // A word like any other of codes of rows 2 q, 2 q + 1: its four pairs are of one column, rows
    // as they are and 8 further down, then of another column.
    static __device__ uint32_t word_of(uint32_t v) {
        if constexpr (!Code::kLut4) return v;
        // Nibbles of bytes 0 and 2, 1 and 3 change places crosswise.
        const uint32_t moved = (v >> 12 & 0x0000f0f0u) | (v << 12 & 0x0f0f0000u);
        return (v & 0xf0f00f0fu) | moved;
    }

    // Where zeros of a strip are in the 16 bytes of an even tile and of an odd one.
    struct ZerosAt {
        uint32_t even, odd;
    };
    __device__ ZerosAt zeros_at(int32_t of_strip) const {
        if (Code::kLut4 || p.w.zero == nullptr) return {0, 0};
        const uint32_t group = uint32_t(of_strip * int32_t(kStripColumns)) >> p.group_shift;
        const uint32_t below = group + uint32_t(p.w.geometry.groups_per_row);
        return {group % 2 * 8, below % 2 * 8};
    }

    __device__ void add_stack(const uint8_t *stage, int32_t rows, const ZerosAt &zeros_in,
                              Acc &sum) const {
        make_scales(stage, rows);
        const uint8_t *const scales_made = room.made + taken;
#pragma unroll
        for (int half = 0; half < Map::kHalves; ++half) {
            uint32_t b[kX][4];
#pragma unroll
            for (int block = 0; block < kX; ++block) {
                load_matrices(stage + block * 1024 + (x_place ^ half * 64), b[block]);
            }
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int t = half * 2 + odd;
                uint32_t words[4];
                load_matrices_transposed(stage + t * 512 + (place ^ odd * 64), words);
                Zeros taken_off = {};
                if constexpr (!Code::kLut4) {
                    const uint32_t at = zero + (odd ? zeros_in.odd : zeros_in.even);
                    const uint32_t z = *reinterpret_cast<const uint16_t *>(stage + t * 16 + at);
                    taken_off = Code::zeros_of(byte_permute(z, 0, 0x4140));
                }
                const uint2 scale = *reinterpret_cast<const uint2 *>(scales_made + t * 32);
                add_columns(words, scale, taken_off, b, odd, sum);
            }
        }
    }

    __device__ void add_columns(const uint32_t (&words)[4], const uint2 &scale, const Zeros &zero,
                                const uint32_t (&b)[kX][4], int odd, Acc &sum) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t a[4];
            Code::decode(word_of(words[j]), zero, room.table, a);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                a[c] = multiply_pair<T>(a[c], c % 2 == 0 ? scale.x : scale.y);
            const uint32_t columns[4] = {a[0], a[2], a[1], a[3]};
#pragma unroll
            for (int block = 0; block < kX; ++block) {
                mma_16x8x16<T>(sum[block][j], columns, b[block][odd * 2], b[block][odd * 2 + 1]);
            }
        }
    }

    __device__ void put(const float (&sum)[4][4], StripSums *to_sums) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int32_t column = j * 16 + (Code::kLut4 ? g * 2 : g / 2 * 4 + g % 2);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int32_t other = Code::kLut4 ? 1 : 2;
                (*to_sums)[q * 2 + c % 2][column + c / 2 * other] = sum[j][c];
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda

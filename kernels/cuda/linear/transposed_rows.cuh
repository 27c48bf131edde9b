// What a warp of the kernel of transposed products of few rows (linear/transposed_rows.cu) does:
// its ring of stacks of tiles, and what it adds up of them.
#pragma once
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_rows_plan.hpp"

namespace qk::cuda {
namespace {

struct StripProblem : TransposedView {
    StripPlan plan;
};

// A warp's sums: of 64 columns and 8 rows of x, columns apart by banks.
using StripSums = float[8][kStripColumns + 4];
// What blocks of a cluster send each other: of each 32 sums, one of every block.
using StripMail = float[kStripWarps + kMaxSplit][32];

constexpr uint32_t kStripShared = 225 * 1024;  // of a block, at most

// A stage of a warp's ring: a stack of tiles, x for their rows, scales, second scales and zeros of
// their groups. Of x 8 rows by those of two tiles of w are together. kX: 8 rows of x each.
template <ScaleKind kind, bool lut4, int kX>
struct StageMap {
    static constexpr int kHalves = kStackTiles / 2;           // of two tiles
    static constexpr uint32_t kPairs = 8 * kPairBytes<kind>;  // of a group's scales
    static constexpr uint32_t kX0 = kStackTiles * 512, kScales = kX0 + kX * kHalves * 512;
    static constexpr uint32_t kSeconds = kScales + kStackTiles * kPairs;
    static constexpr uint32_t kZeros = kSeconds + (kind == ScaleKind::kNested ? kHalves * 128 : 0);
    static constexpr uint32_t kBytes = kZeros + (lut4 ? 0 : kStackTiles * 16);
    static constexpr uint32_t kMade = kStackTiles * 32;  // of scales in x's type
    static constexpr uint32_t kTable = lut4 ? kTableWords * 4 : 0;
    static constexpr uint32_t kOthers = kTable + kStripWarps * uint32_t(sizeof(StripSums) + kMade) +
                                        2 * uint32_t(sizeof(StripMail));
    static constexpr int kStages = int(min64((kStripShared - kOthers) / (kStripWarps * kBytes), 5));
    static constexpr uint32_t kRing = kStages * kBytes + kMade;  // scales made behind the stages
    static constexpr uint32_t kShared = kOthers + kStripWarps * kStages * kBytes;
    static_assert(kBytes % 16 == 0 && kStages >= 2);
};

template <class T, class Code, ScaleKind kind, int kX>
struct StripWarp {
    using Map = StageMap<kind, Code::kLut4, kX>;
    using Acc = float[kX][4][4];
    static constexpr int32_t kPieces = int32_t(Map::kPairs) / 16;  // of 16 bytes, of a group
    const StripProblem &p;
    uint8_t *ring;
    // Places in a stage: of the lane's 16 bytes, of a row of a matrix, of its scale; of the scale
    // that it makes. The row of w that this is of.
    uint32_t unit, place, stored, made;
    int32_t scale_row;
    const uint32_t *table;
    const float *scale_table;
    float scale_bias = 0;
    int32_t lane, q, g;
    int32_t first, own;  // stacks: the warp's first of a strip, how many of a strip
    // The next stack to be asked for: its strip, its row of tiles, how many the warp has of the
    // strip from it on, and its stage.
    int32_t strip, row, more = 0;
    uint32_t to = 0;
    const uint8_t *codes, *scales, *zeros, *x;  // of this lane
    int32_t x_left;                             // bytes of the row of x from the lane's on
    uint32_t number = 0;                        // of the lane's group among second scales
    int32_t short_row = -1;  // of tiles, the last, where the plane of zeros ends in mid 16 bytes

    __device__ StripWarp(const StripProblem &problem, uint8_t *shared, const uint32_t *pairs,
                         const float *scale_codes, int warp, uint32_t cluster, uint32_t rank)
        : p(problem), ring(shared + uint32_t(warp) * Map::kRing), table(pairs),
          scale_table(scale_codes), lane(int32_t(threadIdx.x % 32)), q(lane % 4), g(lane / 4) {
        const Run of_block = p.plan.stacks.part(int32_t(rank));
        first = of_block.first + warp;
        own = int32_t(uint32_t(max(of_block.last - first + kStripWarps - 1, 0)) / kStripWarps);
        // Lanes side by side are in different banks.
        unit = uint32_t(lane ^ (lane >> 3 & 3)) * 16;
        keep(unit);
        strip = int32_t(cluster);
        if (own > 0) find();
    }

    // What is not needed before copies are under way.
    __device__ void settle() {
        const int32_t r = lane % 8, i = lane / 8;
        // Rows of a matrix, lanes (r, i) of one i, are in different banks.
        place = uint32_t(r * 4 + (i ^ (r >> 1))) * 16;
        const uint32_t of = uint32_t(lane) % 16, tile = uint32_t(lane) / 16;
        stored = Map::kScales + tile * Map::kPairs + of * (kPairBytes<kind> / 2);
        made = Map::kStages * Map::kBytes + tile * 32 + of / 4 * 8 + of % 2 * 4 + of / 2 % 2 * 2;
        scale_row = row_of_scale();
        keep(place), keep(stored), keep(made), keep(scale_row);
        clear();
    }

    __device__ int32_t row_of_scale() const {
        return lane / 16 * 16 + lane % 16 / 2 + lane % 2 * 8;
    }

    // What no copy fills: rows of x that there are not, zeros that are all 8.
    __device__ void clear() {
        for (int stage = 0; stage < Map::kStages; ++stage) {
            uint8_t *const at = ring + uint32_t(stage) * Map::kBytes;
#pragma unroll
            for (int block = 0; block < kX * Map::kHalves; ++block) {
                if (g + block / Map::kHalves * 8 < p.m) continue;
                *reinterpret_cast<uint4 *>(at + Map::kX0 + block * 512 + unit) = {};
            }
            if (!Code::kLut4 && p.w.zero == nullptr && lane < kStackTiles * 4) {
                reinterpret_cast<uint32_t *>(at + Map::kZeros)[lane] = 0x88888888u;
            }
        }
        __syncwarp();
    }

    // The warp's first stack of the strip: its codes, which are asked for before the rest is known.
    __device__ void find() {
        row = first * kStackTiles, more = own;
        codes = static_cast<const uint8_t *>(p.w.data) + (int64_t(row) * p.tiles + strip) * 512 +
                lane * 16;
    }
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
        x = static_cast<const uint8_t *>(p.x) + int64_t(g) * p.x_stride * 2 + row * 32 + q * 16;
        x_left = (int32_t(p.w.geometry.n) - row * 16 - q * 8) * 2;
        if constexpr (kind == ScaleKind::kNested) {
            number = uint32_t(row * 16 + row_of_scale()) * groups + group;
        }
    }

    __device__ void issue() {
        if (more > 0) {
            copy_codes();
            if (more == own) find_rest();
            copy_rest();
            const int64_t groups = p.w.geometry.groups_per_row;
            constexpr int kDown = kStripWarps * kStackTiles;  // rows of tiles to the next stack
            codes += int64_t(p.tiles) * 512 * kDown;
            scales += groups * int64_t(Map::kPairs) * kDown;
            if constexpr (!Code::kLut4) zeros += groups * 8 * kDown;
            x += 32 * kDown;
            x_left -= 32 * kDown;
            row += kDown;
            if constexpr (kind == ScaleKind::kNested) number += uint32_t(16 * kDown * groups);
            if (--more == 0 && (strip += p.plan.clusters) < p.plan.strips) find();
        }
        copies_commit();
        to = to + Map::kBytes == Map::kStages * Map::kBytes ? 0 : to + Map::kBytes;
    }

    __device__ void copy_codes() const {
        uint8_t *const tile = ring + to + unit;
#pragma unroll
        for (int t = 0; t < kStackTiles; ++t) {
            copy_ahead<16>(tile + t * 512, codes + int64_t(p.tiles) * 512 * t, 16,
                           row + t < p.row_tiles);
        }
    }

    __device__ void copy_rest() const {
        uint8_t *const stage = ring + to;
        uint8_t *const tile = stage + unit;
        const int32_t there = min(p.row_tiles - row, kStackTiles);
#pragma unroll
        for (int block = 0; block < kX * Map::kHalves; ++block) {  // zeros behind the last row of w
            const int half = block % Map::kHalves, eight = block / Map::kHalves;
            const uint8_t *const from = x + eight * 16 * p.x_stride + half * 64;
            copy_ahead<16>(tile + Map::kX0 + block * 512, from,
                           uint32_t(max(min(x_left - half * 64, 16), 0)), g + eight * 8 < p.m);
        }
        copy_ahead<16>(stage + Map::kScales + lane * 16, scales, 16, lane < there * kPieces);
        if constexpr (!Code::kLut4) {
            copy_ahead<16>(stage + Map::kZeros + lane * 16, zeros, row + lane == short_row ? 8 : 16,
                           p.w.zero != nullptr && lane < there);
        }
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
            const uint32_t last = uint32_t(p.w.geometry.n) * groups - 1;
#pragma unroll
            for (int half = 0; half < Map::kHalves; ++half) {
                const uint32_t of = min(number + uint32_t(half * 32) * groups, last);
                const uint32_t at = p.second_shift < 31 ? of >> p.second_shift : 0;
                copy_ahead<4>(stage + Map::kSeconds + half * 128 + lane * 4,
                              p.w.second + uint64_t(at) * 4, 4, true);
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
            const auto *const seconds = stage + Map::kSeconds + half * 128;
            v = nested_scale(scale_table[*at], reinterpret_cast<const float *>(seconds)[lane],
                             scale_bias);
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
            *reinterpret_cast<uint16_t *>(ring + made + half * 64) =
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
        const uint8_t *const scales_made = ring + Map::kStages * Map::kBytes;
#pragma unroll
        for (int half = 0; half < Map::kHalves; ++half) {
            uint32_t b[kX][4];
#pragma unroll
            for (int block = 0; block < kX; ++block) {
                const uint8_t *const of_x = stage + Map::kX0 + block * Map::kHalves * 512;
                load_matrices(of_x + half * 512 + place, b[block]);
            }
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int t = half * 2 + odd;
                uint32_t words[4];
                load_matrices_transposed(stage + t * 512 + place, words);
                Zeros zero = {};
                if constexpr (!Code::kLut4) {
                    const uint32_t at = odd ? zeros_in.odd : zeros_in.even;
                    const uint32_t z = *reinterpret_cast<const uint16_t *>(stage + Map::kZeros +
                                                                           t * 16 + at + q * 2);
                    zero = Code::zeros_of(byte_permute(z, 0, 0x4140));
                }
                const uint2 scale = *reinterpret_cast<const uint2 *>(scales_made + t * 32 + q * 8);
                add_columns(words, scale, zero, b, odd, sum);
            }
        }
    }

    __device__ void add_columns(const uint32_t (&words)[4], const uint2 &scale, const Zeros &zero,
                                const uint32_t (&b)[kX][4], int odd, Acc &sum) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t a[4];
            Code::decode(word_of(words[j]), zero, table, a);
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

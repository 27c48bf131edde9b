// What a warp of the kernel of transposed products of few rows (linear/transposed_rows.cu) does:
// its ring of tiles, and what it adds up of them.
#pragma once
#include "cuda/linear/transposed_rows_plan.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

struct StripProblem : LinearView {
    int32_t row_tiles, tiles;  // tiles: of a row
    int32_t group_shift;       // log2 of group_size
    int32_t second_shift;      // coded scales: log2 of second_group
    int32_t spans;             // groups of a tile: 4 where they are smaller than it, else 1
    StripPlan plan;
    float *sums;  // [blocks][2][m][128 columns]
};

// Of 32 columns and 8 rows of x; columns apart by banks.
using StripSums = float[8][32];

// A stage of a warp's ring: a tile, x for its rows, scales, second scales and zeros of its groups.
template <ScaleKind kind, bool lut4, int kX>
struct StageMap {
    static constexpr int kTiles = tiles_of_warp(kX), kStages = kTiles == 2 ? 5 : 6;
    static constexpr uint32_t kPairs = 8 * kPairBytes<kind>;  // of a group's scales
    static constexpr uint32_t kX0 = 512 * kTiles, kScales = kX0 + kX * 256;
    static constexpr uint32_t kSeconds = kScales + kTiles * 4 * kPairs;
    static constexpr uint32_t kZeros =
        kSeconds + (kind == ScaleKind::kNested ? kTiles * 4 * 64 : 0);
    static constexpr uint32_t kBytes = kZeros + (lut4 ? 0 : kTiles * 4 * 8);
    static constexpr uint32_t kRing = kStages * kBytes;
    static_assert(kBytes % 16 == 0);
};

template <class T, class Code, ScaleKind kind, int kX>
struct StripWarp {
    using Map = StageMap<kind, Code::kLut4, kX>;
    static constexpr int kTiles = Map::kTiles, kXBlocks = kX;
    using Acc = float[kX][kTiles * 4][4];
    static constexpr int32_t kDown = strip_down(kX);               // rows of tiles of a step
    static constexpr int32_t kPieces = int32_t(Map::kPairs) / 16;  // of 16 bytes, of a group
    const StripProblem &p;
    uint8_t *ring;
    const uint32_t *table;
    const float *scale_table;
    int32_t lane, q, g, down, across;
    // The next tile to be asked for, what is left of the run, its steps in this strip and those of
    // them in which the warp has a tile, and the tile's stage.
    int32_t strip, row, left, first_step, steps, own;
    uint32_t to = 0;
    const uint8_t *codes, *scales, *zeros, *x;  // of this lane
    int32_t x_left;  // rows of w from the lane's first one on; none where the row of x is none
    bool second;     // there is another tile beside the first
    uint32_t scales_to, zeros_to, number = 0;  // number: of the lane's group among second scales
    int64_t codes_step, scales_step, zeros_step;

    __device__ StripWarp(const StripProblem &problem, uint8_t *shared, const uint32_t *pairs,
                         const float *scale_codes, int warp)
        : p(problem), ring(shared + uint32_t(warp) * Map::kRing), table(pairs),
          scale_table(scale_codes), lane(int32_t(threadIdx.x) % 32), q(lane % 4), g(lane / 4),
          down(kTiles == 1 ? warp / kStripAcross : warp),
          across(kTiles == 1 ? warp % kStripAcross : 0) {
        const int64_t first = p.plan.first_of(blockIdx.x);
        left = int32_t(p.plan.first_of(blockIdx.x + 1) - first);
        strip = int32_t(first / p.plan.steps);
        first_step = int32_t(first % p.plan.steps);
        row = first_step * kDown + down;
        const int64_t groups = p.w.geometry.groups_per_row;
        codes_step = int64_t(p.tiles) * 512 * kDown;
        scales_step = groups * Map::kPairs * kDown;
        zeros_step = groups * 8 * kDown;
        const int32_t each = kPieces * p.spans, words = 2 * p.spans;
        scales_to = uint32_t(lane / each * 4) * Map::kPairs + uint32_t(lane % each) * 16;
        zeros_to = uint32_t(lane / words * 32 + lane % words * 4);
        clear();
        find();
    }

    // What no copy fills.
    __device__ void clear() {
        for (int stage = 0; stage < Map::kStages; ++stage) {
            auto *const at = reinterpret_cast<uint32_t *>(ring + uint32_t(stage) * Map::kBytes);
#pragma unroll
            for (int i = 0; i < kX * 2; ++i) at[Map::kX0 / 4 + i * 32 + lane] = 0;
            if (!Code::kLut4 && p.w.zero == nullptr && lane < 8) {
                for (int t = 0; t < kTiles; ++t) at[Map::kZeros / 4 + t * 8 + lane] = 0x88888888u;
            }
        }
        __syncwarp();
    }

    // The group of a span of the tile.
    __device__ uint32_t group_of(int32_t t, int32_t span) const {
        const int32_t column = (strip * kStripAcross + across + t) * 64 + span * 16;
        return uint32_t(min(column, int32_t(p.w.geometry.k) - 1)) >> p.group_shift;
    }

    // Tile (row, strip) and those below it.
    __device__ void find() {
        const int32_t tile = strip * kStripAcross + across;
        steps = min(left, p.plan.steps - row / kDown);
        own = tile < p.tiles ? min(steps, tiles_below(row, p.row_tiles)) : 0;
        codes = static_cast<const uint8_t *>(p.w.data) + (int64_t(row) * p.tiles + tile) * 512 +
                lane * 16;
        const uint64_t groups = uint64_t(uint32_t(row)) * uint32_t(p.w.geometry.groups_per_row);
        const int32_t piece = lane % (kPieces * p.spans), word = lane % (2 * p.spans);
        const uint32_t of_scales = group_of(lane / (kPieces * p.spans), piece / kPieces);
        scales = p.w.scale + (groups + of_scales) * Map::kPairs + piece % kPieces * 16;
        zeros = p.w.zero + (groups + group_of(lane / (2 * p.spans), word / 2)) * 8 + word % 2 * 4;
        second = kTiles == 2 && tile + 1 < p.tiles;
        x = static_cast<const uint8_t *>(p.x) + int64_t(g) * p.x_stride * 2 + row * 32 + q * 4;
        if constexpr (kind == ScaleKind::kNested) {
            number =
                (uint32_t(row) * 16 + uint32_t(lane) % 16) * uint32_t(p.w.geometry.groups_per_row) +
                group_of(lane / 16, 0);
        }
        x_left = g < p.m ? int32_t(p.w.geometry.n) - row * 16 - q * 2 : 0;
    }

    // Of a warp, from row of tiles `from` on, in front of `end`.
    static __device__ int32_t tiles_below(int32_t from, int32_t end) {
        return max(end - from + kDown - 1, 0) / kDown;
    }

    __device__ void issue() {
        if (own > 0) copy();
        copies_commit();
        to = to + Map::kBytes == Map::kRing ? 0 : to + Map::kBytes;
        codes += codes_step;
        scales += scales_step;
        if (!Code::kLut4) zeros += zeros_step;
        x += 32 * kDown;
        x_left -= 16 * kDown;
        if constexpr (kind == ScaleKind::kNested) {
            row += kDown;
            number += uint32_t(16 * kDown) * uint32_t(p.w.geometry.groups_per_row);
        }
        --own;
        if (--steps == 0) next_strip();
    }

    __device__ void next_strip() {
        left -= min(left, p.plan.steps - first_step);
        first_step = 0;
        row = down, ++strip;
        find();
    }

    __device__ void copy() const {
        uint8_t *const stage = ring + to;
        // Rows of a matrix, lanes (r, i) of one i, are in different banks, as are lanes side by
        // side.
        copy_ahead<16>(stage + (lane ^ (lane >> 3 & 3)) * 16, codes, 16, true);
        if constexpr (kTiles == 2) {
            copy_ahead<16>(stage + 512 + (lane ^ (lane >> 3 & 3)) * 16, codes + 512, 16, second);
        }
#pragma unroll
        for (int block = 0; block < kX; ++block) {
            const uint8_t *const from = x + block * 16 * p.x_stride;
            const bool has = block == 0 || g + 8 < p.m;
            copy_ahead<4>(stage + Map::kX0 + block * 256 + lane * 4, from, 4, has && x_left > 0);
            copy_ahead<4>(stage + Map::kX0 + block * 256 + 128 + lane * 4, from + 16, 4,
                          has && x_left > 8);
        }
        copy_ahead<16>(stage + Map::kScales + scales_to, scales, 16,
                       lane < kPieces * p.spans * kTiles);
        if constexpr (!Code::kLut4) {
            copy_ahead<4>(stage + Map::kZeros + zeros_to, zeros, 4,
                          p.w.zero != nullptr && lane < 2 * p.spans * kTiles);
        }
        if constexpr (kind == ScaleKind::kNested) copy_seconds(stage + Map::kSeconds);
    }

    __device__ void copy_seconds(uint8_t *stage) const {
        const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
        if (p.spans == 1) {
            const uint32_t last = uint32_t(p.w.geometry.n) * groups - 1;
            const uint32_t at = p.second_shift < 31 ? min(number, last) >> p.second_shift : 0;
            copy_ahead<4>(stage + lane / 16 * 256 + lane % 16 * 4, p.w.second + uint64_t(at) * 4, 4,
                          lane < 16 * kTiles);
            return;
        }
        const uint32_t of = uint32_t(min(row * 16 + lane % 16, int32_t(p.w.geometry.n) - 1));
        for (int32_t i = lane / 16; i < p.spans * kTiles; i += 2) {
            const int32_t t = i / p.spans, span = i % p.spans;
            const uint32_t number = of * groups + group_of(t, span);
            const uint32_t at = p.second_shift < 31 ? number >> p.second_shift : 0;
            copy_ahead<4>(stage + ((t * 4 + span) * 16 + lane % 16) * 4,
                          p.w.second + uint64_t(at) * 4, 4, true);
        }
    }

    // Rows 2 q, 2 q + 8, 2 q + 1, 2 q + 9.
    __device__ void scales_of(const uint8_t *stage, int span, float (&to)[4]) const {
        const uint8_t *const at =
            stage + Map::kScales + uint32_t(span) * Map::kPairs + q * 2 * kPairBytes<kind>;
        if constexpr (kind == ScaleKind::kF32) {
            const uint4 v = *reinterpret_cast<const uint4 *>(at);
            to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y);
            to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
        } else if constexpr (kind == ScaleKind::kNested) {
            const uint32_t codes = *reinterpret_cast<const uint32_t *>(at);
            const auto *const seconds =
                reinterpret_cast<const float *>(stage + Map::kSeconds) + span * 16 + q * 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[i] = nested_scale(scale_table[codes >> 8 * i & 255], seconds[i / 2 + i % 2 * 8],
                                     scale_table[256]);
            }
        } else {
            const uint2 v = *reinterpret_cast<const uint2 *>(at);
            half_pair(v.x, to[0], to[1]);
            half_pair(v.y, to[2], to[3]);
        }
    }
    static __device__ void half_pair(uint32_t both, float &low, float &high) {
        if constexpr (kind == ScaleKind::kBF16) {
            low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xffff0000u);
        } else {
            low = __half2float(__ushort_as_half(uint16_t(both)));
            high = __half2float(__ushort_as_half(uint16_t(both >> 16)));
        }
    }

    // Of rows 2 q and 2 q + 1, and those 8 further down, in x's type; `ends`: 0 past the last row,
    // where the padding may be a NaN.
    template <bool ends>
    __device__ void pair_scales(const uint8_t *stage, int span, int32_t rows,
                                uint32_t (&to)[2]) const {
        constexpr bool kSame =
            kind == (std::is_same_v<T, F16> ? ScaleKind::kF16 : ScaleKind::kBF16);
        if constexpr (kSame && !ends) {
            const uint2 v = *reinterpret_cast<const uint2 *>(
                stage + Map::kScales + uint32_t(span) * Map::kPairs + q * 2 * kPairBytes<kind>);
            to[0] = byte_permute(v.x, v.y, 0x5410), to[1] = byte_permute(v.x, v.y, 0x7632);
            return;
        }
        float scale[4];
        scales_of(stage, span, scale);
#pragma unroll
        for (int i = 0; ends && i < 4; ++i) {
            if (q * 2 + i / 2 + i % 2 * 8 >= rows) scale[i] = 0;
        }
        to[0] = pack_pair(T{}, scale[0], scale[2]), to[1] = pack_pair(T{}, scale[1], scale[3]);
    }

    // A word like any other of codes of rows 2 q, 2 q + 1: its four pairs are of one column, rows
    // as they are and 8 further down, then of another column.
    static __device__ uint32_t word_of(uint32_t v) {
        if constexpr (!Code::kLut4) return v;
        // Nibbles of bytes 0 and 2, 1 and 3 change places crosswise.
        const uint32_t moved = (v >> 12 & 0x0000f0f0u) | (v << 12 & 0x0f0f0000u);
        return (v & 0xf0f00f0fu) | moved;
    }

    // `special`: where w ends, or groups are smaller than the tile.
    template <bool special>
    __device__ void add_tile(const uint8_t *from, int32_t rows, bool more, Acc &sum) const {
        uint32_t b[kX][2];
#pragma unroll
        for (int block = 0; block < kX; ++block) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                b[block][half] = *reinterpret_cast<const uint32_t *>(
                    from + Map::kX0 + (block * 2 + half) * 128 + lane * 4);
                if (special && half * 8 + q * 2 >= rows) b[block][half] = 0;
            }
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            if (t == 0 || more) add_columns<special>(from, t, rows, b, sum);
        }
    }

    template <bool special>
    __device__ void add_columns(const uint8_t *from, int t, int32_t rows,
                                const uint32_t (&b)[kX][2], Acc &sum) const {
        uint32_t words[4];
        const int32_t r = lane % 8, i = lane / 8;
        load_matrices_transposed(from + t * 512 + (r * 4 + (i ^ (r >> 1))) * 16, words);
        uint32_t scale[2];
        Zeros zero = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j == 0 || (special && p.spans > 1)) {
                pair_scales<special>(from, t * 4 + j, rows, scale);
                if constexpr (!Code::kLut4) {
                    const uint32_t z = *reinterpret_cast<const uint16_t *>(from + Map::kZeros +
                                                                           (t * 4 + j) * 8 + q * 2);
                    zero = Code::zeros_of(byte_permute(z, 0, 0x4140));
                }
            }
            uint32_t a[4];
            Code::decode(word_of(words[j]), zero, table, a);
#pragma unroll
            for (int c = 0; c < 4; ++c) a[c] = multiply_pair<T>(a[c], scale[c % 2]);
            const uint32_t columns[4] = {a[0], a[2], a[1], a[3]};
#pragma unroll
            for (int block = 0; block < kX; ++block) {
                mma_16x8x16<T>(sum[block][t * 4 + j], columns, b[block][0], b[block][1]);
            }
        }
    }

    // Sums of spans 2 h and 2 h + 1.
    __device__ void put(const float (&sum)[kTiles * 4][4], int h, StripSums *to) const {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int32_t column = j * 16 + (Code::kLut4 ? g * 2 : g / 2 * 4 + g % 2);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int32_t other = Code::kLut4 ? 1 : 2;
                const int32_t at = column + c / 2 * other, x_row = q * 2 + c % 2;
                (*to)[x_row][at ^ (q * 8)] = sum[h * 2 + j][c];
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda

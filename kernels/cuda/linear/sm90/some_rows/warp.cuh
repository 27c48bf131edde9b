// A warp's part of the kernel for small batches (linear/sm90/some_rows/kernel.cuh): chunks of two
// rows of tiles, multiplied by x and added up.
#pragma once
#include "cuda/linear/sm90/some_rows/ring.cuh"

namespace qk::cuda {
namespace {

// kGroup: columns of a group; 128: or more.
template <class T, class Decode, ScaleKind kind, int kGroup, int kBatches>
struct SomeRowsChunks {
    using Map = SomeRowsMap<T, Decode, kind>;
    using Terms = SliceTerms<T>;
    using Operand = typename Terms::Operand;
    static constexpr int kColumns = kBatches * kSomeRowsBatch;
    static constexpr int kTileGroups = kGroup < 64 ? 64 / kGroup : 1;
    // Several groups a tile: operands are multiplied by the scales of their lane's group, numbers
    // of x's type. With f32 x each group, a part of the tile, has sums of its own, for which x is
    // masked.
    static constexpr bool kScaled = kTileGroups > 1 && Terms::kCount == 1;
    static constexpr int kParts = kScaled ? 1 : kTileGroups;
    static constexpr bool kMany = kBatches > 2;
    static constexpr int kChunkGroups = kSomeRowsColumns / kGroup;
    static constexpr int kOwn = (2 * kChunkGroups + 3) / 4;
    static constexpr int kWords = Terms::kColumns / 4;  // of codes, for as many columns
    using X = uint32_t[kBatches][Terms::kOperands][2 * kWords];

    const SomeRowsProblem &p;
    const SomeRowsPart &part;
    Seconds<Map> seconds;
    float scale_bias = 0, scale_one = 1;  // scale_one: what E8M0 and E4M3 are multiplied by
    uint32_t lane, quad, own;
    int32_t pair, slice;
    bool works, half;                  // half: of every chunk one tile
    int32_t group_from;                // of a chunk: the first group of this warp
    uint32_t codes, scales, zeros, x;  // this lane's places in slot 0
    uint32_t next_codes, next_x;       // to the second row of tiles, the second batch
    int32_t last_column;               // of k, for this lane
    uint32_t lanes;
    SomeRowsSlot slot;
    float sum[2][kBatches][4];

    __device__ SomeRowsChunks(const SomeRowsProblem &problem, const SomeRowsPart &mine)
        : p(problem), part(mine), seconds{0, 0} {
        const auto warp = int32_t(threadIdx.x / 32);
        lane = threadIdx.x % 32;
        quad = lane % 4;
        own = own_memory(p);
        works = warp < p.plan.warps();
        const int32_t whole = p.plan.pairs * p.plan.slices - p.plan.halved;
        half = warp >= whole && p.plan.halved > 0;
        const int32_t job = half ? (warp + whole) / 2 : warp, tile = half ? (warp - whole) & 1 : 0;
        pair = int32_t(uint32_t(job) * p.slices_magic >> 16);
        slice = job - pair * p.plan.slices;
        group_from = tile * (kChunkGroups / 2);
        const uint32_t row = uint32_t(pair) * 2;
        const uint32_t groups = row * uint32_t(p.stage.groups) + uint32_t(group_from);
        codes = own + Map::kRing + (row * uint32_t(p.plan.slices) + uint32_t(slice)) * 1024 +
                uint32_t(tile * 512) + lane * 16;
        scales = own + Map::kRing + uint32_t(p.stage.scales) + groups * Map::kGroupScales +
                 lane / 4 * kPairBytes<kind>;
        zeros = own + Map::kRing + uint32_t(p.stage.zeros) + groups * 8 + lane / 4;
        x = own + Map::kRing + uint32_t(p.stage.x) + lane / 4 * uint32_t(p.stage.x_stride) +
            uint32_t(slice * kSomeRowsColumns + tile * 64 + int32_t(quad * 16)) * Terms::kBytes;
        lanes = Decode::lanes();
        seconds.at = own + Map::kRing + uint32_t(p.stage.slots * p.stage.bytes);
        seconds.codes = own + Map::kScaleCodes;
        next_codes = uint32_t(p.plan.slices) * 1024;
        next_x = uint32_t(kSomeRowsBatch * p.stage.x_stride);
        last_column = p.k - tile * 64 - int32_t(quad * 16);
        // Else the compiler would recompute them, or load what they are made of, every time.
        asm("" : "+r"(next_codes), "+r"(next_x), "+r"(last_column));
        const auto pin = [](uint32_t &v) { asm volatile("" : "+r"(v)); };
        pin(codes), pin(scales), pin(zeros), pin(x), pin(lane), pin(quad);
#pragma unroll
        for (int i = 0; i < 2 * kBatches * 4; ++i) {
            sum[i / (kBatches * 4)][i / 4 % kBatches][i % 4] = 0;
        }
    }

    // Where group `i` of the chunk is among a stage's groups.
    __device__ uint32_t group_of(int32_t chunk, int i) const {
        if constexpr (kGroup < 128) return uint32_t(slice * kChunkGroups + i);
        const int32_t first = chunk - slice;
        return uint32_t(((chunk * kSomeRowsColumns) >> p.group_shift) -
                        ((first * kSomeRowsColumns) >> p.group_shift));
    }

    // Scales that are made of codes: the four lanes of a row alternate over the groups of the
    // chunk.
    static constexpr bool kMade = kind == ScaleKind::kNested || kIsCoded<kind>;
    __device__ void own_scales(int32_t chunk, float2 (&mine)[kOwn]) const {
        if constexpr (kMade) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const uint32_t number = (quad + uint32_t(i) * 4) % (2 * kChunkGroups);
                const uint32_t below = number / kChunkGroups, at = number % kChunkGroups;
                const uint32_t in_run =
                    kGroup < 128 ? uint32_t(slice * kChunkGroups) + at : group_of(chunk, 0);
                const uint32_t both =
                    shared_load_2(scales + slot.at +
                                  (below * uint32_t(p.stage.groups) + in_run) * Map::kGroupScales);
                if constexpr (kIsCoded<kind>) {
                    mine[i] = coded_pair<kind>(both, scale_one);
                    continue;
                }
                const int32_t group = kGroup < 128 ? chunk * kChunkGroups + group_from + int32_t(at)
                                                   : (chunk * kSomeRowsColumns) >> p.group_shift;
                // A row that is not of this block has no second scale here.
                const int64_t end = min64(int64_t(part.rows.last) * 16, p.n) - 1;
                const int64_t row =
                    int64_t(part.rows.first + pair * 2 + int32_t(below)) * 16 + lane / 4;
                const int32_t there = min(group, int32_t(p.groups) - 1);
                mine[i] = seconds.scales(p, both, row, end, there, scale_bias);
            }
        }
    }
    __device__ float2 group_scales(int below, int32_t chunk, int i,
                                   const float2 (&mine)[kOwn]) const {
        if constexpr (kind == ScaleKind::kNested) {
            const int number = below * kChunkGroups + i;
            return {__shfl_sync(~0u, mine[number / 4].x, number % 4, 4),
                    __shfl_sync(~0u, mine[number / 4].y, number % 4, 4)};
        } else {
            return scale_pair<kind>(scales + slot.at +
                                    (uint32_t(below * p.stage.groups) + group_of(chunk, i)) *
                                        Map::kGroupScales);
        }
    }

    // Which of a tile's groups this lane's columns are in.
    __device__ uint32_t own_part() const { return quad / (4 / kTileGroups); }

    // kScaled: the scales of tile i for rows r and r + 8, as numbers of x's type. Of those made of
    // codes number j of the lane with number q of a row's four is `mine`'s number j, q.
    __device__ uint32_t part_scales(int below, int i, const float2 (&mine)[kOwn]) const {
        const uint32_t part = uint32_t(i * kTileGroups) + own_part();
        if constexpr (kMade) {
            const int number = below * kChunkGroups + i * kTileGroups;
            const float2 both = mine[number / 4];
            return __shfl_sync(~0u, pack_pair(T{}, both.x, both.y), int(part), 4);
        } else {
            return scale_pair_as<T, kind>(
                scales + slot.at +
                (uint32_t(below * p.stage.groups + slice * kChunkGroups) + part) *
                    Map::kGroupScales);
        }
    }

    // x for a lane's columns of tile i of the chunk, 0 past the end of k: a part of its 16.
    __device__ void load_x(int32_t chunk, int i, int part_of_16, X &b) const {
        const bool there = chunk * kSomeRowsColumns + i * 64 < last_column;
#pragma unroll
        for (int j = 0; j < kBatches; ++j) {
            const uint32_t from =
                x + slot.at + uint32_t(j) * next_x + uint32_t(i * 64 * Terms::kBytes);
            const uint32_t at = there ? from : own + Map::kZeros;
            Terms::split(shared_load_16(at + uint32_t(part_of_16) * 16), b[j]);
        }
    }

    // d += a by x (b) in part h of a tile.
    __device__ void multiply_part(float (&d)[4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[2 * kWords], int s, int h) const {
        const uint32_t there = kParts == 1 || own_part() == uint32_t(h) ? ~0u : 0;
        mma_16x8x16<Operand>(d, a, b[2 * s] & there, b[2 * s + 1] & there);
    }

    // Terms of a weight by terms of x, but for those below an ulp of the product. `scale`: where
    // operands are multiplied by it.
    __device__ void multiply_word(uint32_t word, const Zeros &zero, uint32_t scale, int s,
                                  const X &b, float (&d)[kParts][kBatches][4]) const {
        if constexpr (Terms::kCount == 1) {
            uint32_t a[4];
            Decode::decode(word, zero, lanes, a);
            if constexpr (kScaled) scale_by_halves<T>(a, scale);
#pragma unroll
            for (int j = 0; j < kBatches; ++j) multiply_part(d[0][j], a, b[j][0], s, 0);
        } else {
#pragma unroll
            for (int e = 0; e < Decode::kTerms; ++e) {
                uint32_t a[4];
                Decode::decode_term(e, word, zero, lanes, a);
#pragma unroll
                for (int t = 0; t < Terms::kCount - e; ++t) {
                    const int from = e > 0 && t == 0 ? Terms::kFinite : t;
#pragma unroll
                    for (int h = 0; h < kParts; ++h) {
#pragma unroll
                        for (int j = 0; j < kBatches; ++j) {
                            multiply_part(d[h][j], a, b[j][from], s, h);
                        }
                    }
                }
            }
        }
    }

    __device__ Zeros zero_of(int below, int32_t chunk, int i) const {
        if constexpr (Decode::kLut4) return {own, 0};
        uint32_t group = group_of(chunk, kGroup < 128 ? i * kChunkGroups / 2 : 0);
        group += own_part();
        return Decode::zeros(
            shared_load_1(zeros + slot.at + (uint32_t(below * p.stage.groups) + group) * 8));
    }

    __device__ void load_codes(int i, uint4 (&q)[2]) const {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            q[u] = shared_load_16(codes + slot.at + uint32_t(u) * next_codes + uint32_t(i * 512));
        }
    }

    // Many rows of x: there are registers for 8 of a lane's 16 columns.
    __device__ void multiply_halves(int32_t chunk, int i, const Zeros (&zero)[2],
                                    float (&d)[2][1][kBatches][4]) const {
        static_assert(kParts == 1 && Terms::kCount == 1);
        uint4 q[2];
        load_codes(i, q);
        const bool there = chunk * kSomeRowsColumns + i * 64 < last_column;
        const uint32_t from =
            there ? x + slot.at + uint32_t(i * 64 * Terms::kBytes) : own + Map::kZeros;
        const uint32_t step = there ? next_x : 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint4 b[kBatches];
#pragma unroll
            for (int j = 0; j < kBatches; ++j) {
                b[j] = shared_load_16(from + uint32_t(j) * step + uint32_t(h * 16));
            }
#pragma unroll
            for (int s = 0; s < 2; ++s) {
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const uint32_t words[4] = {q[u].x, q[u].y, q[u].z, q[u].w};
                    uint32_t a[4];
                    Decode::decode(words[2 * h + s], zero[u], lanes, a);
#pragma unroll
                    for (int j = 0; j < kBatches; ++j) {
                        mma_16x8x16<Operand>(d[u][0][j], a, s == 0 ? b[j].x : b[j].z,
                                             s == 0 ? b[j].y : b[j].w);
                    }
                }
            }
        }
    }

    // The products of tile i of the chunk with both rows of tiles.
    __device__ void multiply_tile(int32_t chunk, int i, const Zeros (&zero)[2],
                                  const uint32_t (&scale)[2],
                                  float (&d)[2][kParts][kBatches][4]) const {
        // Terms of f32 x by four columns: there are no registers for those of all.
        X b[Terms::kCount > 1 ? 1 : 4 / kWords];
        uint4 q[2];
        load_codes(i, q);
#pragma unroll
        for (int l = 0; l < 4 / kWords && Terms::kCount == 1; ++l) load_x(chunk, i, l, b[l]);
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            if (Terms::kCount > 1) load_x(chunk, i, s, b[0]);
            const X &here = b[Terms::kCount > 1 ? 0 : s / kWords];
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const uint32_t words[4] = {q[u].x, q[u].y, q[u].z, q[u].w};
                multiply_word(words[s], zero[u], scale[u], s % kWords, here, d[u]);
            }
        }
    }

    __device__ void fold(const float (&d)[kBatches][4], float2 scale, int u) {
#pragma unroll
        for (int i = 0; i < kBatches * 4; ++i) {
            float &to = sum[u][i / 4][i % 4];
            to = __fmaf_rn(d[i / 4][i % 4], i % 4 < 2 ? scale.x : scale.y, to);
        }
    }

    // Groups of one tile or less: each tile is folded into the sums with its scales.
    template <int kTiles>
    __device__ void add_tiles(int32_t chunk) {
        float2 mine[kOwn];
        own_scales(chunk, mine);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const Zeros zero[2] = {zero_of(0, chunk, i), zero_of(1, chunk, i)};
            float d[2][kParts][kBatches][4] = {};
            if constexpr (kMany) {
                multiply_halves(chunk, i, zero, d);
            } else {
                multiply_tile(chunk, i, zero, {}, d);
            }
#pragma unroll
            for (int u = 0; u < 2; ++u) {
#pragma unroll
                for (int h = 0; h < kParts; ++h) {
                    fold(d[u][h], group_scales(u, chunk, i * kParts + h, mine), u);
                }
            }
        }
    }

    // Operands that have been multiplied by their scales: the tiles of a chunk are one sum.
    template <int kTiles>
    __device__ void add_scaled(int32_t chunk) {
        float2 mine[kOwn];
        own_scales(chunk, mine);
        float d[2][1][kBatches][4] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const Zeros zero[2] = {zero_of(0, chunk, i), zero_of(1, chunk, i)};
            const uint32_t scale[2] = {part_scales(0, i, mine), part_scales(1, i, mine)};
            multiply_tile(chunk, i, zero, scale, d);
        }
#pragma unroll
        for (int i = 0; i < 2 * kBatches * 4; ++i) {
            float &to = sum[i / (kBatches * 4)][i / 4 % kBatches][i % 4];
            to = __fadd_rn(to, d[i / (kBatches * 4)][0][i / 4 % kBatches][i % 4]);
        }
    }

    // Wider groups: the tiles of a chunk are added first.
    template <int kTiles>
    __device__ void add_chunk(int32_t chunk) {
        float2 mine[kOwn];
        own_scales(chunk, mine);
        const Zeros zero[2] = {zero_of(0, chunk, 0), zero_of(1, chunk, 0)};
        float d[kTiles][2][1][kBatches][4] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) multiply_tile(chunk, i, zero, {}, d[i]);
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            float both[kBatches][4];
#pragma unroll
            for (int i = 0; i < kBatches * 4; ++i) {
                both[i / 4][i % 4] = d[0][u][0][i / 4][i % 4];
                if constexpr (kTiles == 2) {
                    both[i / 4][i % 4] = __fadd_rn(both[i / 4][i % 4], d[1][u][0][i / 4][i % 4]);
                }
            }
            fold(both, group_scales(u, chunk, 0, mine), u);
        }
    }
    // Many rows of x: there are no registers for sums of each tile.
    template <int kTiles>
    __device__ void add_many(int32_t chunk) {
        float2 mine[kOwn];
        own_scales(chunk, mine);
        const Zeros zero[2] = {zero_of(0, chunk, 0), zero_of(1, chunk, 0)};
        float d[2][1][kBatches][4] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) multiply_halves(chunk, i, zero, d);
#pragma unroll
        for (int u = 0; u < 2; ++u) fold(d[u][0], group_scales(u, chunk, 0, mine), u);
    }

    template <int kTiles>
    __device__ void add(int32_t chunk) {
        if constexpr (kScaled) {
            add_scaled<kTiles>(chunk);
        } else if constexpr (kGroup < 128) {
            add_tiles<kTiles>(chunk);
        } else if constexpr (kMany) {
            add_many<kTiles>(chunk);
        } else {
            add_chunk<kTiles>(chunk);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

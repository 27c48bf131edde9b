// f32 x in the kernel for few rows of x (few_rows/kernel.cuh), as halves (tile/halves.cuh).
#pragma once
#include "cuda/linear/sm90/few_rows/chunk.cuh"
#include "cuda/tile/halves.cuh"

namespace qk::cuda {
namespace {

// Groups of a tile that have columns of their own.
template <int kGroupTiles>
constexpr int kPartsOfX = kGroupTiles > 0    ? 1
                          : kGroupTiles == 0 ? 2
                                             : 4;

// A warp's chunk times 8 rows of x. Columns 2 i and 2 i + 1 of a matrix product hold first and
// second halves of a row: of row 2 i in the first batch of operands, of row 2 i + 1 in the second.
// So a lane's sums are those of two rows of w and two of x, as they are with one batch of 16-bit x.
// A tile of a row of x has a 2^e of its own. Where any has smaller x than a window below it holds
// (`rest`), the chunk is multiplied again, with what is left.
//
// Where groups are parts of a tile, halves or quarters, columns hold one part and zeros for the
// others: there are half or a quarter as many rows of x, each with that many sums.
template <class Decode, ScaleKind kind, int kGroupTiles, class Map>
struct HalvesChunk : ChunkGroups<F16, Decode, kind, kGroupTiles, Map> {
    using Groups = ChunkGroups<F16, Decode, kind, kGroupTiles, Map>;
    using Groups::kTiles, Groups::lane, Groups::lanes, Groups::p;
    static constexpr int kBatches = 2;
    static constexpr int kOfTile = kPartsOfX<kGroupTiles>;  // parts
    static constexpr int kTerms = kTwoTerms<Decode> ? 2 : 1;
    static_assert(kTiles == 2, "the sets that split_x splits");
    static constexpr uint32_t kUnitToBelow = uint32_t(kWindowOfX - 14) << 23;

    uint32_t x[kBatches][kTiles][8];
    float unit[kBatches][kTiles];  // 2^e of this lane's rows of x
    bool rest = false;

    using Groups::Groups;

    // Half of a lane's 16 columns of its tiles: the lane with the other halves of x has the rest.
    __device__ void load_row(int32_t row, int32_t chunk, uint32_t (&raw)[kTiles][8]) const {
        const int32_t column = chunk * (kTiles * 64) + int32_t(lane % 4 * 16 + lane / 4 % 2 * 8);
        const int64_t at = int64_t(row) * p.k + column;
        const auto *const from = static_cast<const uint4 *>(p.x) + at / 4;
#pragma unroll
        for (int i = 0; i < kTiles * 2; ++i) {
            const uint4 q = from[i / 2 * 16 + i % 2];
            uint32_t *const quad = &raw[i / 2][i % 2 * 4];
            quad[0] = q.x;
            quad[1] = q.y;
            quad[2] = q.z;
            quad[3] = q.w;
        }
    }

    // Of rows `first` and up; `again`: what is left of it.
    __device__ void load_x(int32_t first, int32_t chunk, bool again = false) {
        bool left = false;
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            uint32_t raw[kTiles][8] = {};
            const int32_t row = first + int32_t(lane / 8) / kOfTile * 2 + b;
            const bool own = int32_t(lane % 4) / (4 / kOfTile) == int32_t(lane / 8) % kOfTile;
            if (own && row < p.m) load_row(row, chunk, raw);
            uint32_t below[kTiles] = {};
            if (again) {
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const float of_row = __shfl_sync(~0u, unit[b][i], int(lane / 8));
                    below[i] = __float_as_uint(of_row) - kUnitToBelow;
                }
            }
            left |= split_x<8>(raw, again, lane, below, unit[b], x[b]);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                unit[b][i] = __shfl_sync(~0u, unit[b][i], int(lane % 4 * 8));
            }
        }
        rest = left;
    }

    // Codes, scales and zeros by tiles: zeros of this lane's columns, scales of what it adds up.
    __device__ void load_parts(uint32_t offset, int32_t row_tile, int32_t chunk, uint4 (&q)[kTiles],
                               float2 (&scale)[kTiles], Zeros (&zero)[kTiles]) const {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            q[i] = shared_load_16(this->codes + offset + i * 512);
            if (!Decode::kLut4) {
                const uint32_t of_columns = uint32_t(i * kOfTile) + lane % 4 / (4 / kOfTile);
                zero[i] = Decode::zeros(shared_load_1(this->zeros + offset + of_columns * 8));
            }
            const uint32_t part = uint32_t(i * kOfTile) + lane % kOfTile;
            const uint32_t from = this->scales + offset + part * Map::kGroupScales;
            if constexpr (kind == ScaleKind::kNested) {
                const int64_t row = int64_t(row_tile) * 16 + lane / 4;
                const int32_t group = chunk * (kTiles * kOfTile) + int32_t(part);
                scale[i] = this->seconds.scales(p, shared_load_2(from), row, p.n - 1, group,
                                                this->scale_bias);
            } else {
                scale[i] = scale_pair<kind>(from);
            }
        }
    }

    __device__ void multiply_word(uint32_t word, const Zeros &zero, int i, int s,
                                  float (&part)[kBatches][kTerms][4]) const {
        uint32_t a[kTerms][4];
        if constexpr (kTerms == 2) {
            Decode::decode_two(word, lanes, a);
        } else {
            Decode::decode(word, zero, lanes, a[0]);
        }
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
#pragma unroll
            for (int t = 0; t < kTerms; ++t) {
                mma_16x8x16<F16>(part[b][t], a[t], x[b][i][2 * s], x[b][i][2 * s + 1]);
            }
        }
    }

    // Of rows r and r + 8 of w: first halves of x, what second ones add.
    static __device__ float4 halves_of(const float (&part)[kTerms][4]) {
        if constexpr (kTerms == 2) {
            return {part[0][0], Decode::rest(part[0]), part[1][0], Decode::rest(part[1])};
        } else {
            return {part[0][0], part[0][1], part[0][2], part[0][3]};
        }
    }

    // Adds the products of the chunk that is `offset` bytes behind the first slot's. `again`: of
    // what is left of x. A row without any keeps its sums, whatever the scales are.
    __device__ void multiply(uint32_t offset, int32_t row_tile, int32_t chunk, float (&sum)[1][4],
                             bool again = false) const {
        uint4 q[kTiles];
        float2 scale[kTiles];
        Zeros zero[kTiles] = {};
        if constexpr (kOfTile > 1) {
            load_parts(offset, row_tile, chunk, q, scale, zero);
        } else {
            this->load_groups(offset, row_tile, chunk, q, scale, zero);
        }
        float part[kTiles][kBatches][kTerms][4] = {};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint32_t words[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
                multiply_word(words[s], zero[i], i, s, part[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int b = 0; b < kBatches; ++b) {
                const float4 d = halves_of(part[i][b]);
                const float low = __fmul_rn(__fmaf_rn(d.y, 0x1p-12f, d.x), unit[b][i]);
                const float high = __fmul_rn(__fmaf_rn(d.w, 0x1p-12f, d.z), unit[b][i]);
                if (!again || low != 0) sum[0][b] = __fmaf_rn(low, scale[i].x, sum[0][b]);
                if (!again || high != 0) {
                    sum[0][2 + b] = __fmaf_rn(high, scale[i].y, sum[0][2 + b]);
                }
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda

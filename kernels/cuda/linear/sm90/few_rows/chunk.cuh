// A warp's chunk, 16 rows of w by 128 columns, times x for these columns, which stays in the warp's
// registers while chunks of one row of tiles after the other come by (few_rows/kernel.cuh,
// cluster_rows/kernel.cuh).
#pragma once
#include "cuda/tile/ring.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kFewRowsTiles = 2;  // a chunk: x for it fits the registers
constexpr int32_t kFewRowsColumns = kFewRowsTiles * 64;
// Chunks are dealt in twos, and k is a multiple of 256: with groups of 128 columns a chunk has 8
// bytes of zeros, and bulk copies start and end at multiples of 16.
constexpr int32_t kFewRowsStep = 2;

struct ChunksProblem : TilesProblem {
    // Groups of 16 and 32 columns: bytes of a chunk, log2 of a group's sixteens of columns.
    uint32_t chunk_scales, chunk_zeros, part_shift;
    float entry_unit = 1;  // f32 x: of the entries
};

// A stage: chunks, their scales, their zeros. kGroupTiles: tiles of 64 columns a group, 0 where a
// tile has several; with f32 x 0 where it has two, -2 where it has four.
template <class Decode, ScaleKind kind, int kGroupTiles>
struct ChunksStage {
    static constexpr int kTiles = kFewRowsTiles;
    static constexpr uint32_t kChunkBytes = kTiles * 512;
    static constexpr bool kSmallGroups = kGroupTiles <= 0;
    static constexpr uint32_t kGroups =
        kSmallGroups ? kTiles * 4 : kTiles / kGroupTiles;  // of a chunk, at most
    static constexpr uint32_t kGroupScales = 8 * kPairBytes<kind>;
    static constexpr uint32_t kChunkScales = kGroups * kGroupScales;
    static constexpr uint32_t kChunkZeros = Decode::kLut4 ? 0 : kGroups * 8;
    static constexpr uint32_t kScaleAt = kRingWarps * kChunkBytes;
    static constexpr uint32_t kZeroAt = kScaleAt + kRingWarps * kChunkScales;
    static constexpr uint32_t kStage = (kZeroAt + kRingWarps * kChunkZeros + 127) / 128 * 128;
    // Bytes of a chunk.
    static __device__ uint32_t chunk_scales(const ChunksProblem &p) {
        return kSmallGroups ? p.chunk_scales : kChunkScales;
    }
    static __device__ uint32_t chunk_zeros(const ChunksProblem &p) {
        return kSmallGroups ? p.chunk_zeros : kChunkZeros;
    }
    // Asks for `count` chunks from number `from` on, to place `place` of the stage at `to` and the
    // next ones.
    static __device__ void copy_run(const ChunksProblem &p, uint32_t to, int32_t place,
                                    int64_t from, uint32_t count, uint32_t full) {
        copy_bulk(to + place * kChunkBytes, p.codes + from * kChunkBytes, count * kChunkBytes,
                  full);
        const uint32_t scales = chunk_scales(p), zeros = chunk_zeros(p);
        copy_bulk(to + kScaleAt + place * scales, p.scale + from * scales, count * scales, full);
        if (kChunkZeros == 0 || p.zero == nullptr) return;
        copy_bulk(to + kZeroAt + place * zeros, p.zero + from * zeros, count * zeros, full);
    }
    // Bytes that it counts.
    static __device__ uint32_t run_bytes(const ChunksProblem &p, uint32_t count) {
        const bool zeros = kChunkZeros != 0 && p.zero != nullptr;
        return count * (kChunkBytes + chunk_scales(p) + (zeros ? chunk_zeros(p) : 0));
    }
};

inline ChunksProblem chunks_problem(const LinearArgs &args, uint32_t group_scales) {
    const Geometry &s = args.w.geometry;
    const uint32_t groups = uint32_t(kFewRowsColumns / min64(s.group_size, 64));  // small ones
    return {tiles_problem(args), groups * group_scales, groups * 8, s.group_size == 32 ? 1u : 0u};
}

// Calls run(kind, kGroupTiles). Looked-up codes in groups of 16 and 32: MXFP4, NVFP4.
template <bool kLut4, class Run>
Status with_chunk_scales(const LinearArgs &args, const Launch &launch, const Run &run) {
    const Geometry &s = args.w.geometry;
    const ScalePlane &scale = args.w.scale;
    const auto groups_of = [&](auto tiles) {
        return with_scale_kind(scale.format->id, [&](auto kind) { return run(kind, tiles); });
    };
    if (s.groups_per_row * 64 == s.k) return groups_of(std::integral_constant<int, 1>());
    if (s.groups_per_row * 128 == s.k) return groups_of(std::integral_constant<int, 2>());
    const std::integral_constant<int, 0> parts;
    if constexpr (kLut4) {
        return with_coded_kind(scale, *launch.device.tables,
                               [&](auto kind) { return run(kind, parts); });
    } else {
        return groups_of(parts);
    }
}

// Row `row` of w times row `x_row` of x: its bias added, as y has it.
template <class T>
__device__ void store_sum(const ChunksProblem &p, int64_t row, int64_t x_row, float y) {
    if constexpr (std::is_same_v<T, F32>) y = __fmul_rn(y, p.entry_unit);
    if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row));
    const int64_t to = x_row * p.n + row;
    if constexpr (std::is_same_v<T, F32>) {
        static_cast<float *>(p.y)[to] = y;
    } else if constexpr (std::is_same_v<T, F16>) {
        static_cast<__half *>(p.y)[to] = __float2half_rn(y);
    } else {
        static_cast<__nv_bfloat16 *>(p.y)[to] = __float2bfloat16_rn(y);
    }
}

// Where a warp's chunks are in a slot, and their scales.
template <class T, class Decode, ScaleKind kind, int kGroupTiles, class Map>
struct ChunkGroups {
    static constexpr int kTiles = Map::kTiles;
    const ChunksProblem &p;
    Seconds<Map> seconds{0, 0};
    float scale_bias = 0, scale_one = 1;  // scale_one: what E8M0 and E4M3 are multiplied by
    uint32_t lane, warp;
    uint32_t codes, scales, zeros;  // this lane's places in slot 0
    uint32_t lanes;

    // `ring`: the first slot's address.
    __device__ ChunkGroups(const ChunksProblem &problem, uint32_t ring) : p(problem) {
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        codes = ring + warp * Map::kChunkBytes + lane * 16;
        scales = ring + Map::kScaleAt + warp * Map::chunk_scales(p) + lane / 4 * kPairBytes<kind>;
        zeros = ring + Map::kZeroAt + warp * Map::chunk_zeros(p) + lane / 4;
    }

    // Nested scales: of the four lanes with rows r and r + 8 two have those of r, two those of
    // r + 8, a group of the chunk each.
    __device__ float own_scale(uint32_t from, int32_t row_tile, int32_t chunk) const {
        if constexpr (kind == ScaleKind::kNested) {
            const uint32_t group = lane % Map::kGroups, below = lane / 2 % 2;
            const uint32_t code = shared_load_1(from + group * Map::kGroupScales + below);
            const uint32_t row = uint32_t(row_tile) * 16 + lane / 4 + below * 8;
            const uint32_t number = row * p.groups + uint32_t(chunk) * Map::kGroups + group;
            return seconds.scale(p, code, number, scale_bias);
        }
        return 0;
    }
    __device__ float2 group_scales(uint32_t from, uint32_t group, float own) const {
        if constexpr (kind == ScaleKind::kNested) {
            return {__shfl_sync(~0u, own, int(group), 4), __shfl_sync(~0u, own, int(group + 2), 4)};
        } else {
            return scale_pair<kind>(from + group * Map::kGroupScales);
        }
    }

    // Groups of one tile or two: the chunk's codes, scales and zeros, by tiles.
    __device__ void load_groups(uint32_t offset, int32_t row_tile, int32_t chunk,
                                uint4 (&q)[kTiles], float2 (&scale)[kTiles],
                                Zeros (&zero)[kTiles]) const {
        const float own = own_scale(scales + offset, row_tile, chunk);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const uint32_t group = uint32_t(i / kGroupTiles);
            q[i] = shared_load_16(codes + offset + i * 512);
            scale[i] = scale[0];
            zero[i] = zero[0];
            if (i % kGroupTiles != 0) continue;
            scale[i] = group_scales(scales + offset, group, own);
            if (!Decode::kLut4) {
                zero[i] = Decode::zeros(shared_load_1(zeros + offset + group * 8));
            }
        }
    }

    // Small groups: in which of the chunk's this lane's columns of tile i are.
    __device__ uint32_t part_of(int i) const {
        return (uint32_t(i) * 4 + lane % 4) >> p.part_shift;
    }
    // The scales of rows r and r + 8 of one of the chunk's groups, as numbers of x's type.
    __device__ uint32_t part_scales(uint32_t offset, int32_t row_tile, int32_t chunk,
                                    uint32_t part) const {
        const uint32_t from = scales + offset + part * Map::kGroupScales;
        if constexpr (kIsCoded<kind>) {
            const float2 both = coded_pair<kind>(shared_load_2(from), scale_one);
            return pack_pair(T{}, both.x, both.y);
        } else if constexpr (kind == ScaleKind::kNested) {
            const int64_t row = int64_t(row_tile) * 16 + lane / 4;
            const int32_t group = chunk * (kTiles * 4 >> p.part_shift) + int32_t(part);
            const float2 both =
                seconds.scales(p, shared_load_2(from), row, p.n - 1, group, scale_bias);
            return pack_pair(T{}, both.x, both.y);
        } else {
            return scale_pair_as<T, kind>(from);
        }
    }
    // Those of this lane's columns. Nested scales cost more: where the four lanes of a row have
    // what they need together, each computes one.
    __device__ void part_scales(uint32_t offset, int32_t row_tile, int32_t chunk,
                                uint32_t (&scale)[kTiles]) const {
        if (kind == ScaleKind::kNested && p.part_shift == 1) {
            const uint32_t own = part_scales(offset, row_tile, chunk, lane % 4);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) scale[i] = __shfl_sync(~0u, own, int(part_of(i)), 4);
        } else {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                scale[i] = part_scales(offset, row_tile, chunk, part_of(i));
            }
        }
    }
};

// kBatches: of 8 rows of x. kFresh: the products of a chunk are its sums, and tiles of one group
// share theirs; else they are added to others'.
template <class T, class Decode, ScaleKind kind, int kGroupTiles, int kBatches, class Map,
          bool kFresh>
struct WarpsChunk : ChunkGroups<T, Decode, kind, kGroupTiles, Map> {
    using Groups = ChunkGroups<T, Decode, kind, kGroupTiles, Map>;
    using Groups::codes, Groups::kTiles, Groups::lane, Groups::lanes, Groups::p, Groups::scales,
        Groups::zeros;
    static constexpr int kParts = kFresh && kGroupTiles != 1 ? 1 : kTiles;  // sums of products
    uint32_t x[kBatches][kTiles][8];  // two registers a step of 16 columns

    using Groups::Groups;

    // Of rows `first` and up. Lanes without a row of x hold zeros: their columns of the product are
    // never stored.
    __device__ void load_x(int32_t first, int32_t chunk) {
        const auto *const base = static_cast<const uint8_t *>(p.x);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const int32_t row = first + b * 8 + int32_t(lane / 4);
            const int64_t at = int64_t(row) * p.k + chunk * (kTiles * 64) + int32_t(lane % 4 * 16);
            const auto *const from = reinterpret_cast<const uint4 *>(base + at * 2);
#pragma unroll
            for (int i = 0; i < kTiles * 2; ++i) {
                uint4 q = {0, 0, 0, 0};
                if (row < p.m) q = from[i / 2 * 8 + i % 2];
                uint32_t *const quad = &x[b][i / 2][i % 2 * 4];
                quad[0] = q.x;
                quad[1] = q.y;
                quad[2] = q.z;
                quad[3] = q.w;
            }
        }
    }

    // Two tiles by turns: a product waits for the one before it on the same sum. `scale`: of small
    // groups.
    __device__ void multiply_tiles(const uint4 (&q)[kTiles], const Zeros (&zero)[kTiles],
                                   const uint32_t (&scale)[kTiles],
                                   float (&part)[kParts][kBatches][4]) const {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint32_t words[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
                uint32_t a[4];
                Decode::decode(words[s], zero[i], lanes, a);
                if constexpr (Map::kSmallGroups) scale_by_halves<T>(a, scale[i]);
#pragma unroll
                for (int b = 0; b < kBatches; ++b) {
                    mma_16x8x16<T>(part[i % kParts][b], a, x[b][i][2 * s], x[b][i][2 * s + 1]);
                }
            }
        }
    }

    // Adds the products of a chunk, or is them, in `sum`. Groups of one tile or two: they are
    // folded with their scale.
    __device__ void multiply_groups(uint32_t offset, int32_t row_tile, int32_t chunk,
                                    float (&sum)[kBatches][4]) const {
        uint4 q[kTiles];
        float2 scale[kTiles];
        Zeros zero[kTiles] = {};
        this->load_groups(offset, row_tile, chunk, q, scale, zero);
        float part[kParts][kBatches][4] = {};
        multiply_tiles(q, zero, {}, part);
#pragma unroll
        for (int i = 0; i < kParts * kBatches * 4; ++i) {
            const int tile = i / (kBatches * 4), b = i / 4 % kBatches, j = i % 4;
            const float by = j < 2 ? scale[tile].x : scale[tile].y;
            sum[b][j] = kFresh && tile == 0 ? __fmul_rn(part[0][b][j], by)
                                            : __fmaf_rn(part[tile][b][j], by, sum[b][j]);
        }
    }

    // Groups of 16 and 32: the operands have been multiplied by it.
    __device__ void multiply_parts(uint32_t offset, int32_t row_tile, int32_t chunk,
                                   float (&sum)[kBatches][4]) const {
        uint4 q[kTiles];
        uint32_t scale[kTiles];
        Zeros zero[kTiles] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            q[i] = shared_load_16(codes + offset + i * 512);
            if (!Decode::kLut4) {
                zero[i] = Decode::zeros(shared_load_1(zeros + offset + this->part_of(i) * 8));
            }
        }
        this->part_scales(offset, row_tile, chunk, scale);
        float part[kParts][kBatches][4] = {};
        multiply_tiles(q, zero, scale, part);
#pragma unroll
        for (int i = 0; i < kParts * kBatches * 4; ++i) {
            float &to = sum[i / 4 % kBatches][i % 4];
            const float more = part[i / (kBatches * 4)][i / 4 % kBatches][i % 4];
            to = kFresh ? more : __fadd_rn(to, more);
        }
    }

    // Those of the chunk that is `offset` bytes behind the first slot's.
    __device__ void multiply(uint32_t offset, int32_t row_tile, int32_t chunk,
                             float (&sum)[kBatches][4]) const {
        if constexpr (Map::kSmallGroups) {
            multiply_parts(offset, row_tile, chunk, sum);
        } else {
            multiply_groups(offset, row_tile, chunk, sum);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

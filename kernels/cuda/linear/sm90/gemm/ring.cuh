// What the matrix kernels share: the producers that fill the ring, and how a consumer's lane reads
// a tile and decodes it into operands.
//
//               64 R rows x 64 codes a tile        64 columns x N rows of x
//   producer: [ tensor copy ]     [ tensor copy ]     swizzled by 128 bytes      scales, zeros
//                                                    (large: nested scales made from their codes)
//   consumer:   word -> 4 registers (decode)  ->  wgmma D[64 x N] += A[64 x 16] . B[16 x N]
#pragma once
#include "cuda/linear/sm90/gemm/small_groups.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct PackedGemm : Shared<S> {
    using T = typename S::T;
    using Decode = typename S::Decode;
    using Shared<S>::p, Shared<S>::full, Shared<S>::empty, Shared<S>::table;
    using Shared<S>::scale_codes, Shared<S>::second_bias, Shared<S>::slot;
    static constexpr ScaleKind kind = S::kind;
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2;
    static constexpr uint32_t kScales = S::kX + S::kCodes, kZeros = kScales + S::kScale;

    // The table of look-ups, zeros that no copy overwrites, the table of nested scales, by every
    // thread but those of the warp that prepares the barriers; a barrier must follow.
    __device__ static void prepare(const GemmProblem &p, uint8_t *shared, float *scale_codes) {
        constexpr bool kCoded = kind == ScaleKind::kNested;
        const bool nested = kCoded && (!S::kSmall || p.w.scale_format == QK_FORMAT_LUT8);
        constexpr int kOthers = S::kThreads - 32, kWarp = S::kConsumers * 128;
        const int thread = int(threadIdx.x) - (int(threadIdx.x) > kWarp ? 32 : 0);
        static_assert(kOthers >= 256);
        // In flight while the table is written.
        const float code = nested ? load_as<float>(p.w.code, thread & 255) : 0.0f;
        if constexpr (Decode::kLut4) {
            Decode::prepare(p.w, shared, thread, kOthers);
        } else if (p.w.zero == nullptr) {  // every zero is 8
            for (uint32_t i = uint32_t(thread); i < p.slots * S::kZero; i += kOthers) {
                shared[S::kTable + i / S::kZero * S::kStage + kZeros + i % S::kZero] = 0x88;
            }
        }
        if constexpr (kCoded) {
            if (nested && thread < 256) scale_codes[thread] = code;
        }
    }

    __device__ bool fits() const { return true; }
    // ---- producers: one lane issues the boxes, one warp the scales and zeros

    __device__ void issue_boxes(const Item &it, Turn &turn) const {
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot), barrier = full + turn.slot * 8;
            barrier_expect(barrier, (S::kScaled ? S::kX : p.stage_x) + S::kCodes);
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                tensor_copy(to + S::kX + t * (S::kCodes / kTiles), p.code_map, 0, (tile + t) * 4,
                            it.row_tile, barrier);
                tensor_copy(to + t * (S::kX / kTiles), p.x_map, (tile + t) * 64, it.x_first,
                            barrier);
            }
        }
    }

    // Copies `bytes` of each group of a stage's tiles, `piece` bytes at a time. Every lane has a
    // piece of one tile of k, in every kStep-th row of tiles: little is left to compute a stage.
    template <int bytes, int piece>
    struct Groups {
        static constexpr int kPieces = bytes / piece, kOfRow = kPieces * kTiles;
        static constexpr int kAll = S::kRowTiles * kOfRow, kStep = 32 / kOfRow;
        static_assert(32 % kOfRow == 0);
        const uint8_t *from;  // of group 0
        int64_t step;
        int32_t rows, tile;  // of tiles that are there; of the stage
        int32_t gap;         // of `it`, where there is one
        uint32_t to;

        __device__ Groups(const GemmProblem &p, const uint8_t *plane, const Item &it, uint32_t at) {
            const int32_t lane = int32_t(threadIdx.x & 31);
            const int32_t row = it.template tile<S>(lane / kOfRow);
            const int64_t row_bytes = p.w.geometry.groups_per_row * bytes;
            rows = lane < kAll ? p.row_tiles - row : 0;
            from = plane + (rows > 0 ? row * row_bytes : 0) + lane % kPieces * piece;
            gap = it.gap;
            step = kStep * row_bytes;
            tile = lane / kPieces % kTiles;
            to = at + uint32_t(lane * piece);
        }
        __device__ void issue(const GemmProblem &p, uint32_t slot_at, int32_t first) const {
            const bool in = first + tile < p.tiles;
            const uint8_t *at = from + (in ? int64_t((first + tile) >> p.group_shift) * bytes : 0);
#pragma unroll
            for (int i = 0; i < (kAll + 31) / 32; ++i, at += step) {
                if (kAll % 32 != 0 && int(threadIdx.x & 31) + i * 32 >= kAll) break;
                const bool second = passes_gap(i);
                const bool there = in && i * kStep + (second ? gap : 0) < rows;
                const uint8_t *const here = second ? at + step / kStep * gap : at;
                copy_piece<piece>(slot_at + to + i * 32 * piece, there ? here : from, there);
            }
        }

      private:
        // Whether the gap lies between the lane's first row of tiles and its row in step i.
        __device__ static bool passes_gap(int i) {
            constexpr int kHalf = S::kRowTiles / 2;
            if constexpr (!S::kListed) return false;
            if constexpr (kHalf % kStep == 0 || kStep > kHalf)
                return i * kStep >= kHalf;  // of all lanes
            const int first = int(threadIdx.x & 31) / kOfRow;
            return first < kHalf && first + i * kStep >= kHalf;
        }
    };

    __device__ void issue_scales(const Item &it, Turn &turn) const {
        const bool zeros = !Decode::kLut4 && p.w.zero != nullptr;
        const Groups<8 * kPairBytes<kind>, 16> scale(p, p.w.scale, it, kScales);
        const Groups<8, 8> zero(p, zeros ? p.w.zero : p.w.scale, it, kZeros);
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot);
            scale.issue(p, to, tile);
            if (zeros) zero.issue(p, to, tile);
            copies_arrive(full + turn.slot * 8);
        }
    }

    // Nested scales of a stage, by one of the warps behind the first, which alternate: there is
    // time for loads to come from afar. A lane makes those of rows r, r + 8, r + 1 and r + 9 of a
    // row of tiles, and of other rows of tiles as far apart as a warp reaches.
    __device__ void make_scales(const Item &it, Turn &turn, int32_t &others) const {
        if constexpr (S::kSmall) return SmallGroups<S>{*this}.make(it, turn, others);
        constexpr int kUnits = S::kRowTiles * kTiles * 4 / 32, kStep = 32 / (kTiles * 4);
        static_assert(!S::kListed || S::kRowTiles / 2 % kStep == 0 || kUnits == 1);
        const int32_t lane = threadIdx.x & 31, t = lane / 4 % kTiles;
        const int32_t row_tile = it.row_tile + lane / (kTiles * 4);
        const int64_t of_row = p.w.geometry.groups_per_row, groups = p.w.geometry.n * of_row;
        const uint32_t number = uint32_t((int64_t(row_tile) * 16 + lane % 4 * 2) * of_row);
        const bool zeros = !Decode::kLut4 && p.w.zero != nullptr;
        const Groups<8, 8> zero(p, zeros ? p.w.zero : p.w.scale, it, kZeros);
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            if (others > 0) {
                --others;
                continue;
            }
            others = S::kMakers - 1;
            const int32_t group = tile + t < p.tiles ? (tile + t) >> p.group_shift : 0;
            uint2 pairs[kUnits];
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                const int32_t row = it.template after<S>(row_tile, u * kStep);
                const bool in = row < p.row_tiles && tile + t < p.tiles;
                const int64_t at = in ? (row * of_row + group) * 16 + lane % 4 * 4 : 0;
                const uint32_t codes = __ldg(reinterpret_cast<const uint32_t *>(p.w.scale + at));
                float scale[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int32_t r = (row - row_tile) * 16 + i % 2 * 8 + i / 2;
                    const int64_t g = min64(int64_t(number) + r * of_row + group, groups - 1);
                    const float second =
                        __ldg(reinterpret_cast<const float *>(p.w.second) + (g >> p.second_shift));
                    const float code = scale_codes[codes >> 8 * i & 255];
                    scale[i] = in ? nested_scale(code, second, second_bias) : 0.0f;
                }
                pairs[u] = {pack_pair(T{}, scale[0], scale[1]), pack_pair(T{}, scale[2], scale[3])};
            }
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot), full_here = full + turn.slot * 8;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                shared_store_8(to + kScales + (u * 32 + lane) * 8, pairs[u]);
            }
            if (zeros) zero.issue(p, to, tile);
            if (!Decode::kLut4) copies_arrive(full_here);
            barrier_arrive(full_here);
        }
    }

    // ---- consumers

    // What a lane adds to a slot to find its codes, scales and zeros.
    struct Places {
        uint32_t codes, scale, zero;
        uint32_t number[2];  // nested: of the rows' group 0

        __device__ Places(const PackedGemm &g, const Item &it) {
            const uint32_t lane = threadIdx.x & 31, quad = lane >> 2;
            const uint32_t r = it.template warp_tile<S>();
            // Listed: each lane has the address that 16 bytes of a step come from, lane / 8.
            const uint32_t from = S::kListed ? lane & 7 : quad, step = S::kListed ? lane / 8 : 0;
            const uint32_t line = r * 4 + (from >> 1);  // of 128 bytes
            codes = S::kX + line * 128 + (((from & 1) * 4 + step) ^ (line & 7)) * 16;
            if constexpr (!S::kListed) codes += (lane & 2) * 2;
            const uint32_t at = r * kTiles * S::kParts * 8 + quad;
            scale = kScales + at * S::kPair;
            zero = kZeros + at;
            if constexpr (kind == ScaleKind::kNested && !S::kMade) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int64_t row = int64_t(it.row_tile + r) * 16 + quad + i * 8;
                    const Geometry &s = g.p.w.geometry;
                    number[i] = uint32_t(min64(row, s.n - 1) * s.groups_per_row);
                }
            }
        }
    };

    struct Raw {  // a lane's share of a tile as it is stored
        uint32_t words[4][S::kListed ? 1 : 2];
        uint32_t zero[S::kParts], scale[kind == ScaleKind::kF32 ? 2 : S::kParts];
        float second[kind == ScaleKind::kNested ? 2 : 1];
    };

    // Tile t of a stage, whose first tile is number `tile` of k. The codes of one step of
    // 16 columns are in two words: those of the lane's columns 2 i, 2 i + 1 and 8 + 2 i, 9 + 2 i,
    // halves of either. Listed: rows of x are gathered so that a lane's columns are those of one
    // word. Nothing is done to what is loaded before `decode`, so that no warp waits for it here.
    __device__ void read(const Places &at, uint32_t slot_at, int32_t tile, int t, Raw &raw) const {
        const uint32_t stage = slot(slot_at);
        const uint32_t codes = stage + at.codes + t * (S::kCodes / kTiles);
        if constexpr (S::kListed) {
            const uint4 v = shared_load_matrices(codes);
            raw.words[0][0] = v.x, raw.words[1][0] = v.y;
            raw.words[2][0] = v.z, raw.words[3][0] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const uint32_t from = codes ^ j * 16;
                raw.words[j][0] = shared_load_4(from);
                raw.words[j][1] = shared_load_4(from + 8);
            }
        }
        if constexpr (!Decode::kLut4) {
#pragma unroll
            for (int i = 0; i < S::kParts; ++i) {
                raw.zero[i] = shared_load_1(stage + at.zero + (t * S::kParts + i) * 8);
            }
        }
        const uint32_t from = stage + at.scale + t * S::kParts * 8 * S::kPair;
        if constexpr (S::kSmall) {
#pragma unroll
            for (int i = 0; i < S::kParts; ++i) raw.scale[i] = shared_load_4(from + i * 32);
        } else if constexpr (kind == ScaleKind::kF32) {
            const uint2 both = shared_load_8(from);
            raw.scale[0] = both.x, raw.scale[1] = both.y;
        } else if constexpr (kind == ScaleKind::kNested && !S::kMade) {
            raw.scale[0] = shared_load_2(from);
            // A stage's last tiles may not be there: nor are second scales of theirs.
            const int32_t there = min(tile + t, p.tiles - 1);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t number = at.number[i] + (there >> p.group_shift);
                raw.second[i] =
                    __ldg(reinterpret_cast<const float *>(p.w.second) + (number >> p.second_shift));
            }
        } else {
            raw.scale[0] = shared_load_4(from);
        }
    }

    // Of rows r and r + 8.
    __device__ void scales(const Raw &raw, float (&scale)[2]) const {
        if constexpr (kind == ScaleKind::kF32) {
            scale[0] = __uint_as_float(raw.scale[0]);
            scale[1] = __uint_as_float(raw.scale[1]);
        } else if constexpr (kind == ScaleKind::kNested) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float code = scale_codes[raw.scale[0] >> 8 * i & 255];
                scale[i] = nested_scale(code, raw.second[i], second_bias);
            }
        } else if constexpr (kind == ScaleKind::kBF16) {
            scale[0] = __uint_as_float(raw.scale[0] << 16);
            scale[1] = __uint_as_float(raw.scale[0] & 0xffff0000u);
        } else {
            const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&raw.scale[0]));
            scale[0] = both.x, scale[1] = both.y;
        }
    }

    __device__ void decode(const Raw &raw, uint32_t (&a)[4][4], float (&scale)[2]) const {
        const bool odd = threadIdx.x & 1;
        const uint32_t pick = Decode::kLut4 ? (odd ? 0x7632u : 0x5410u) : (odd ? 0x7351u : 0x6240u);
        Zeros z = {};
        if constexpr (!Decode::kLut4) z = Decode::zeros(raw.zero[0]);
        if constexpr (!S::kMade) scales(raw, scale);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t word = __byte_perm(raw.words[j][0], raw.words[j][1], pick);
            if constexpr (S::kSmall && !Decode::kLut4) z = Decode::zeros(raw.zero[j]);
            Decode::decode(word, z, table, (threadIdx.x & 31) * 4, a[j]);
            if constexpr (S::kSmall) {
                scale_by_halves<T>(a[j], raw.scale[j]);
            }
        }
        if constexpr (S::kMade && !S::kSmall) {
            this->scale_operands(
                a, {__byte_perm(raw.scale[0], 0, 0x1010), __byte_perm(raw.scale[0], 0, 0x3232)});
        } else if constexpr (S::kScaled && !S::kSmall) {
            this->scale_operands(
                a, {pack_pair(T{}, scale[0], scale[0]), pack_pair(T{}, scale[1], scale[1])});
        }
    }
};

// Where the operands of w come from.
template <class S>
struct SourceOf {
    using Type = PackedGemm<S>;
};
template <class S>
using Gemm = typename SourceOf<S>::Type;

// By all threads of a block: the first producer warp prepares the barriers and does not wait for
// the others, which write the tables.
template <class S>
__device__ void prepare_block(const GemmProblem &p, int warp, uint32_t full, uint32_t empty,
                              uint8_t *shared, float *scale_codes) {
    if (warp == S::kConsumers * 4) {
        if (elect_one()) {
            prefetch_map(p.code_map);
            prefetch_map(p.x_map);
            for (int i = 0; i < p.slots; ++i) {
                barrier_init(full + i * 8, S::kArrivals);
                barrier_init(empty + i * 8, S::kConsumers * 128);  // every lane of the readers
            }
            barrier_init_fence();
        }
        __syncwarp();
        asm volatile("bar.arrive 1, %0;" ::"n"(S::kThreads) : "memory");
    } else {
        Gemm<S>::prepare(p, shared, scale_codes);
        asm volatile("bar.sync 1, %0;" ::"n"(S::kThreads) : "memory");
    }
}

}  // namespace
}  // namespace qk::cuda

// Scales and zeros of weights in groups of 16 and 32 columns: the producers make a pair of x's type
// for rows r and r + 8 of each 16 columns from scales of any kind, so that a consumer multiplies
// the operands of a step by it, whatever the group.
#pragma once
#include "cuda/linear/sm90/gemm/shape.cuh"

namespace qk::cuda {
namespace {

enum class StoredScales { kF32, kF16, kBF16, kE8M0, kE4M3, kTable };

// f<scales>(), what a weight's are.
template <class F>
__device__ void with_stored_scales(const GemmProblem &p, const F &f) {
    using Scales = StoredScales;
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return f.template operator()<Scales::kF32>();
        case QK_FORMAT_F16: return f.template operator()<Scales::kF16>();
        case QK_FORMAT_BF16: return f.template operator()<Scales::kBF16>();
    }
    switch (p.coded) {
        case QK_FORMAT_E8M0: return f.template operator()<Scales::kE8M0>();
        case QK_FORMAT_E4M3: return f.template operator()<Scales::kE4M3>();
        default: return f.template operator()<Scales::kTable>();
    }
}

template <class S>
struct SmallGroups {
    const Shared<S> &g;
    using T = typename S::T;
    using Decode = typename S::Decode;
    static constexpr int kTiles = S::kTiles;
    static constexpr uint32_t kScales = S::kX + S::kCodes, kZeros = kScales + S::kScale;
    // Where other codes have zeros, placed ones have a word: whether this stage's scales are as
    // they are stored.
    static constexpr uint32_t kUnlifted = kZeros;

    using Scales = StoredScales;

    // Eight scales of a row of tiles and a group as they are stored: of rows r, r + 8, r + 1, ...
    template <Scales scales>
    static constexpr int kWords = scales == Scales::kF32                              ? 8
                                  : scales == Scales::kF16 || scales == Scales::kBF16 ? 4
                                                                                      : 2;
    template <Scales scales>
    struct Eight {
        uint32_t word[kWords<scales>];
    };

    __device__ void make(const Item &it, Turn &turn, int32_t &others) const {
        with_stored_scales(g.p, [&]<Scales scales>() {
            // Kinds that are common in groups of 32 are made once for both parts.
            constexpr bool kCommon =
                scales == Scales::kF16 || scales == Scales::kBF16 || scales == Scales::kE8M0;
            if constexpr (kCommon) {
                if (g.p.part_shift == 1) return make_parts<scales, true>(it, turn, others);
            }
            make_parts<scales, false>(it, turn, others);
        });
    }

    template <Scales scales, bool kTwice>
    __device__ void make_parts(const Item &it, Turn &turn, int32_t &others) const {
        constexpr bool kCoded = kWords<scales> == 2;
        const float one = kCoded ? __ldg(reinterpret_cast<const float *>(g.p.w.second)) : 1.0f;
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(g.p.slots)) {
            if (others > 0) {
                --others;
                continue;
            }
            others = S::kMakers - 1;
            const bool lifted = make_stage<scales, kTwice>(it, tile, turn, one, S::kPlaced);
            if constexpr (S::kPlaced) {
                if (!lifted) make_stage<scales, kTwice>(it, tile, turn, one, false);
                if (threadIdx.x % 32 == 0) shared_store_4(g.slot(turn.slot) + kUnlifted, !lifted);
            }
            const uint32_t full_here = g.full + turn.slot * 8;
            if constexpr (!Decode::kLut4) {
                if (g.p.w.zero != nullptr) copy_zeros(it, tile, g.slot(turn.slot));
                copies_arrive(full_here);
            }
            barrier_arrive(full_here);
        }
    }

    // A lane makes the eights of one part (kTwice: of two, of one group) and half of a row of
    // tiles, and of other rows of tiles as far apart as a warp reaches: what is computed for a
    // stage is computed once. `lifts`: as PlacedE2m1 wants them; false if one would overflow.
    template <Scales scales, bool kTwice>
    __device__ bool make_stage(const Item &it, int32_t tile, const Turn &turn, float one,
                               bool lifts) const {
        constexpr int kParts = 4 * kTiles, kRuns = kParts / (kTwice ? 2 : 1),
                      kWord = kWords<scales>;
        constexpr int kStep = 16 / kRuns, kEach = S::kRowTiles / kStep;
        static_assert(!S::kListed || S::kRowTiles / 2 % kStep == 0 || kEach == 1);
        constexpr int kRound = scales == Scales::kTable ? 2
                               : 16 / kWord < kEach     ? 16 / kWord
                                                        : kEach;
        static_assert(kEach % kRound == 0);
        const int32_t lane = threadIdx.x & 31, row_tile = it.row_tile + lane / (2 * kRuns);
        const int32_t run = lane / 2 % kRuns * (kParts / kRuns);  // of parts
        const int64_t of_row = g.p.w.geometry.groups_per_row;
        const int32_t part = tile * 4 + run, group = part >> g.p.part_shift;
        const int32_t rows = part < g.p.parts ? g.p.row_tiles : 0;
        const uint32_t *const from =
            reinterpret_cast<const uint32_t *>(g.p.w.scale) + (group * 2 + lane % 2) * kWord;
        const uint32_t to = g.slot(turn.slot) + kScales +
                            uint32_t(lane / (2 * kRuns) * kParts + run) * 32 + lane % 2 * 16;
        bool fit = true;
#pragma unroll 1
        for (int first = 0; first < kEach; first += kRound) {
            Eight<scales> eight[kRound];
#pragma unroll
            for (int u = 0; u < kRound; ++u) {
                const int32_t row = it.template after<S>(row_tile, (first + u) * kStep);
                eight[u] = load_eight<scales>(from + row * of_row * (2 * kWord), row < rows);
            }
            if (first == 0) barrier_wait(g.empty + turn.slot * 8, turn.parity);
#pragma unroll
            for (int u = 0; u < kRound; ++u) {
                const int32_t row = it.template after<S>(row_tile, (first + u) * kStep);
                const uint32_t here = to + uint32_t((first + u) * kStep * kParts * 32);
                uint4 pairs = {};
                if (row < rows) pairs = pairs_of<scales>(row, group, eight[u], one, lifts, &fit);
                shared_store_16(here, pairs);
                if constexpr (kTwice) {
                    if (part + 1 == g.p.parts) pairs = {};
                    shared_store_16(here + 32, pairs);
                }
            }
        }
        return !S::kPlaced || __all_sync(~0u, fit);
    }

    template <Scales scales>
    __device__ static Eight<scales> load_eight(const uint32_t *from, bool there) {
        Eight<scales> eight = {};
        if (!there) return eight;
        if constexpr (kWords<scales> == 2) {
            const uint2 v = __ldg(reinterpret_cast<const uint2 *>(from));
            eight.word[0] = v.x, eight.word[1] = v.y;
        } else {
#pragma unroll
            for (int q = 0; q < kWords<scales> / 4; ++q) {
                const uint4 v = __ldg(reinterpret_cast<const uint4 *>(from) + q);
                eight.word[4 * q] = v.x, eight.word[4 * q + 1] = v.y;
                eight.word[4 * q + 2] = v.z, eight.word[4 * q + 3] = v.w;
            }
        }
        return eight;
    }

    template <Scales scales>
    __device__ uint4 pairs_of(int32_t row_tile, int32_t group, const Eight<scales> &eight,
                              float one, bool lifts, bool *fit) const {
        if constexpr (scales == Scales::kE8M0) {
            using Powers = PowersOfTwo<T, S::kPlaced>;
            if (one == 1.0f && lifts == S::kPlaced && Powers::holds(eight.word[0]) &&
                Powers::holds(eight.word[1])) {
                const uint2 first = Powers::pairs(eight.word[0]);
                const uint2 second = Powers::pairs(eight.word[1]);
                return {first.x, first.y, second.x, second.y};
            }
        }
        const int64_t row = int64_t(row_tile) * 16 + threadIdx.x % 2 * 4;
        uint32_t pair[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            pair[q] = pair_of<scales>(row, group, eight, q, one);
            if constexpr (S::kPlaced) {
                if (!lifts) continue;
                *fit &= !Decode::overflows(pair[q]);
                pair[q] = Decode::lifted(pair[q]);
            }
        }
        return {pair[0], pair[1], pair[2], pair[3]};
    }

    // The scales of rows q and q + 8 of the four of an eight, as a pair of x's type. `one`: what
    // E8M0 and E4M3 are multiplied by.
    template <Scales scales>
    __device__ uint32_t pair_of(int64_t row, int32_t group, const Eight<scales> &eight, int q,
                                float one) const {
        if constexpr (scales == Scales::kF32) {
            return pack_pair(T{}, __uint_as_float(eight.word[2 * q]),
                             __uint_as_float(eight.word[2 * q + 1]));
        } else if constexpr (scales == Scales::kF16 || scales == Scales::kBF16) {
            constexpr bool kHalf = scales == Scales::kF16;
            if (kHalf == std::is_same_v<T, F16>) return eight.word[q];
            const float2 v =
                scale_pair_of < kHalf ? ScaleKind::kF16 : ScaleKind::kBF16 > (eight.word[q]);
            return pack_pair(T{}, v.x, v.y);
        } else {
            const uint32_t both = eight.word[q / 2] >> q % 2 * 16;
            if constexpr (scales == Scales::kE8M0) {
                return pack_pair(T{}, __fmul_rn(e8m0_value(int(both & 255)), one),
                                 __fmul_rn(e8m0_value(int(both >> 8 & 255)), one));
            } else if constexpr (scales == Scales::kE4M3) {
                const float2 v = e4m3_pair(both);
                return pack_pair(T{}, __fmul_rn(v.x, one), __fmul_rn(v.y, one));
            }
            return pack_pair(T{}, looked_up(both & 255, row + q, group),
                             looked_up(both >> 8 & 255, row + q + 8, group));
        }
    }

    __device__ float looked_up(uint32_t code, int64_t row, int32_t group) const {
        const Geometry &s = g.p.w.geometry;
        const int64_t number = min64(row, s.n - 1) * s.groups_per_row + group;
        const float second =
            __ldg(reinterpret_cast<const float *>(g.p.w.second) + (number >> g.p.second_shift));
        return nested_scale(g.scale_codes[code], second, g.second_bias);
    }

    __device__ void copy_zeros(const Item &it, int32_t tile, uint32_t to) const {
        constexpr int32_t kOfRow = 4 * kTiles;
        const int32_t lane = threadIdx.x & 31, part = tile * 4 + lane % kOfRow;
        const int32_t rows = part < g.p.parts ? g.p.row_tiles : 0, group = part >> g.p.part_shift;
#pragma unroll 1
        for (int32_t i = lane / kOfRow; i < S::kRowTiles; i += 32 / kOfRow) {
            const int32_t row = it.template tile<S>(i);
            const int64_t at = row < rows ? row * g.p.w.geometry.groups_per_row + group : 0;
            copy_piece<8>(to + kZeros + (i * kOfRow + lane % kOfRow) * 8, g.p.w.zero + at * 8,
                          row < rows);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

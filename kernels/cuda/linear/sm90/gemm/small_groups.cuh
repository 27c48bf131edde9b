// Scales and zeros of weights in groups of 16 and 32 columns: the producers make a pair of x's type
// for rows r and r + 8 of each 16 columns from scales of any kind, so that a consumer multiplies
// the operands of a step by it, whatever the group.
#pragma once
#include "cuda/linear/sm90/gemm/shape.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct SmallGroups {
    const Shared<S> &g;
    using T = typename S::T;
    using Decode = typename S::Decode;
    static constexpr int kTiles = S::kTiles;
    static constexpr uint32_t kScales = S::kX + S::kCodes, kZeros = kScales + S::kScale;

    enum class Scales { kF32, kF16, kBF16, kE8M0, kE4M3, kTable };

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
        switch (g.p.w.scale_format) {
            case QK_FORMAT_F32: return make_parts<Scales::kF32>(it, turn, others);
            case QK_FORMAT_F16: return make_parts<Scales::kF16>(it, turn, others);
            case QK_FORMAT_BF16: return make_parts<Scales::kBF16>(it, turn, others);
        }
        switch (g.p.coded) {
            case QK_FORMAT_E8M0: return make_parts<Scales::kE8M0>(it, turn, others);
            case QK_FORMAT_E4M3: return make_parts<Scales::kE4M3>(it, turn, others);
            default: return make_parts<Scales::kTable>(it, turn, others);
        }
    }

    template <Scales scales>
    __device__ void make_parts(const Item &it, Turn &turn, int32_t &others) const {
        constexpr int kAll = S::kRowTiles * kTiles * 4 * 2;  // eights of a stage
        constexpr int kRound = 16 / kWords<scales>, kEach = kAll / 32;
        static_assert(kAll % 32 == 0);
        const int32_t lane = threadIdx.x & 31;
        constexpr bool kCoded = kWords<scales> == 2;
        const float one = kCoded ? __ldg(reinterpret_cast<const float *>(g.p.w.second)) : 1.0f;
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(g.p.slots)) {
            if (others > 0) {
                --others;
                continue;
            }
            others = S::kMakers - 1;
            bool waited = false;
            const uint32_t to = g.slot(turn.slot), full_here = g.full + turn.slot * 8;
#pragma unroll 1
            for (int first = 0; first < kEach; first += kRound) {
                Eight<scales> eight[kRound];
#pragma unroll
                for (int u = 0; u < kRound; ++u) {
                    if (first + u < kEach)
                        eight[u] = load_eight<scales>(it, tile, (first + u) * 32 + lane);
                }
                if (!waited) barrier_wait(g.empty + turn.slot * 8, turn.parity);
                waited = true;
#pragma unroll
                for (int u = 0; u < kRound; ++u) {
                    if (first + u < kEach)
                        store_eight<scales>(it, tile, (first + u) * 32 + lane, eight[u], one, to);
                }
            }
            if constexpr (!Decode::kLut4) {
                if (g.p.w.zero != nullptr) copy_zeros(it, tile, to);
                copies_arrive(full_here);
            }
            barrier_arrive(full_here);
        }
    }

    // Number i of a stage's eights: its row of tiles, tile of k and group; whether it is there.
    struct Place8 {
        int32_t row_tile, tile, group, half;
        bool in;
        __device__ Place8(const GemmProblem &p, const Item &it, int32_t first, int32_t i) {
            half = i & 1;
            const int32_t part = i >> 1 & 3;
            tile = first + (i >> 3) % kTiles;
            row_tile = it.template tile<S>((i >> 3) / kTiles);
            in = row_tile < p.row_tiles && tile * 4 + part < p.parts;
            group = in ? (tile * 4 + part) >> p.part_shift : 0;
        }
        __device__ int64_t at(const GemmProblem &p) const {
            return in ? (row_tile * p.w.geometry.groups_per_row + group) * 16 : 0;
        }
    };

    template <Scales scales>
    __device__ Eight<scales> load_eight(const Item &it, int32_t tile, int32_t i) const {
        const Place8 place(g.p, it, tile, i);
        const auto *const from = reinterpret_cast<const uint32_t *>(g.p.w.scale) +
                                 (place.at(g.p) + place.half * 8) / 8 * kWords<scales>;
        Eight<scales> eight;
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

    // The scales of rows q and q + 8 of the four of an eight, as a pair of x's type. `one`: what
    // E8M0 and E4M3 are multiplied by.
    template <Scales scales>
    __device__ uint32_t pair_of(const Place8 &place, const Eight<scales> &eight, int q,
                                float one) const {
        if (!place.in) return 0;
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
            const int64_t row = int64_t(place.row_tile) * 16 + place.half * 4 + q;
            return pack_pair(T{}, looked_up(both & 255, row, place.group),
                             looked_up(both >> 8 & 255, row + 8, place.group));
        }
    }

    __device__ float looked_up(uint32_t code, int64_t row, int32_t group) const {
        const Geometry &s = g.p.w.geometry;
        const int64_t number = min64(row, s.n - 1) * s.groups_per_row + group;
        const float second =
            __ldg(reinterpret_cast<const float *>(g.p.w.second) + (number >> g.p.second_shift));
        return nested_scale(g.scale_codes[code], second, g.second_bias);
    }

    template <Scales scales>
    __device__ void store_eight(const Item &it, int32_t tile, int32_t i, const Eight<scales> &eight,
                                float one, uint32_t to) const {
        const Place8 place(g.p, it, tile, i);
        shared_store_16(
            to + kScales + i * 16,
            {pair_of<scales>(place, eight, 0, one), pair_of<scales>(place, eight, 1, one),
             pair_of<scales>(place, eight, 2, one), pair_of<scales>(place, eight, 3, one)});
    }

    __device__ void copy_zeros(const Item &it, int32_t tile, uint32_t to) const {
#pragma unroll 1
        for (int32_t i = int32_t(threadIdx.x & 31); i < S::kRowTiles * kTiles * 4; i += 32) {
            const Place8 place(g.p, it, tile, 2 * i);
            copy_piece<8>(to + kZeros + i * 8, g.p.w.zero + place.at(g.p) / 2, place.in);
        }
    }
};

}  // namespace
}  // namespace qk::cuda

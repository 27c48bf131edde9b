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

    // Eight scales of a row of tiles and a group as they are stored: of rows r, r + 8, r + 1, ...
    template <int words>
    struct Eight {
        uint32_t word[words];
    };

    __device__ void make(const Item &it, Turn &turn, int32_t &others) const {
        switch (g.p.w.scale_format) {
            case QK_FORMAT_F32: return make_parts<8>(it, turn, others);
            case QK_FORMAT_LUT8: return make_parts<2>(it, turn, others);
            default: return make_parts<4>(it, turn, others);
        }
    }

    template <int words>
    __device__ void make_parts(const Item &it, Turn &turn, int32_t &others) const {
        constexpr int kAll = S::kRowTiles * kTiles * 4 * 2;  // eights of a stage
        constexpr int kRound = 16 / words, kEach = kAll / 32;
        static_assert(kAll % 32 == 0);
        const int32_t lane = threadIdx.x & 31;
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
                Eight<words> eight[kRound];
#pragma unroll
                for (int u = 0; u < kRound; ++u) {
                    if (first + u < kEach)
                        eight[u] = load_eight<words>(it, tile, (first + u) * 32 + lane);
                }
                if (!waited) barrier_wait(g.empty + turn.slot * 8, turn.parity);
                waited = true;
#pragma unroll
                for (int u = 0; u < kRound; ++u) {
                    if (first + u < kEach)
                        store_eight<words>(it, tile, (first + u) * 32 + lane, eight[u], to);
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
            row_tile = it.row_tile + (i >> 3) / kTiles;
            in = row_tile < p.row_tiles && tile * 4 + part < p.parts;
            group = in ? (tile * 4 + part) >> p.part_shift : 0;
        }
        __device__ int64_t at(const GemmProblem &p) const {
            return in ? (row_tile * p.w.geometry.groups_per_row + group) * 16 : 0;
        }
    };

    template <int words>
    __device__ Eight<words> load_eight(const Item &it, int32_t tile, int32_t i) const {
        const Place8 place(g.p, it, tile, i);
        const auto *const from = reinterpret_cast<const uint32_t *>(g.p.w.scale) +
                                 (place.at(g.p) + place.half * 8) / 8 * words;
        Eight<words> eight;
        if constexpr (words == 2) {
            const uint2 v = __ldg(reinterpret_cast<const uint2 *>(from));
            eight.word[0] = v.x, eight.word[1] = v.y;
        } else {
#pragma unroll
            for (int q = 0; q < words / 4; ++q) {
                const uint4 v = __ldg(reinterpret_cast<const uint4 *>(from) + q);
                eight.word[4 * q] = v.x, eight.word[4 * q + 1] = v.y;
                eight.word[4 * q + 2] = v.z, eight.word[4 * q + 3] = v.w;
            }
        }
        return eight;
    }

    // The scales of rows q and q + 8 of the four of an eight, as a pair of x's type.
    template <int words>
    __device__ uint32_t pair_of(const Place8 &place, const Eight<words> &eight, int q) const {
        if (!place.in) return 0;
        float scale[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (words == 8) {
                scale[i] = __uint_as_float(eight.word[2 * q + i]);
            } else if constexpr (words == 4) {
                const uint32_t bits = i == 0 ? eight.word[q] & 0xffffu : eight.word[q] >> 16;
                scale[i] = g.p.w.scale_format == QK_FORMAT_BF16
                               ? __uint_as_float(bits << 16)
                               : __half2float(__ushort_as_half(uint16_t(bits)));
            } else {
                const Geometry &s = g.p.w.geometry;
                const uint32_t code = eight.word[q / 2] >> (q % 2 * 16 + i * 8) & 255;
                const int64_t row = int64_t(place.row_tile) * 16 + place.half * 4 + q + i * 8;
                const int64_t number = min64(row, s.n - 1) * s.groups_per_row + place.group;
                const float second = __ldg(reinterpret_cast<const float *>(g.p.w.second) +
                                           (number >> g.p.second_shift));
                scale[i] = nested_scale(g.scale_codes[code], second, g.second_bias);
            }
        }
        return pack_pair(T{}, scale[0], scale[1]);
    }

    template <int words>
    __device__ void store_eight(const Item &it, int32_t tile, int32_t i, const Eight<words> &eight,
                                uint32_t to) const {
        const Place8 place(g.p, it, tile, i);
        shared_store_16(to + kScales + i * 16,
                        {pair_of(place, eight, 0), pair_of(place, eight, 1),
                         pair_of(place, eight, 2), pair_of(place, eight, 3)});
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

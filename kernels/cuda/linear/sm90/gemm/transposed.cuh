// A third source of operands for the large matrix kernel: y = x . w from packed tiles, what comes
// back through a layer. The products sum over the rows of w, so a warpgroup has sums of 64 columns:
//
//     y[64 columns, N rows of x] += transpose(w[64 rows, 64 columns]) . transpose(x[N, 64 rows])
//
// x is what it is in the other products. Of w a stage has the tiles of 64 rows and 64 R columns, as
// they are in memory. They are turned over where they are loaded (linear/transposed_codes.cuh):
// warp i of a warpgroup has columns 16 i to 16 i + 15 of four tiles, one below the other, by one
// instruction. Which of the 16 a lane has is TransposedOrder's to say.
//
// Scales and zeros belong to rows of w, which the products sum over: three warps of the producers
// make those of two rows a word, in x's type, from scales of any kind.
#pragma once
#include "cuda/linear/sm90/gemm/launch.cuh"
#include "cuda/linear/transposed_codes.cuh"

namespace qk::cuda {
namespace {

template <class S>
struct TransposedGemm : Shared<S> {
    using T = typename S::T;
    using Decode = typename S::Decode;
    using Shared<S>::p, Shared<S>::full, Shared<S>::empty, Shared<S>::table;
    using Shared<S>::scale_codes, Shared<S>::second_bias, Shared<S>::slot;
    static constexpr int N = S::N, kTiles = S::kTiles, kAcc = N / 2;
    static constexpr uint32_t kScales = S::kX + S::kCodes, kTile = S::kCodes / kTiles;
    static constexpr uint32_t kRow = S::R * 512;  // bytes of a row of tiles
    // A unit: what is made for four rows 2 q, 2 q + 8, 2 q + 1, 2 q + 9 and a group of columns. An
    // eight: the scales of two units, which are side by side in memory.
    static constexpr uint32_t kUnit = 2 * S::kPair;
    static constexpr int kEights = kTiles * 4 * S::R * S::kParts * 2;  // of a stage
    static constexpr int kEach = (kEights + 31) / 32;                  // of a lane that makes them
    static_assert(S::R % 2 == 0 && kEights * 2 * kUnit == S::kScale);
    using Scales = StoredScales;
    using Groups = SmallGroups<S>;

    __device__ static void prepare(const GemmProblem &p, uint8_t *shared, float *scale_codes) {
        const bool coded = p.w.scale_format == QK_FORMAT_LUT8;
        constexpr int kOthers = S::kThreads - 32, kWarp = S::kConsumers * 128;
        const int thread = int(threadIdx.x) - (int(threadIdx.x) > kWarp ? 32 : 0);
        static_assert(kOthers >= 256);
        const float code = coded ? load_as<float>(p.w.code, thread & 255) : 0.0f;
        if constexpr (Decode::kLut4) Decode::prepare(p.w, shared, thread, kOthers);
        if (coded && thread < 256) scale_codes[thread] = code;
    }

    __device__ bool fits() const { return true; }

    // ---- producers

    __device__ void issue_boxes(const Item &it, Turn &turn) const {
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot), barrier = full + turn.slot * 8;
            barrier_expect(barrier, S::kX + S::kCodes);
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                tensor_copy(to + S::kX + t * kTile, p.code_map, 0, it.row_tile, (tile + t) * 4,
                            barrier);
                tensor_copy(to + t * (S::kX / kTiles), p.x_map, (tile + t) * 64, it.x_first,
                            barrier);
            }
        }
    }

    __device__ void make_scales(const Item &it, Turn &turn, int32_t &others) const {
        with_stored_scales(p, [&]<Scales scales>() { make<scales>(it, turn, others); });
    }

    // As it is in memory. Second scales of small groups, which would need too many registers, are
    // loaded where they are used.
    template <Scales scales>
    static constexpr bool kSeconds = scales == Scales::kTable && !S::kSmall;
    template <Scales scales>
    struct Eight {
        typename Groups::template Eight<scales> scale;
        float second[kSeconds<scales> ? 8 : 1];
        uint32_t zeros;
    };

    // What a lane makes of each stage: eights of one group, kStep rows of tiles apart.
    struct Place {
        static constexpr int kStep = 16 / (S::kParts * S::R);
        int32_t row, rows, group, half;  // rows: of tiles, 0 where the weight has not the group

        __device__ Place(const GemmProblem &p, const Item &it) {
            const int32_t lane = int32_t(threadIdx.x & 31), of_tile = lane / (2 * S::kParts);
            const int32_t part = lane / 2 % S::kParts;
            const int32_t column = it.row_tile + of_tile % S::R * 4 + part;  // of 16
            const bool there = column < p.row_tiles && lane < kEights;
            row = of_tile / S::R, half = lane % 2;
            rows = there ? int32_t((p.w.geometry.n + 15) / 16) : 0;
            group = there ? column >> p.part_shift : 0;
        }
    };

    // A warp makes the scales of a stage before there is room for them. Once they are stored it
    // asks for those of its next one: there is time for loads to come from afar.
    template <Scales scales>
    __device__ void make(const Item &it, Turn &turn, int32_t &others) const {
        const Place at(p, it);
        const float one = Groups::template kWords<scales> == 2
                              ? __ldg(reinterpret_cast<const float *>(p.w.second))
                              : 1.0f;
        Eight<scales> eights[kEach];
        const auto load = [&](int32_t tile) {
#pragma unroll
            for (int u = 0; u < kEach; ++u) {
                eights[u] = load_eight<scales>(at, tile * 4 + at.row + u * Place::kStep);
            }
        };
        load(it.first + others * kTiles);
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            if (others > 0) {
                --others;
                continue;
            }
            others = S::kMakers - 1;
            uint4 pairs[kEach];
            uint32_t zeros[kEach];
#pragma unroll
            for (int u = 0; u < kEach; ++u) {
                const int32_t row = tile * 4 + at.row + u * Place::kStep;
                pairs[u] = pairs_of<scales>(at, row, eights[u], one);
                zeros[u] = eights[u].zeros;
            }
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t lane = threadIdx.x & 31, to = slot(turn.slot) + kScales;
#pragma unroll
            for (int u = 0; u < kEach; ++u) {
                const uint32_t number = u * 32 + lane;
                if (kEights >= 32 || number < kEights) store(to, number, pairs[u], zeros[u]);
            }
            barrier_arrive(full + turn.slot * 8);
            load(tile + S::kMakers * kTiles);
        }
    }

    template <Scales scales>
    __device__ Eight<scales> load_eight(const Place &at, int32_t row) const {
        Eight<scales> eight = {};
        const bool there = row < at.rows;
        const int64_t of_row = p.w.geometry.groups_per_row;
        const int64_t number = (row * of_row + at.group) * 2 + at.half;
        constexpr int kWord = Groups::template kWords<scales>;
        const auto *const from = reinterpret_cast<const uint32_t *>(p.w.scale);
        eight.scale = Groups::template load_eight<scales>(from + number * kWord, there);
        if constexpr (kSeconds<scales>) {
            const int64_t last = p.w.geometry.n - 1;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int64_t r = min64(int64_t(row) * 16 + at.half * 4 + i / 2 + i % 2 * 8, last);
                const int64_t of = r * of_row + at.group;
                eight.second[i] = __ldg(reinterpret_cast<const float *>(p.w.second) +
                                        (p.second_shift < 31 ? of >> p.second_shift : 0));
            }
        }
        if constexpr (!Decode::kLut4) {
            eight.zeros = 0x88888888u;
            if (p.w.zero != nullptr && there) {
                eight.zeros = __ldg(reinterpret_cast<const uint32_t *>(p.w.zero) + number);
            }
        }
        return eight;
    }

    // In x's type: of rows r and r + 1 of a unit, of those 8 further down, and the same of the
    // next. Zeros past the last row, where the padding may be a NaN.
    template <Scales scales>
    __device__ uint4 pairs_of(const Place &at, int32_t row, const Eight<scales> &eight,
                              float one) const {
        uint4 v;
        if constexpr (kSeconds<scales>) {
            const auto pair = [&](int i) {
                const uint32_t both = eight.scale.word[i / 2] >> i % 2 * 16;
                return pack_pair(
                    T{}, nested_scale(scale_codes[both & 255], eight.second[2 * i], second_bias),
                    nested_scale(scale_codes[both >> 8 & 255], eight.second[2 * i + 1],
                                 second_bias));
            };
            v = {pair(0), pair(1), pair(2), pair(3)};
        } else {
            v = Groups{*this}.template pairs_of<scales>(row, at.group, eight.scale, one, false,
                                                        nullptr);
        }
        const int64_t left = row < at.rows ? p.w.geometry.n - int64_t(row) * 16 : 0;
        if (left < 16) {
            const auto there = [&](uint32_t pair, int i) {
                const int32_t r = at.half * 4 + i;
                return pair & ((r < left ? 0xffffu : 0u) | (r + 8 < left ? 0xffff0000u : 0u));
            };
            v = {there(v.x, 0), there(v.y, 1), there(v.z, 2), there(v.w, 3)};
        }
        return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632)};
    }

    // Eight number `number` of a stage; with what is subtracted for zeros.
    __device__ static void store(uint32_t to, uint32_t number, const uint4 &v, uint32_t zeros) {
        if constexpr (Decode::kLut4) {
            shared_store_16(to + number * 2 * kUnit, v);
        } else {
            const Zeros z = U4<T>::zeros_of(__byte_perm(zeros, 0, 0x4140));
            const Zeros next = U4<T>::zeros_of(__byte_perm(zeros, 0, 0x4342));
            shared_store_16(to + number * 2 * kUnit, {v.x, v.y, z.low, z.high});
            shared_store_16(to + number * 2 * kUnit + kUnit, {v.z, v.w, next.low, next.high});
        }
    }

    // ---- consumers

    // What a lane adds to a slot to find its row of matrices of codes, and its units.
    struct Places {
        uint32_t codes, units;

        __device__ Places(const TransposedGemm &, const Item &) {
            const uint32_t lane = threadIdx.x & 31, r = lane & 7, row = lane >> 3;
            const uint32_t warp = threadIdx.x >> 5 & 3, group = threadIdx.x >> 7;
            const uint32_t line = group * 4 + r / 2;  // of 128 bytes
            codes = S::kX + row * kRow + line * 128 + ((r % 2 * 4 + warp) ^ (line & 7)) * 16;
            const uint32_t part = S::kParts == 1 ? 0 : warp;
            units = kScales + ((group * S::kParts + part) * 4 + (lane & 3)) * kUnit;
        }
    };

    struct Raw {  // a lane's share of a tile of 64 rows as it is stored: of 16 rows each
        uint32_t words[4], scale[4][2];
        Zeros zero[Decode::kLut4 ? 1 : 4];
    };

    __device__ void read(const Places &at, uint32_t slot_at, int32_t, int t, Raw &raw) const {
        const uint32_t stage = slot(slot_at);
        constexpr uint32_t kOfTile = S::kScale / kTiles;
        shared_load_matrices_transposed(stage + at.codes + t * kTile, raw.words);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t unit = stage + at.units + t * kOfTile + j * (kOfTile / 4);
            if constexpr (Decode::kLut4) {
                const uint2 v = shared_load_8(unit);
                raw.scale[j][0] = v.x, raw.scale[j][1] = v.y;
            } else {
                const uint4 v = shared_load_16(unit);
                raw.scale[j][0] = v.x, raw.scale[j][1] = v.y;
                raw.zero[j] = {v.z, v.w};
            }
        }
    }

    // Pairs of rows: of a column as they are, 8 further down, then of the other column.
    __device__ void decode(const Raw &raw, uint32_t (&a)[4][4], float (&)[2]) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Zeros &zero = raw.zero[Decode::kLut4 ? 0 : j];
            uint32_t word = raw.words[j], c[4];
            if constexpr (Decode::kLut4) word = word_across(word);
            Decode::decode(word, zero, table, (threadIdx.x & 31) * 4, c);
            scale_step<T>(c, raw.scale[j]);
            a[j][0] = c[0], a[j][1] = c[2], a[j][2] = c[1], a[j][3] = c[3];
        }
    }
};

template <class S>
requires S::kTransposed struct SourceOf<S> {
    using Type = TransposedGemm<S>;
};

template <class T, class Decode, bool small>
Status run_transposed_cut(GemmCut cut, const LinearArgs &args, const Launch &launch,
                          GemmProblem *p) {
    using D = Transposed<Decode>;
    constexpr ScaleKind any = ScaleKind::kNested;
    switch (cut) {
        case GemmCut::k128x64:
            if (p->m <= 32) {
                return run_wide<GemmShape<T, D, any, 32, 2, 1, 2, small>>(args, launch, p);
            }
            return run_wide<GemmShape<T, D, any, 64, 2, 1, 2, small>>(args, launch, p);
        case GemmCut::k128x128:
            return run_wide<GemmShape<T, D, any, 128, 2, 1, 2, small>>(args, launch, p);
        default: return run_wide<GemmShape<T, D, any, 256, 2, 1, 1, small>>(args, launch, p);
    }
}

}  // namespace

template <Codes codes, qk_format x>
Status Sm90GemmTransposed<codes, x>::run(GemmCut cut, const LinearArgs &args, const Launch &launch,
                                         GemmProblem *p) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, DecodeU4<T>, DecodeLut4<T>>;
    return p->part_shift < 2 ? run_transposed_cut<T, Decode, true>(cut, args, launch, p)
                             : run_transposed_cut<T, Decode, false>(cut, args, launch, p);
}

}  // namespace qk::cuda

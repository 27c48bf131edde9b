// A third source of operands for the large matrix kernel: y = x . w from packed tiles, what comes
// back through a layer. The products sum over the rows of w, so a warpgroup has sums of 64 columns:
//
//     y[64 columns, N rows of x] += transpose(w[64 rows, 64 columns]) . transpose(x[N, 64 rows])
//
// x is what it is in the other products. Of w a stage has the tiles of 64 rows and 64 R columns, as
// they are in memory. A lane's operands of 16 rows, columns p and p + 8 and rows 2 q, 2 q + 1 and
// those 8 further down, are halves of two words, of lanes (2 q, c) and (2 q + 1, c) of a tile
// (linear/transposed.cu): both are in one line of 128 bytes. Which words a warp takes
// (TransposedOrder) spreads its loads over all banks.
//
// Scales and zeros belong to rows of w, which the products sum over: three warps of the producers
// make those of four rows a pair of columns, in x's type, from scales of any kind.
#pragma once
#include "cuda/linear/sm90/gemm/launch.cuh"

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
    // A unit: what is made for four rows 2 q, 2 q + 8, 2 q + 1, 2 q + 9 and a group of columns.
    static constexpr uint32_t kUnit = 2 * S::kPair;
    static constexpr int kUnits = kTiles * 4 * S::R * S::kParts * 4;  // of a stage
    static_assert(S::R % 2 == 0 && kUnits % 32 == 0 && kUnits * kUnit == S::kScale);

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
        switch (p.w.scale_format) {
            case QK_FORMAT_F32: return make<ScaleKind::kF32>(it, turn, others);
            case QK_FORMAT_F16: return make<ScaleKind::kF16>(it, turn, others);
            case QK_FORMAT_BF16: return make<ScaleKind::kBF16>(it, turn, others);
            default: return make<ScaleKind::kNested>(it, turn, others);
        }
    }

    // A warp asks for the scales of its next stages before it makes those of one: there is time for
    // loads to come from afar.
    template <ScaleKind kind>
    __device__ void make(const Item &it, Turn &turn, int32_t &others) const {
        constexpr int kEach = kUnits / 32, kAhead = S::kSmall ? 1 : N == 256 ? 2 : 3;
        const int32_t lane = int32_t(threadIdx.x & 31);
        Stored<kind> stored[kAhead][kEach];
        int32_t tile = it.first, next = it.first + others * kTiles;  // to be loaded
        const auto load = [&](Stored<kind>(&to)[kEach]) {
#pragma unroll
            for (int u = 0; u < kEach; ++u) to[u] = load_unit<kind>(it, next, u * 32 + lane);
            next += S::kMakers * kTiles;
        };
#pragma unroll
        for (int a = 0; a < kAhead; ++a) load(stored[a]);
        while (true) {
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                for (; others > 0 && tile < it.last; --others, tile += kTiles) {
                    turn.next(p.slots);
                }
                if (tile >= it.last) return;
                others = S::kMakers - 1;
                barrier_wait(empty + turn.slot * 8, turn.parity);
                const uint32_t to = slot(turn.slot) + kScales + uint32_t(lane) * kUnit;
#pragma unroll
                for (int u = 0; u < kEach; ++u) {
                    const uint4 v = unit_of(it, tile, u * 32 + lane, stored[a][u]);
                    if constexpr (Decode::kLut4) shared_store_8(to + u * 32 * kUnit, {v.x, v.y});
                    if constexpr (!Decode::kLut4) shared_store_16(to + u * 32 * kUnit, v);
                }
                barrier_arrive(full + turn.slot * 8);
                load(stored[a]);
                turn.next(p.slots);
                tile += kTiles;
            }
        }
    }

    // Of four rows r, r + 8, r + 1, r + 9 and a group, as they are in memory.
    template <ScaleKind kind>
    struct Stored {
        uint32_t scale[kind == ScaleKind::kF32 ? 4 : kind == ScaleKind::kNested ? 1 : 2], zeros;
        float second[kind == ScaleKind::kNested ? 4 : 1];
    };

    // Where a unit's rows and group are, and whether the weight has them.
    struct Unit {
        int64_t row, at;  // at: pairs in front of it in the plane of scales
        int32_t group;
        bool in;
        __device__ Unit(const GemmProblem &p, const Item &it, int32_t tile, int32_t number) {
            const int32_t q = number % 4, part = number / 4 % S::kParts;
            const int32_t of_tile = number / (4 * S::kParts);
            const int32_t row_tile = tile * 4 + of_tile / S::R;
            const int32_t column = it.row_tile + of_tile % S::R * 4 + part;  // of 16
            row = int64_t(row_tile) * 16 + q * 2;
            in = row < p.w.geometry.n && tile < it.last && column < p.row_tiles;
            group = in ? column >> p.part_shift : 0;
            at = in ? (row_tile * p.w.geometry.groups_per_row + group) * 8 + q * 2 : 0;
        }
    };

    template <ScaleKind kind>
    __device__ Stored<kind> load_unit(const Item &it, int32_t tile, int32_t number) const {
        const Unit unit(p, it, tile, number);
        Stored<kind> stored = {};
        const uint8_t *const from = p.w.scale + unit.at * kPairBytes<kind>;
        if constexpr (kind == ScaleKind::kF32) {
            const uint4 v = __ldg(reinterpret_cast<const uint4 *>(from));
            stored.scale[0] = v.x, stored.scale[1] = v.y;
            stored.scale[2] = v.z, stored.scale[3] = v.w;
        } else if constexpr (kind == ScaleKind::kNested) {
            stored.scale[0] = __ldg(reinterpret_cast<const uint32_t *>(from));
            const auto *const seconds = reinterpret_cast<const float *>(p.w.second);
            const Geometry &s = p.w.geometry;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int64_t of = min64(unit.row + i / 2 + i % 2 * 8, s.n - 1);
                const int64_t number_of = of * s.groups_per_row + unit.group;
                stored.second[i] =
                    __ldg(seconds + (p.second_shift < 31 ? number_of >> p.second_shift : 0));
            }
        } else {
            const uint2 v = __ldg(reinterpret_cast<const uint2 *>(from));
            stored.scale[0] = v.x, stored.scale[1] = v.y;
        }
        if constexpr (!Decode::kLut4) {
            stored.zeros = 0x8888;
            if (p.w.zero != nullptr) {
                stored.zeros = __ldg(reinterpret_cast<const uint16_t *>(p.w.zero + unit.at));
            }
        }
        return stored;
    }

    // The scales of rows r and r + 1, of those 8 further down, and what is subtracted for their
    // zeros. Zeros past the last row, where the padding may be a NaN.
    template <ScaleKind kind>
    __device__ uint4 unit_of(const Item &it, int32_t tile, int32_t number,
                             const Stored<kind> &stored) const {
        const Unit unit(p, it, tile, number);
        float scale[4];
        if constexpr (kind == ScaleKind::kF32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scale[i] = __uint_as_float(stored.scale[i]);
        } else if constexpr (kind == ScaleKind::kNested) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scale[i] = nested_scale(scale_codes[stored.scale[0] >> 8 * i & 255],
                                        stored.second[i], second_bias);
            }
        } else {
            const float2 low = scale_pair_of<kind>(stored.scale[0]);
            const float2 high = scale_pair_of<kind>(stored.scale[1]);
            scale[0] = low.x, scale[1] = low.y, scale[2] = high.x, scale[3] = high.y;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!unit.in || unit.row + i / 2 + i % 2 * 8 >= p.w.geometry.n) scale[i] = 0;
        }
        Zeros z = {};
        if constexpr (!Decode::kLut4) {
            z = U4<T>::zeros_of((stored.zeros & 0xff) | (stored.zeros & 0xff00) << 8);
        }
        return {pack_pair(T{}, scale[0], scale[2]), pack_pair(T{}, scale[1], scale[3]), z.low,
                z.high};
    }

    // ---- consumers

    // What a lane adds to a slot to find its codes, of two rows, and its units.
    struct Places {
        uint32_t even, odd, units;

        __device__ Places(const TransposedGemm &, int32_t) {
            const uint32_t lane = threadIdx.x & 31, q = lane & 3, c = lane >> 3;
            const uint32_t warp = threadIdx.x >> 5 & 3, group = threadIdx.x >> 7;
            const uint32_t line = group * 4 + q;  // of 128 bytes
            even = S::kX + line * 128 + (c ^ (line & 7)) * 16 + (warp ^ c) * 4;
            odd = even ^ 64;
            const uint32_t part = S::kParts == 1 ? 0 : c;
            units = kScales + ((group * S::kParts + part) * 4 + q) * kUnit;
        }
    };

    struct Raw {  // a lane's share of a tile of 64 rows as it is stored: of 16 rows each
        uint32_t words[4][2], scale[4][2];
        Zeros zero[Decode::kLut4 ? 1 : 4];
    };

    __device__ void read(const Places &at, uint32_t slot_at, int32_t, int t, Raw &raw) const {
        const uint32_t stage = slot(slot_at);
        constexpr uint32_t kOfTile = S::kScale / kTiles;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t row = t * kTile + j * kRow;
            raw.words[j][0] = shared_load_4(stage + at.even + row);
            raw.words[j][1] = shared_load_4(stage + at.odd + row);
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

    // Codes of columns p and p + 8 as a word like any other (tile/decode.cuh).
    __device__ static uint32_t word_of(const uint32_t (&rows)[2], bool odd) {
        if constexpr (Decode::kLut4) {
            const uint32_t shift = odd ? 4 : 0;
            return (rows[0] >> shift & 0x0f0f0f0fu) | (rows[1] << (4 - shift) & 0xf0f0f0f0u);
        }
        return __byte_perm(rows[0], rows[1], odd ? 0x7632 : 0x5410);
    }

    __device__ void decode(const Raw &raw, uint32_t (&a)[4][4], float (&)[2]) const {
        const bool odd = threadIdx.x & 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Zeros &zero = raw.zero[Decode::kLut4 ? 0 : j];
            uint32_t c[4];
            Decode::decode(word_of(raw.words[j], odd), zero, table, (threadIdx.x & 31) * 4, c);
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

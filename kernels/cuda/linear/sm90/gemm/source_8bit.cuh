// Another source of operands for the matrix kernels: 8-bit codes stored row after row, as a
// checkpoint has them (S8, E4M3, LUT8). The copy engine copies 64 R rows x 128 bytes, swizzled:
//
//   lane 4 g + t of a warp:  columns 2 t, 2 t + 1 | 8 + 2 t, 9 + 2 t   of 16, rows g and g + 8
//                            half of a word       | half of another
//
// A lane's word is of columns 2 t, 2 t + 1 in its lower half or (odd lanes) in the upper one; each
// of two words becomes a pair of numbers. Bytes per row of w: k of codes and the scales, read once.
//
// Scales are stored row after row too, one a row and group: three warps of the producers' load
// those of a stage, alternately, and store them in pairs, rows r and r + 8 side by side.
//
// Tables whose entries one number of x's type does not stand for are multiplied lane by lane, f32.
//
// Nothing is read before the kernel ahead has finished: the weight may be its work.
#pragma once
#include "cuda/linear/sm90/gemm/ring.cuh"
#include "cuda/tile/lut8.cuh"

namespace qk::cuda {
namespace {

// (word & mask) ^ bits in one instruction: without help both constants are immediates, one each.
__device__ inline uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t bits) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
    return result;
}

// The even bytes of a word as signed numbers, exactly.
//
// f16: 1024 + u has u in its lowest bits (or 32 + u / 32); u is the code plus 128. bf16 has room
// for 7 bits: 128 + the lower ones, less 128 or, for negative codes, 256.
template <bool scaled>
__device__ uint32_t signed_numbers(F16, uint32_t bytes) {
    constexpr uint32_t kZero = scaled ? 0x50805080u : 0x64806480u;
    return subtract_f16(and_xor(bytes, 0x00ff00ffu, kZero), kZero);
}
template <bool scaled>
__device__ uint32_t signed_numbers(BF16, uint32_t bytes) {
    return subtract_bf16(and_or(bytes, 0x007f007fu, 0x43004300u),
                         and_or(bytes, 0x00800080u, 0x43004300u));
}

// Codes that are converted, without a table. The scales of the large kernel are rounded to x's
// type: f16 lacks the range for small ones, so there a code is 32nds of itself, and its scale 32
// times as large.
template <class T>
struct ConvertedBytes {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = 0;

    template <bool scaled>
    static __device__ bool prepare(const WeightView &, uint8_t *, int, int) {
        return true;
    }
    template <bool scaled>
    static __device__ float scale_unit(const WeightView &) {
        return scaled && std::is_same_v<T, F16> ? 32 : 1;
    }
};

// Signed codes, 6 instructions for four in f16, 8 in bf16.
template <class T>
struct DecodeS8 : ConvertedBytes<T> {
    struct Lane {
        uint32_t pick;
        __device__ explicit Lane(uint32_t) : pick(threadIdx.x & 1 ? 0x7362u : 0x5140u) {}

        template <bool scaled>
        __device__ void decode(uint32_t first, uint32_t second, uint32_t &low,
                               uint32_t &high) const {
            const uint32_t bytes = __byte_perm(first, second, pick);
            low = signed_numbers<scaled>(T{}, bytes);
            high = signed_numbers<scaled>(T{}, bytes >> 8);
        }
    };
};

// E4M3, 3 instructions for four codes in f16.
template <class T>
struct DecodeE4m3 : ConvertedBytes<T> {
    struct Lane {
        uint32_t pick;
        __device__ explicit Lane(uint32_t) : pick(threadIdx.x & 1 ? 0x7632u : 0x5410u) {}

        template <bool scaled>
        static __device__ uint32_t numbers(uint32_t both) {
            const uint32_t pair = pair_of_e4m3(T{}, both);
            if constexpr (!scaled || std::is_same_v<T, BF16>) return pair;
            const uint32_t unit = 0x28002800u;  // 1/32
            const __half2 product = __hmul2(*reinterpret_cast<const __half2 *>(&pair),
                                            *reinterpret_cast<const __half2 *>(&unit));
            return *reinterpret_cast<const uint32_t *>(&product);
        }
        template <bool scaled>
        __device__ void decode(uint32_t first, uint32_t second, uint32_t &low,
                               uint32_t &high) const {
            const uint32_t both = __byte_perm(first, second, pick);
            low = numbers<scaled>(both);
            high = numbers<scaled>(both >> 16);
        }
    };
};

// Codes as entries of a table, each rounded once to x's type, in units of a power of two that
// scales are multiplied by. Entry b of lane l is at byte 256 b + 4 l (tile/decode.cuh).
template <class T>
struct DecodeLut8 {
    static constexpr bool kLut4 = true;
    static constexpr uint32_t kEntryBytes = kPairTableBytes;

    // Large: entries to 16, so that scales, rounded to f16 as well, are not far from what they
    // were.
    template <bool scaled>
    static __device__ float scale_unit(const WeightView &w) {
        constexpr int kTop = scaled ? 3 : 14;  // exponent
        return std::is_same_v<T, F16> ? table_unit<kTop>(load_entries(w.table)) : 1;
    }

    static __device__ uint32_t number(F16, float entry) {
        return __half_as_ushort(__float2half_rn(entry));
    }
    static __device__ uint32_t number(BF16, float entry) {
        __nv_bfloat16 v = __float2bfloat16_rn(entry);
        if (isinf(__bfloat162float(v)) && !isinf(entry)) v = __float2bfloat16_rz(entry);
        return __bfloat16_as_ushort(v);
    }
    // In f16 an entry far below the largest has few digits; the large kernel's bound allows that.
    // What is past k is code 0 times zeros, so its entry must be finite.
    template <bool scaled>
    static __device__ bool fits(int code, float entry, float unit) {
        if (!isfinite(entry)) return code > 0;
        if (scaled || std::is_same_v<T, BF16>) return true;
        const float back = __fmul_rn(__half2float(__float2half_rn(__fdiv_rn(entry, unit))), unit);
        return fabsf(__fadd_rn(entry, -back)) <= fabsf(entry) * 0x1p-11f;
    }

    // By `threads` threads, whole warps; whether all entries fit.
    template <bool scaled>
    static __device__ bool prepare(const WeightView &w, uint8_t *table, int thread, int threads) {
        const float unit = scale_unit<scaled>(w);
        const auto *const entries = reinterpret_cast<const float *>(w.table);
        bool all = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int code = thread % 32 + i * 32;
            all = all && fits<scaled>(code, __ldg(entries + code), unit);
        }
        for (int i = thread; i < 256 * 8; i += threads) {
            const uint32_t v = number(T{}, __fdiv_rn(__ldg(entries + i / 8), unit));
            *reinterpret_cast<uint4 *>(table + i / 8 * 256 + i % 8 * 16) = {v, v, v, v};
        }
        return __all_sync(~0u, all);
    }

    // Byte 0 of an address: the lane's bank; byte 1: the code; bytes 2, 3: zeros of `bank`.
    struct Lane {
        uint32_t table, bank, select[2];
        __device__ explicit Lane(uint32_t at)
            : table(at), bank((threadIdx.x & 31) * 4), select{threadIdx.x & 1 ? 0x5524u : 0x5504u,
                                                              threadIdx.x & 1 ? 0x5534u : 0x5514u} {
        }

        __device__ uint32_t pair(uint32_t word) const {
            const uint32_t first = shared_load_4(table + __byte_perm(word, bank, select[0]));
            const uint32_t second = shared_load_4(table + __byte_perm(word, bank, select[1]));
            return __byte_perm(first, second, 0x5410);
        }
        template <bool scaled>
        __device__ void decode(uint32_t first, uint32_t second, uint32_t &low,
                               uint32_t &high) const {
            low = pair(first);
            high = pair(second);
        }
    };
};

template <class S>
struct BytesGemm : Shared<S> {
    using T = typename S::T;
    using Decode = typename S::Decode;
    using Shared<S>::p, Shared<S>::full, Shared<S>::empty, Shared<S>::scale_codes;
    using Shared<S>::slot;
    static constexpr int kTiles = S::kTiles;
    static constexpr uint32_t kScales = S::kX + S::kCodes;
    static constexpr int kBoxTiles = S::kBoxTiles;
    static constexpr uint32_t kPitch = kBoxTiles * 64, kBox = S::kRows * kPitch;
    static constexpr int kLaneRows = S::kRows / 32;  // whose scales a lane loads
    static_assert(kTiles % kBoxTiles == 0);

    // The table of look-ups and that of nested scales, by every thread but those of the warp that
    // prepares the barriers; a barrier must follow.
    __device__ static void prepare(const GemmProblem &p, uint8_t *shared, float *scale_codes) {
        constexpr int kOthers = S::kThreads - 32, kWarp = S::kConsumers * 128;
        const int thread = int(threadIdx.x) - (int(threadIdx.x) > kWarp ? 32 : 0);
        wait_for_previous_kernel();
        const bool fits = Decode::template prepare<S::kScaled>(p.w, shared, thread, kOthers);
        if (S::kTable > 0 && threadIdx.x % 32 == 0) {
            scale_codes[256 + threadIdx.x / 32] = fits ? 1.0f : 0.0f;
        }
        if (p.w.scale_format != QK_FORMAT_LUT8 || thread >= 256) return;
        scale_codes[thread] = __ldg(reinterpret_cast<const float *>(p.w.code) + thread);
    }
    // Whether operands are exact enough for this table.
    __device__ bool fits() const {
        return S::kTable == 0 || scale_codes[256 + threadIdx.x / 32] != 0.0f;
    }
    // An item where they are not; the blocks of a cluster share its rows of x.
    __device__ void multiply_slowly(const Item &it, uint32_t rank, uint32_t split) const {
        if constexpr (S::kTable > 0) {
            const int64_t first = int64_t(it.row_tile) * 16, rows = min64(S::N, p.m - it.x_first);
            const Part part = {first,
                               first + S::kRows,
                               it.x_first + rows * rank / split,
                               it.x_first + rows * (rank + 1) / split,
                               int32_t(threadIdx.x) / 32,
                               S::kConsumers * 4};
            qk::cuda::multiply_slowly<T>(p.w, p.x, p.bias_type, p.bias, p.y, p.y_pitch, part);
        }
    }

    __device__ void issue_boxes(const Item &it, Turn &turn) const {
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            barrier_wait(empty + turn.slot * 8, turn.parity);
            const uint32_t to = slot(turn.slot), barrier = full + turn.slot * 8;
            barrier_expect(barrier, (S::kScaled ? S::kX : p.stage_x) + S::kCodes);
#pragma unroll
            for (int t = 0; t < kTiles; t += kBoxTiles) {
                tensor_copy(to + S::kX + uint32_t(t / kBoxTiles) * kBox, p.code_map,
                            (tile + t) * 64, it.row_tile * 16, barrier);
            }
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                tensor_copy(to + t * (S::kX / kTiles), p.x_map, (tile + t) * 64, it.x_first,
                            barrier);
            }
        }
    }

    // ---- scales

    // A lane's scales of one group: of rows lane, lane + 32, .. of the block.
    __device__ void load_scales(uint32_t row, int32_t group, float (&v)[kLaneRows]) const {
        const WeightView &w = p.w;
        const auto of_row = uint32_t(w.geometry.groups_per_row);
        const auto at = [&](int i) {
            return min(row + uint32_t(i) * 32, uint32_t(w.geometry.n) - 1) * of_row +
                   uint32_t(group);
        };
        if (w.scale_format == QK_FORMAT_F32) {
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                v[i] = __ldg(reinterpret_cast<const float *>(w.scale) + at(i));
            }
        } else if (w.scale_format == QK_FORMAT_LUT8) {
            uint32_t code[kLaneRows];
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                code[i] = __ldg(w.scale + at(i));
                v[i] = __ldg(reinterpret_cast<const float *>(w.second) + (at(i) >> p.second_shift));
            }
            const float bias = __ldg(reinterpret_cast<const float *>(w.bias));
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                v[i] = nested_scale(scale_codes[code[i]], v[i], bias);
            }
        } else {
            const auto *const bits = reinterpret_cast<const uint16_t *>(w.scale);
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                v[i] = __uint_as_float(uint32_t(__ldg(bits + at(i))) << 16);
            }
            if (w.scale_format == QK_FORMAT_BF16) return;
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                v[i] = __half2float(__ushort_as_half(uint16_t(__float_as_uint(v[i]) >> 16)));
            }
        }
    }

    // Scales of tile t of a stage to where the consumers read them; rows r and r + 8 are those of
    // lanes 8 apart.
    __device__ void keep_scales(uint32_t stage, int t, const float (&v)[kLaneRows], float unit,
                                bool there) const {
        const uint32_t lane = threadIdx.x & 31, half = lane / 8 & 1;
        const uint32_t at = (lane / 16 * kTiles + t) * 8 + lane % 8;
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const float scale = there ? __fmul_rn(v[i], unit) : 0.0f;
            const uint32_t pair = at + i * 2 * kTiles * 8;
            if constexpr (S::kScaled) {
                const float other = __shfl_xor_sync(~0u, scale, 8);
                if (half == 0) {
                    shared_store_4(stage + kScales + pair * 4, pack_pair(T{}, scale, other));
                }
            } else {
                shared_store_4(stage + kScales + pair * 8 + half * 4, __float_as_uint(scale));
            }
        }
    }

    // By one of the warps behind the first, which alternate: there is time for loads to come from
    // afar. Those of a stage's further groups are next to the first one's.
    __device__ void make_scales(const Item &it, Turn &turn, int32_t &others) const {
        if (others >= S::kMakers) return;
        const uint32_t row = uint32_t(it.row_tile) * 16 + (threadIdx.x & 31);
        const float unit = Decode::template scale_unit<S::kScaled>(p.w);
        for (int32_t tile = it.first; tile < it.last; tile += kTiles, turn.next(p.slots)) {
            if (others > 0) {
                --others;
                continue;
            }
            others = S::kMakers - 1;
            int32_t group = tile / p.group_tiles;
            float v[kLaneRows];
            load_scales(row, group, v);
            barrier_wait(empty + turn.slot * 8, turn.parity);
#pragma unroll 1
            for (int t = 0; t < kTiles; ++t) {
                const int32_t next = min(tile + t, p.tiles - 1) / p.group_tiles;
                if (next != group) load_scales(row, group = next, v);
                keep_scales(slot(turn.slot), t, v, unit, tile + t < p.tiles);
            }
            barrier_arrive(full + turn.slot * 8);
        }
    }

    // ---- consumers

    // What a lane adds to a slot to find its codes and scales.
    struct Places {
        uint32_t codes, scale;

        __device__ Places(const BytesGemm &, const Item &) {
            const uint32_t lane = threadIdx.x & 31, quad = lane >> 2;
            const uint32_t r = (threadIdx.x >> 7) / S::Q * 4 + (threadIdx.x >> 5 & 3);
            const uint32_t piece = kBoxTiles == 1 ? quad / 2 : quad;  // swapped by the line of 128
            codes = S::kX + (r * 16 + quad) * kPitch + piece * 16 + (lane & 2) * 2;
            scale = kScales + (r * kTiles * 8 + quad) * S::kPair;
        }
    };

    // A lane's share of a tile as it is stored.
    struct Raw {
        uint32_t words[4][4], scale[S::kScaled ? 1 : 2];
    };

    __device__ void read(const Places &at, uint32_t slot_at, int32_t, int t, Raw &raw) const {
        const uint32_t stage = slot(slot_at);
        const uint32_t codes = stage + at.codes + uint32_t(t / kBoxTiles) * kBox;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t from = codes ^ uint32_t(t % kBoxTiles * 64 + j * 16);
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                raw.words[j][i] = shared_load_4(from + i % 2 * 8 + i / 2 * 8 * kPitch);
            }
        }
        const uint32_t from = stage + at.scale + t * 8 * S::kPair;
        if constexpr (S::kScaled) {
            raw.scale[0] = shared_load_4(from);
        } else {
            const uint2 both = shared_load_8(from);
            raw.scale[0] = both.x;
            raw.scale[1] = both.y;
        }
    }

    __device__ void decode(const Raw &raw, uint32_t (&a)[4][4], float (&scale)[2]) const {
        const typename Decode::Lane lane(this->table);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                lane.template decode<S::kScaled>(raw.words[j][half * 2], raw.words[j][half * 2 + 1],
                                                 a[j][half], a[j][half + 2]);
            }
        }
        if constexpr (S::kScaled) {
            this->scale_operands(
                a, {__byte_perm(raw.scale[0], 0, 0x1010), __byte_perm(raw.scale[0], 0, 0x3232)});
        } else {
            scale[0] = __uint_as_float(raw.scale[0]);
            scale[1] = __uint_as_float(raw.scale[1]);
        }
    }
};

template <class S>
requires S::kBytes struct SourceOf<S> {
    using Type = BytesGemm<S>;
};

}  // namespace
}  // namespace qk::cuda

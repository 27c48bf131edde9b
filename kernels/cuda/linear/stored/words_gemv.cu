// y = x . transpose(w) + bias for one row of x straight from layouts whose words hold 8 codes along
// k: ROW, ROW_HIGH, AWQ_GEMV, WORD (rows one after the other) and GPTQ ([k / 8, n] words).
//
// Cut and multiplied as packed tiles are (linear/sm90/gemv/warp.cuh): a unit is 16 rows of w and
// 512 columns, 8 tiles of 64; column j of the operands holds x for tile j, of whose product only
// column j is kept, so that a lane needs the scales of two tiles alone. A lane has two rows of w
// and 16 columns of each tile; which of them share a product is free as long as x follows. In GPTQ
// a unit is 32 rows and 256 columns, two rows of 4 tiles: pieces of 128 bytes come faster than of
// 64.
//
//   block: 16 warps; rows of units are dealt to the blocks in turn
//   warp:  every 16th unit of these, two on their way through shared memory, copied 16 bytes a lane
//
// Bytes per row of w: k / 2 of codes, its scales and zeros, read once. Nothing is read before the
// kernel ahead in the stream has finished: a checkpoint's weights may be its work.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/words_gemv_parts.cuh"
#include "cuda/prim/shared.cuh"

namespace qk::cuda {

namespace {

constexpr int kWarps = kGemvWarps, kThreads = kWarps * 32;

template <class T, class Decode, bool gptq, ScaleKind kind, int kGroups>
struct RowWarp {
    using Copy = UnitCopy<gptq>;
    using Scales = RowGroups<kind, kGroups, !Decode::kLut4>;
    using X = RowX<Decode::kLut4, gptq>;
    static constexpr int kBytes = 2 * kHalfBytes;

    const RowProblem &p;
    const uint32_t *table;
    const float *scale_codes;
    float *partials;  // of the block
    uint8_t *slots;   // of the warp
    Copy copy;
    int lane, pair;  // pair of tiles whose sums the lane keeps: lane % 4
    int32_t count;   // of the warp's units
    bool high_first;
    Unit unit, ahead;  // to multiply, to issue
    Scales scales;     // of the next unit
    X x;
    float low = 0, high = 0;

    __device__ RowWarp(const RowProblem &problem, const uint32_t *with_table,
                       const float *with_codes, float *with_partials, uint8_t *all_slots)
        : p(problem), table(with_table), scale_codes(with_codes), partials(with_partials),
          copy(problem), lane(int(threadIdx.x) % 32), pair(lane % 4),
          high_first(problem.w.layout == QK_LAYOUT_ROW_HIGH) {
        // Broadcast, so that the compiler knows the loop to be the same for all lanes.
        const int32_t warp = __shfl_sync(~0u, int32_t(threadIdx.x) / 32, 0);
        const int32_t down = warp / p.plan.units;
        slots = all_slots + warp * kUnitsAhead * kBytes;
        unit = ahead = {down, warp - down * p.plan.units};
        const int32_t total = rows_of_block(p.plan, blockIdx.x) * p.plan.units;
        count = total > warp ? (total - warp + kWarps - 1) / kWarps : 0;
    }

    // A half of the unit ahead; behind its second one the next unit is.
    __device__ void issue(int stage, int half, bool there) {
        if (!there) return copies_commit();
        copy.issue(unit_row(ahead.row), ahead.column, half, slots + stage * kBytes);
        if (half == 1) ahead.advance(p.plan);
    }

    __device__ void load_scales() {
        const int32_t down = pair / Copy::kLanes * 16, end = int32_t(p.w.geometry.n) - 1;
        const int32_t first = unit_row(unit.row) * 16 * Copy::kTall + down;
        const uint32_t rows[2] = {uint32_t(min(first + Copy::low(lane), end)),
                                  uint32_t(min(first + Copy::high(lane), end))};
        scales.load(p, rows, uint32_t(unit.column * Copy::kTiles + pair % Copy::kLanes * 2));
    }

    // own: of a lane's two tiles, its column of the product, both rows.
    __device__ void add_tile(const uint8_t *slot, int tile, const Zeros (&zero)[2], const X &x,
                             float (&own)[2][2]) const {
        uint32_t word[2][2];
        copy.words(slot, tile, word);
        float d[4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            uint32_t a[4], b[4];
            Decode::decode(word[0][j], zero[0], table, a);
            Decode::decode(word[1][j], zero[1], table, b);
            const uint32_t first[4] = {a[0], b[0], a[1], b[1]};
            const uint32_t then[4] = {a[2], b[2], a[3], b[3]};
            mma_16x8x16<T>(d, first, x.of[j].x, x.of[j].y);
            mma_16x8x16<T>(d, then, x.of[j].z, x.of[j].w);
        }
        const bool mine = pair == tile / 2;
        own[tile % 2][0] = mine ? d[tile % 2] : own[tile % 2][0];
        own[tile % 2][1] = mine ? d[2 + tile % 2] : own[tile % 2][1];
    }

    // Waits for each half of the unit.
    __device__ void add_unit(const uint8_t *slot, const X &x, const float2 (&scale)[kGroups],
                             const uint32_t (&zero)[kGroups]) {
        constexpr int kTiles = Copy::kTiles, kHalf = kTiles / 2;
        Zeros both[2] = {};
        float own[2][2] = {};
#pragma unroll
        for (int i = 0; i < kUnitTiles; ++i) {
            const int down = i % (kUnitTiles / 2) / kHalf;  // of tiles
            const int tile = down * kTiles + i / (kUnitTiles / 2) * kHalf + i % kHalf;
            if (i % (kUnitTiles / 2) == 0) {
                i == 0 ? copies_wait_but<2 * kUnitsAhead - 1>()
                       : copies_wait_but<2 * kUnitsAhead - 2>();
                __syncwarp();
            }
            if (!Decode::kLut4 && (kGroups > 1 || tile % 2 == 0 || kHalf == 1)) {
                const uint32_t byte =
                    __shfl_sync(~0u, zero[tile % kGroups], lane / 4 * 4 + tile / 2);
                both[0] = Decode::zeros_of_code(byte & 15);
                both[1] = Decode::zeros_of_code(byte >> 4);
            }
            add_tile(slot, tile, both, x, own);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            low = __fmaf_rn(own[i][0], scale[i % kGroups].x, low);
            high = __fmaf_rn(own[i][1], scale[i % kGroups].y, high);
        }
    }

    // The sums of the lanes of a row, to [row of units][partial][row].
    __device__ void store_partial(Unit of) {
#pragma unroll
        for (int i = 1; i < Copy::kLanes; i *= 2) {
            low = __fadd_rn(low, __shfl_xor_sync(~0u, low, i));
            high = __fadd_rn(high, __shfl_xor_sync(~0u, high, i));
        }
        float *const to = partials +
                          (of.row * p.plan.partials + of.column % kWarps) * (16 * Copy::kTall) +
                          pair / Copy::kLanes * 16;
        constexpr int kOther = Copy::kLanes > 1 ? 1 : 0;
        if (pair % Copy::kLanes == 0) to[Copy::low(lane)] = low;
        if (pair % Copy::kLanes == kOther) to[Copy::high(lane)] = high;
        low = high = 0;
    }

    // What is asked for first comes first: some codes, so that the memory is busy while places of
    // scales are found, then scales and x, which behind all codes would come as late as the last.
    __device__ void begin() {
        issue(0, 0, count > 0);
        if (count > 0) {
            load_scales();
            x.load(p, unit.column, lane);
        }
#pragma unroll
        for (int half = 1; half < 2 * kUnitsAhead; ++half) {
            issue(half / 2, half % 2, count > half / 2);
        }
    }

    __device__ void step(int32_t left, int stage, float bias) {
        float2 scale[kGroups];
        uint32_t zero[kGroups] = {};
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
            scale[i] = scales.scales(scale_codes, bias, i);
            if (!Decode::kLut4) zero[i] = scales.zero_byte(p.w.zero_offset, i);
        }
        const Unit now = unit;
        unit.advance(p.plan);
        if (left > 1) load_scales();
        if (p.plan.unit_step != 0) {
            x.take(high_first);
            if (left > 1) x.load(p, unit.column, lane);
        }
        add_unit(slots + stage * kBytes, x, scale, zero);
        __syncwarp();
        issue(stage, 0, left > kUnitsAhead);
        issue(stage, 1, left > kUnitsAhead);
        if (left == 1 || unit.row != now.row) store_partial(now);
    }

    __device__ void run(float bias) {
        static_assert(kUnitsAhead == 2);
        if (count > 0) x.take(high_first);
        int stage = 0;
#pragma unroll 1
        for (int32_t left = count; left > 0; --left) {
            step(left, stage, bias);
            stage ^= 1;
        }
    }
};

template <class T, class Decode, bool gptq, ScaleKind kind, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_words_gemv(const __grid_constant__ RowProblem p) {
    QK_LAUNCH_SHARED(shared);
    constexpr int kRows = 16 * unit_tall(gptq);
    auto *const table = reinterpret_cast<uint32_t *>(shared);
    auto *const scale_codes = reinterpret_cast<float *>(table + (Decode::kLut4 ? kTableWords : 0));
    auto *const partials = scale_codes + 256;
    auto *const slots = reinterpret_cast<uint8_t *>(partials) + p.plan.sums_bytes;
    RowWarp<T, Decode, gptq, kind, kGroups> work(p, table, scale_codes, partials, slots);
    work.begin();
    float bias = 0;
    if constexpr (Decode::kLut4) Decode::prepare(p.w, table, work.high_first);
    if constexpr (kind == ScaleKind::kNested) {
        load_scale_codes(p.w, scale_codes);
        bias = __ldg(reinterpret_cast<const float *>(p.w.bias));
    }
    __syncthreads();
    work.run(bias);
    __syncthreads();
    if (int32_t(threadIdx.x) >= rows_of_block(p.plan, blockIdx.x) * kRows) return;
    const int64_t row =
        unit_row(int32_t(threadIdx.x) / kRows) * int64_t{kRows} + threadIdx.x % kRows;
    if (row >= p.w.geometry.n) return;
    const float *const from =
        partials + threadIdx.x / kRows * p.plan.partials * kRows + threadIdx.x % kRows;
    float y = from[0];
    for (int32_t i = 1; i < p.plan.partials; ++i) y = __fadd_rn(y, from[i * kRows]);
    store_output(p, p.type, row, row, y);
}

template <class T, class Decode, bool gptq, ScaleKind kind>
Status run_scales(const RowProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kThreads};
    shape.shared_bytes = uint32_t(words_gemv_shared(p.plan, Decode::kLut4));
    if (p.group_shift == 0) {
        return launch_kernel(launch, "linear", multiply_words_gemv<T, Decode, gptq, kind, 2>, shape,
                             p);
    }
    return launch_kernel(launch, "linear", multiply_words_gemv<T, Decode, gptq, kind, 1>, shape, p);
}

template <class T, class Decode, bool gptq>
Status run_words(const RowProblem &p, const Launch &launch) {
    return with_scale_kind(p.w.scale_format, [&](auto kind) {
        return run_scales<T, Decode, gptq, kind.value>(p, launch);
    });
}

template <class T>
Status run_type(const RowProblem &p, bool gptq, const Launch &launch) {
    if (gptq) return run_words<T, U4<T>, true>(p, launch);
    if (p.w.kind == FormatKind::kLut4) return run_words<T, Lut4<T>, false>(p, launch);
    return run_words<T, U4<T>, false>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const bool gptq = is_gptq(args.w);
    const RowProblem p = {problem_of(args, unit_columns(gptq)),
                          plan_words_gemv(s.n, s.k, gptq, launch.device.multiprocessors),
                          group_tiles_shift(s)};
    return p.type == QK_FORMAT_F16 ? run_type<F16>(p, gptq, launch)
                                   : run_type<BF16>(p, gptq, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearWordsGemv = linear_kernel<LinearKernel::kWordsGemv>(run);

}  // namespace qk::cuda

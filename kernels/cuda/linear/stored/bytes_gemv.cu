// y = x . transpose(w) + bias for one row of x and 8-bit codes stored row after row.
//
// Cut and multiplied as packed tiles are (linear/sm90/gemv/warp.cuh): a unit is 16 rows of w and
// 512 columns, 8 tiles of 64; column j of the operands holds x for tile j, of whose product only
// column j is kept, so that a lane needs the scales of two tiles alone. A lane has 16 columns of
// each tile, of two rows of w: what it loads is what it multiplies, so codes go from memory to its
// registers, some tiles ahead.
//
//   block: 16 warps; rows of tiles are dealt to the blocks in turn
//   warp:  every 16th unit of these
//
// Bytes per row of w: k of codes and its scales, read once. Nothing is read before the kernel ahead
// in the stream has finished: a checkpoint's weights may be its work.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/bytes_gemv_parts.cuh"
#include "cuda/prim/shared.cuh"

namespace qk::cuda {

namespace {

constexpr int kWarps = kGemvWarps, kThreads = kWarps * 32;

template <class T, class Decode>
struct ByteRowWarp {
    // Tiles of codes that are under way: a table's entries want registers, too.
    static constexpr int kDepth = Decode::kTerms == 1 ? 4 : 2;

    const ByteRowProblem &p;
    int lane, pair;  // pair of tiles whose sums the lane keeps: lane % 4
    const uint8_t *table;
    uint32_t lanes;    // the lane's place in an entry of a table
    int32_t count;     // of the warp's units
    Unit unit, ahead;  // to multiply, to issue
    ByteSource source;
    ByteScales scales;  // of the next unit
    ByteX<Decode> x;
    ByteTile tiles[kDepth] = {};
    float table_unit = 1, low = 0, high = 0;
    uint32_t finite = 0;  // four codes of a number

    __device__ ByteRowWarp(const ByteRowProblem &problem, const uint8_t *with_table)
        : p(problem), lane(int(threadIdx.x) % 32), pair(lane % 4), table(with_table),
          lanes(uint32_t(lane) * 0x04040404u) {
        // Broadcast, so that the compiler knows the loop to be the same for all lanes.
        const int32_t warp = __shfl_sync(~0u, int32_t(threadIdx.x) / 32, 0);
        const int32_t down = warp / p.plan.units;
        unit = ahead = {down, warp - down * p.plan.units};
        const int32_t total = rows_of_block(p.plan, blockIdx.x) * p.plan.units;
        count = total > warp ? (total - warp + kWarps - 1) / kWarps : 0;
    }

    // What is asked for first comes first: x, which every product waits for, then codes. The memory
    // is busy with them while the places of scales are found, which a tile's sum waits for.
    __device__ void begin() {
        if (count == 0) return;
        source.enter(p, unit, lane);
        x.load(p, unit.column, lane);
#pragma unroll
        for (int i = 0; i < kDepth; ++i) source.load(i, tiles[i]);
        scales.load(p, unit, lane);
    }

    __device__ void add_tile(int tile, const ByteTile &codes, const float2 &scale) {
        const uint32_t words[2][4] = {{codes.low.x, codes.low.y, codes.low.z, codes.low.w},
                                      {codes.high.x, codes.high.y, codes.high.z, codes.high.w}};
        float d[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint32_t upper[2 * Decode::kTerms], lower[2 * Decode::kTerms];  // rows g, g + 8
            Decode::decode(words[0][j], lanes, table, upper);
            Decode::decode(words[1][j], lanes, table, lower);
#pragma unroll
            for (int t = 0; t < Decode::kTerms; ++t) {
                const uint32_t a[4] = {upper[2 * t], lower[2 * t], upper[2 * t + 1],
                                       lower[2 * t + 1]};
                const int product = j * Decode::kTerms + t;
                mma_16x8x16<T>(d, a, x.of[2 * product], x.of[2 * product + 1]);
            }
        }
        if (pair != tile / 2) return;
        float of_low = d[tile % 2], of_high = d[2 + tile % 2];
        if constexpr (Decode::kTerms > 1 && std::is_same_v<T, F16>) {
            of_low = __fmul_rn(of_low, table_unit);
            of_high = __fmul_rn(of_high, table_unit);
        }
        low = __fmaf_rn(of_low, scale.x, low);
        high = __fmaf_rn(of_high, scale.y, high);
    }

    // The next unit's codes follow those of the one in the registers.
    __device__ void go_ahead(bool more) {
        source.left = 0;
        if (!more) return;
        ahead.advance(p.plan);
        source.enter(p, ahead, lane);
    }

    __device__ void add_unit(int32_t column, bool more, const float2 (&scale)[2]) {
        const int32_t first = column * int32_t(kUnitColumns) + pair * 16;
        const bool whole = (column + 1) * kUnitColumns <= p.w.geometry.k;
#pragma unroll
        for (int i = 0; i < kUnitTiles; ++i) {
            ByteTile &codes = tiles[i % kDepth];
            if (!Decode::kFinite && !whole) {
                if (first + i * 64 >= p.w.geometry.k) codes.end(finite);
            }
            add_tile(i, codes, scale[i % 2]);
            if (i + kDepth == kUnitTiles) go_ahead(more);
            source.load((i + kDepth) % kUnitTiles, codes);
        }
    }

    // The sums of the lanes of a row, to [row of tiles][partial][row].
    __device__ void store_partial(float *partials, Unit of) {
#pragma unroll
        for (int i = 1; i < 4; i *= 2) {
            low = __fadd_rn(low, __shfl_xor_sync(~0u, low, i));
            high = __fadd_rn(high, __shfl_xor_sync(~0u, high, i));
        }
        float *const to =
            partials + (of.row * p.plan.partials + of.column % kWarps) * 16 + lane / 4;
        if (pair == 0) to[0] = low;
        if (pair == 1) to[8] = high;
        low = high = 0;
    }

    __device__ void run(float *partials, const float *scale_codes) {
#pragma unroll 1
        for (int32_t left = count; left > 0; --left) {
            float2 scale[2];
            scales.take(p, unit, lane, scale_codes, scale);
            if (left == count || p.plan.unit_step != 0) x.take();
            const Unit now = unit;
            unit.advance(p.plan);
            if (left > 1) scales.load(p, unit, lane);
            add_unit(now.column, left > 1, scale);
            if (left > 1 && p.plan.unit_step != 0) x.load(p, unit.column, lane);
            if (left == 1 || unit.row != now.row) store_partial(partials, now);
        }
    }
};

template <class T, class Decode>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_bytes_gemv(const __grid_constant__ ByteRowProblem p) {
    QK_LAUNCH_SHARED(shared);
    constexpr bool kTable = Decode::kTerms > 1;
    auto *const table = reinterpret_cast<uint8_t *>(shared);
    auto *const scale_codes = reinterpret_cast<float *>(table + (kTable ? kByteTable : 0));
    float *const partials = scale_codes + kScaleCodes;
    LaneEntries entries = {};
    float entry = 0;  // that this thread puts into the table
    if constexpr (kTable) {
        entries = load_entries(p.w.table);
        entry = __ldg(reinterpret_cast<const float *>(p.w.table) + threadIdx.x / 2);
    }
    ByteRowWarp<T, Decode> work(p, table);
    work.begin();
    load_scale_codes(p.w, scale_codes);
    if (p.w.scale_format == QK_FORMAT_LUT8 && threadIdx.x == 0) {
        scale_codes[256] = __ldg(reinterpret_cast<const float *>(p.w.bias));
    }
    if constexpr (kTable) {
        if (std::is_same_v<T, F16>) work.table_unit = table_unit<14>(entries);
        work.finite = finite_code(entries) * 0x01010101u;
        if (!fill_table<T>(entries, entry, work.table_unit, table)) {
            for (int32_t i = 0; i < rows_of_block(p.plan, blockIdx.x); ++i) {
                const int64_t first = unit_row(i) * int64_t{16};
                multiply_slowly<T>(p.w, p.x, p.bias_type, p.bias, p.y, p.w.geometry.n,
                                   {first, first + 16, 0, 1, int32_t(threadIdx.x) / 32, kWarps});
            }
            return;
        }
    } else {
        __syncthreads();
    }
    work.run(partials, scale_codes);
    __syncthreads();
    if (int32_t(threadIdx.x) >= rows_of_block(p.plan, blockIdx.x) * 16) return;
    const int64_t row = unit_row(int32_t(threadIdx.x) / 16) * int64_t{16} + threadIdx.x % 16;
    if (row >= p.w.geometry.n) return;
    const float *const from = partials + threadIdx.x / 16 * p.plan.partials * 16 + threadIdx.x % 16;
    float y = from[0];
    for (int32_t i = 1; i < p.plan.partials; ++i) y = __fadd_rn(y, from[i * 16]);
    store_output(p, p.type, row, row, y);
}

template <class T, class Decode>
Status launch_bytes_gemv(const ByteRowProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks)), kThreads};
    shape.shared_bytes = uint32_t(bytes_gemv_shared(p.plan, Decode::kTerms > 1));
    return launch_kernel(launch, "linear", multiply_bytes_gemv<T, Decode>, shape, p);
}

template <class T>
Status run_type(const ByteRowProblem &p, const Launch &launch) {
    if (p.w.format == QK_FORMAT_E4M3 && launch.device.capability >= 89) {
        return launch_bytes_gemv<T, E4m3Bytes<T>>(p, launch);
    }
    return p.w.kind == FormatKind::kS8 ? launch_bytes_gemv<T, SignedBytes<T>>(p, launch)
                                       : launch_bytes_gemv<T, TableBytes<T>>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const ByteRowProblem p = {view_of(args),
                              plan_words_gemv(s.n, s.k, false, launch.device.multiprocessors),
                              group_tiles_shift(s), second_shift_of(args.w.scale)};
    return p.type == QK_FORMAT_F16 ? run_type<F16>(p, launch) : run_type<BF16>(p, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearBytesGemv = linear_kernel<LinearKernel::kBytesGemv>(run);

}  // namespace qk::cuda

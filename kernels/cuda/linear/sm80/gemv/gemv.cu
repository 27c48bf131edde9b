// y = x . transpose(w) + bias for up to 16 rows of x (more in passes), from the packed tiles.
//
// A warp streams tiles of 16 rows x 64 columns (512 bytes) through a ring of stages in shared
// memory, decodes each into matrix operands in registers and multiplies it by 8 or 16 rows of x on
// the tensor cores: f32 sums, one tile at a time, folded into the row's sum with the group's scale
// in f32. A warp's run of stages may start and end inside a row of tiles; such partial sums meet in
// shared memory and are added in warp order. The order of every sum depends on n, k and the device
// alone, so results repeat bit for bit and a row of y does not depend on its batch.
//
// Bytes per output row: k / 2 of codes plus its scales and zeros, read once. Copies are issued
// before x is known: with programmatic dependent launch the stream of weights starts while the
// kernel that computes x still runs. That is safe because weights are only written by kernels that
// never let their successors start early (docs/decisions.md).
#include <type_traits>

#include "cuda/kernels.hpp"
#include "cuda/linear/sm80/gemv/plan.hpp"
#include "cuda/linear/sm80/gemv/stream.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

struct Problem : LinearView {
    Sm80GemvPlan plan;
    int32_t group_shift;   // log2 of the tiles a group
    int32_t second_shift;  // nested: log2 of second_group
};

template <class T>
__device__ void store_y(const Problem &p, int64_t row, int64_t x_row, float y) {
    if (row >= p.w.geometry.n || x_row >= p.m) return;
    store_output(p, kFormatOf<T>, row, x_row * p.w.geometry.n + row, y);
}

// A row of tiles that one warp has summed alone.
template <class T, int kBatches>
__device__ void store_whole(const Problem &p, int32_t row_tile, int64_t x_first,
                            const float (&acc)[kBatches][4]) {
    const int lane = int(threadIdx.x) & 31;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            store_y<T>(p, int64_t(row_tile) * 16 + lane / 4 + i / 2 * 8,
                       x_first + b * 8 + lane % 4 * 2 + i % 2, acc[b][i]);
        }
    }
}

// Partial sums: at most two a warp, of the rows of tiles that its run starts and ends in.
template <int kBatches>
struct Partials {
    float sum[2][kBatches][4];
    int32_t row_tile[2] = {-1, -1};
};

// Adds the partial sums of every row of tiles in warp order. Called by the whole block once the
// rings are free: sums go to [warp][piece][batch][column of 8][row], their rows of tiles behind.
template <class T, int kBatches>
__device__ void store_partials(const Problem &p, float *sums, Run rows, int64_t x_first,
                               const Partials<kBatches> &partials) {
    constexpr int kOutputs = kBatches * 128;
    const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
    const int pieces = p.plan.warps * 2;
    int32_t *const owners = reinterpret_cast<int32_t *>(sums + pieces * kOutputs);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
        float *const to = sums + (warp * 2 + piece) * kOutputs;
        if (lane == 0) owners[warp * 2 + piece] = partials.row_tile[piece];
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                to[(b * 8 + column) * 16 + row] = partials.sum[piece][b][i];
            }
        }
    }
    __syncthreads();
    for (int32_t row_tile = rows.first + warp; row_tile < rows.last; row_tile += p.plan.warps) {
        const bool there = lane < p.plan.warps;
        const uint32_t heads = __ballot_sync(~0u, there && owners[lane * 2] == row_tile);
        const uint32_t tails = __ballot_sync(~0u, there && owners[lane * 2 + 1] == row_tile);
        float y[kOutputs / 32];
        bool first = true;
        for (uint32_t left = heads | tails; left != 0; left &= left - 1) {
            const int owner = __ffs(int(left)) - 1;
            const float *const from = sums + (owner * 2 + !(heads >> owner & 1)) * kOutputs + lane;
#pragma unroll
            for (int j = 0; j < kOutputs / 32; ++j) {
                y[j] = first ? from[j * 32] : __fadd_rn(y[j], from[j * 32]);
            }
            first = false;
        }
        if (first) continue;  // one warp had it whole
#pragma unroll
        for (int j = 0; j < kOutputs / 32; ++j) {
            const int at = j * 32 + lane;
            store_y<T>(p, int64_t(row_tile) * 16 + at % 16, x_first + at / 16, y[j]);
        }
    }
}

// The two second scales a lane needs; they change once in `second_group` groups. Group numbers fit
// 32 bits: can_run saw to it.
struct Seconds {
    uint32_t number[2];  // of group 0 of rows r and r + 8
    uint32_t index[2];
    float value[2];

    __device__ void start_row(const Problem &p, int32_t row_tile) {
        const Geometry &s = p.w.geometry;
        for (int i = 0; i < 2; ++i) {
            const int64_t row = int64_t(row_tile) * 16 + threadIdx.x % 32 / 4 + 8 * i;
            number[i] = uint32_t(min64(row, s.n - 1) * s.groups_per_row);
            index[i] = ~0u;
        }
    }
    __device__ void move_to(const Problem &p, int32_t group) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t at = (number[i] + group) >> p.second_shift;
            if (at == index[i]) continue;
            index[i] = at;
            value[i] = __ldg(reinterpret_cast<const float *>(p.w.second) + at);
        }
    }
};

template <ScaleKind kind>
__device__ void tile_scales(const Tile<kind> &t, const float *codes, float bias,
                            const Seconds &seconds, float (&scale)[2]) {
    if constexpr (kind == ScaleKind::kF32) {
        scale[0] = __uint_as_float(t.scale[0]);
        scale[1] = __uint_as_float(t.scale[1]);
    } else if constexpr (kind == ScaleKind::kNested) {
        scale[0] = nested_scale(codes[t.scale[0] & 255], seconds.value[0], bias);
        scale[1] = nested_scale(codes[t.scale[0] >> 8], seconds.value[1], bias);
    } else {
        const float2 both = scale_pair_of<kind>(t.scale[0]);
        scale[0] = both.x;
        scale[1] = both.y;
    }
}

// A lane's 16 columns of a row of x, two registers a matrix step; 0 past the end of k. Lanes
// without a row load nothing: their columns of the product are never stored.
template <int kBatches>
struct XRows {
    const uint8_t *x;
    int64_t at[kBatches];  // bytes from x to this lane's columns of tile 0
    bool inside[kBatches];
    int32_t columns;  // left from this lane's first column of tile 0

    __device__ XRows(const Problem &p, int64_t x_first) {
        const int lane = int(threadIdx.x) & 31, column = lane % 4 * 16;
        const int64_t k = p.w.geometry.k;
        x = static_cast<const uint8_t *>(p.x);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const int64_t row = x_first + 8 * b + lane / 4;
            inside[b] = row < p.m;
            at[b] = (min64(row, p.m - 1) * k + column) * 2;
            asm("" : "+l"(at[b]));  // keep it: the compiler would recompute it for every load
        }
        columns = int32_t(k) - column;
    }

    // Half a lane's columns of tile first + index.
    template <bool full>
    __device__ uint4 load(int batch, int32_t first, int index, int half) const {
        uint4 q = {0, 0, 0, 0};
        const bool there = full || (first + index) * 64 < columns;
        const auto *const stage = reinterpret_cast<const uint4 *>(x + at[batch]) + first * 8;
        if (inside[batch] && there) q = stage[index * 8 + half];
        return q;
    }
};

template <class T, class Decode, ScaleKind kind, int kBatches, bool full>
__device__ void multiply_tile(const Tile<kind> &t, const float (&scale)[2], int32_t first,
                              int index, const XRows<kBatches> &x, const uint32_t *table,
                              float (&acc)[kBatches][4]) {
    const Zeros zeros = Decode::zeros_of(t.zeros * 0x01010101u);
    float part[kBatches][4] = {};
    const uint32_t words[4] = {t.codes.x, t.codes.y, t.codes.z, t.codes.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t a[2][4];
        Decode::decode(words[2 * half], zeros, table, a[0]);
        Decode::decode(words[2 * half + 1], zeros, table, a[1]);
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
            const uint4 q = x.template load<full>(b, first, index, half);
            mma_16x8x16<T>(part[b], a[0], q.x, q.y);
            mma_16x8x16<T>(part[b], a[1], q.z, q.w);
        }
    }
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[b][i] = __fmaf_rn(part[b][i], scale[i / 2], acc[b][i]);
    }
}

// What a nested weight decodes its scales with.
struct Nested {
    const float *codes;
    float bias;
    Seconds seconds;
};

// The tiles of one stage; `full`: all of them, so that their loads and products may overlap.
template <class T, class Decode, ScaleKind kind, int kBatches, bool full>
__device__ void multiply_stage(const Problem &p, const Stream<kind, Decode::kLut4> &stream,
                               uint32_t slot, Place place, const XRows<kBatches> &x,
                               const uint32_t *table, Nested &nested, float (&acc)[kBatches][4]) {
    const uint32_t early = uint32_t(stream.group_at(place) & 1) * 8;
    const int32_t tile = place.stage * kStageTiles;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
        if (!full && tile + i >= stream.tiles) break;
        const Tile<kind> t = read_tile(stream, slot, i, early);
        if constexpr (kind == ScaleKind::kNested) {
            nested.seconds.move_to(p, (tile + i) >> stream.group_shift);
        }
        float scale[2];
        tile_scales<kind>(t, nested.codes, nested.bias, nested.seconds, scale);
        multiply_tile<T, Decode, kind, kBatches, full>(t, scale, tile, i, x, table, acc);
    }
}

template <class T, class Decode, ScaleKind kind, int kBatches>
__device__ void multiply_run(const Problem &p, Stream<kind, Decode::kLut4> &stream, Place place,
                             int64_t x_first, const uint32_t *table, Nested &nested,
                             Partials<kBatches> &partials) {
    const XRows<kBatches> x(p, x_first);
    float acc[kBatches][4] = {};
    bool whole = place.stage == 0;  // this warp has the row of tiles from its first stage on
    for (uint32_t i = 0; i < stream.count; ++i) {
        const uint32_t slot = stream.wait(i);
        if ((place.stage + 1) * (kStageTiles * 64) <= p.w.geometry.k) {
            multiply_stage<T, Decode, kind, kBatches, true>(p, stream, slot, place, x, table,
                                                            nested, acc);
        } else {
            multiply_stage<T, Decode, kind, kBatches, false>(p, stream, slot, place, x, table,
                                                             nested, acc);
        }
        __syncwarp();  // the slot is read before it is filled again
        stream.issue();
        const bool row_ends = place.stage + 1 == stream.row_stages;
        if (!row_ends && i + 1 < stream.count) {
            ++place.stage;
            continue;
        }
        if (row_ends && whole) {
            store_whole<T, kBatches>(p, place.row_tile, x_first, acc);
        } else {
            const int piece = partials.row_tile[0] < 0 ? 0 : 1;
            partials.row_tile[piece] = place.row_tile;
#pragma unroll
            for (int b = 0; b < kBatches; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) partials.sum[piece][b][j] = acc[b][j];
            }
        }
#pragma unroll
        for (int b = 0; b < kBatches; ++b) {
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[b][j] = 0;
        }
        place.advance(stream.row_stages);
        whole = true;
        if constexpr (kind == ScaleKind::kNested) nested.seconds.start_row(p, place.row_tile);
    }
}

template <class T, class Decode, ScaleKind kind, int kBatches>
__global__ void __launch_bounds__(768, 1) multiply(const __grid_constant__ Problem p) {
    extern __shared__ uint4 shared[];  // look-up table, then a ring for each warp; sums at the end
    __shared__ uint64_t full[24 * kSlots];
    __shared__ float scale_codes[kind == ScaleKind::kNested ? 256 : 1];
    uint32_t *const table = reinterpret_cast<uint32_t *>(shared);
    uint32_t *const rings = table + (Decode::kLut4 ? kTableWords : 0);
    allow_next_kernel();
    const Sm80GemvPlan &plan = p.plan;
    const int warp = int(threadIdx.x) >> 5;
    const Run rows = plan.rows.part(int32_t(blockIdx.x)), run = plan.stages(rows, warp);
    const int32_t rows_before = int32_t(uint32_t(run.first) / uint32_t(plan.row_stages));
    const Place first = {rows.first + rows_before, run.first - rows_before * plan.row_stages};
    const int32_t tiles = int32_t(ceil_div(p.w.geometry.k, 64));
    const int64_t first_tile = int64_t(first.row_tile) * tiles + first.stage * kStageTiles;
    Stream<kind, Decode::kLut4> stream = {p.w.data + first_tile * 512,
                                          p.w.scale,
                                          Decode::kLut4 ? nullptr : p.w.zero,
                                          tiles,
                                          int32_t(p.w.geometry.groups_per_row),
                                          plan.row_stages,
                                          p.group_shift,
                                          shared_address(rings) + warp * (kSlots * kStageBytes),
                                          shared_address(full + warp * kSlots),
                                          first,
                                          0,
                                          uint32_t(run.last - run.first)};
    if (threadIdx.x % 32 == 0) {
        for (int32_t i = 0; i < kSlots; ++i) barrier_init(stream.full + i * 8, 1);
        barrier_init_fence();
    }
    __syncwarp();
    for (int32_t i = 0; i < kSlots; ++i) stream.issue();
    Nested nested = {scale_codes, 0, {}};
    if constexpr (kind == ScaleKind::kNested) {
        nested.seconds.start_row(p, first.row_tile);
        nested.seconds.move_to(p, first.stage * kStageTiles >> p.group_shift);
        nested.bias = __ldg(reinterpret_cast<const float *>(p.w.bias));
        for (int i = int(threadIdx.x); i < 256; i += int(blockDim.x)) {
            scale_codes[i] = __ldg(reinterpret_cast<const float *>(p.w.code) + i);
        }
    }
    if constexpr (Decode::kLut4) Decode::prepare(p.w, table, false);
    wait_for_previous_kernel();
    __syncthreads();
    const int64_t x_first = int64_t(blockIdx.y) * (8 * kBatches);
    Partials<kBatches> partials;
    multiply_run<T, Decode, kind, kBatches>(p, stream, first, x_first, table, nested, partials);
    __syncthreads();  // the rings are free
    store_partials<T, kBatches>(p, reinterpret_cast<float *>(rings), rows, x_first, partials);
}

static_assert(kSm80GemvRing == kSlots * kStageBytes && kSm80GemvTable == kTableBytes);
static_assert(kSlots * kStageBytes >= 2 * (2 * 128 * 4 + 4),
              "the partial sums fit where the rings were");

template <class T, class Decode, ScaleKind kind>
Status run_batches(const Problem &p, const Launch &launch) {
    const int batches = p.m <= 8 ? 1 : 2;
    Shape3 shape = {dim3(uint32_t(p.plan.blocks), uint32_t(ceil_div(p.m, 8 * batches))),
                    p.plan.warps * 32};
    shape.shared_bytes =
        size_t(p.plan.warps) * kSm80GemvRing + (Decode::kLut4 ? kSm80GemvTable : 0);
    shape.overlaps = launch.device.capability >= 90;
    return batches == 1 ? launch_kernel(launch, "linear", multiply<T, Decode, kind, 1>, shape, p)
                        : launch_kernel(launch, "linear", multiply<T, Decode, kind, 2>, shape, p);
}

template <class T, class Decode>
Status run_scales(const Problem &p, const Launch &launch) {
    return with_scale_kind(
        p.w.scale_format, [&](auto kind) { return run_batches<T, Decode, kind.value>(p, launch); });
}

template <class T>
Status run_type(const Problem &p, const Launch &launch) {
    return p.w.layout == kLayoutTiles ? run_scales<T, U4<T>>(p, launch)
                                      : run_scales<T, Lut4<T>>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const Problem problem = {
        view_of(args),
        plan_sm80_gemv(s.n, s.k,
                       sm80_gemv_device(launch.device.multiprocessors, launch.device.shared_bytes)),
        group_tiles_shift(s), log2_of(args.w.scale.second_group)};
    return args.x.format->id == QK_FORMAT_F16 ? run_type<F16>(problem, launch)
                                              : run_type<BF16>(problem, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearSm80Gemv = linear_kernel<LinearKernel::kSm80Gemv>(run);

}  // namespace qk::cuda

// A step or two on their own, as streaming needs them, and all steps of states too large for a
// cluster: one launch a step over the whole GPU, in which loading the weights once is the work. A
// warp owns a unit; the loads of its six rows are issued before x and h are read. All blocks read
// the whole state, so the next one is stored elsewhere.
#include "cuda/gru/border.cuh"
#include "cuda/gru/rules.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256, kUnits = kThreads / 32;  // of a block
constexpr int kStepChunks = kStepColumns / 256;

struct StepArgs {
    GruView v;
    PlainCell plain;
    int32_t ih_low, ih_high;  // differences from the zero point
};

// kChunks: of 256 columns, 8 bytes a lane.
template <int kChunks>
struct Rows {
    uint2 at[3][kChunks];

    __device__ void load(const void *weights, int64_t stride, int32_t count) {
        const int8_t *const first = static_cast<const int8_t *>(weights);
        const int32_t lane = int32_t(threadIdx.x) % 32;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int chunk = 0; chunk < kChunks; ++chunk) {
                const int32_t column = chunk * 256 + lane * 8;
                at[gate][chunk] = {};
                if (column < count) {
                    at[gate][chunk] =
                        __ldg(reinterpret_cast<const uint2 *>(first + gate * stride + column));
                }
            }
        }
    }

    __device__ void dot(const uint32_t *codes, int32_t count, int32_t (&sums)[3]) const {
        const int32_t lane = int32_t(threadIdx.x) % 32;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) sums[gate] = 0;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            if (chunk * 256 >= count) break;
            const uint2 pair = *reinterpret_cast<const uint2 *>(codes + chunk * 64 + lane * 2);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                sums[gate] = __dp4a(int(at[gate][chunk].x), int(pair.x), sums[gate]);
                sums[gate] = __dp4a(int(at[gate][chunk].y), int(pair.y), sums[gate]);
            }
        }
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) sums[gate] = warp_sum(sums[gate]);
    }
};

// Lines between knots, one a lane: the whole warp looks a value up together.
struct LaneTables {
    static constexpr bool kAligned = false, kFromZero = false;
    int32_t knot[3], slope[3], intercept[3];

    __device__ void fill(const gru::Cell &cell) {
        const gru::Table *const all[] = {&cell.update, &cell.reset, &cell.candidate};
        const int32_t lane = int32_t(threadIdx.x) % 32;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const gru::Table &table = *all[gate];
            knot[gate] = INT32_MAX;  // of the last segment, too: it has no end
            slope[gate] = intercept[gate] = 0;
            if (lane >= table.count) continue;
            if (lane < table.count - 1) knot[gate] = table.threshold[lane];
            slope[gate] = table.slope[lane];
            intercept[gate] = table.intercept[lane];
        }
    }
    __device__ int32_t value(const PlainTable &t, int gate, int32_t place) const {
        // Knots ascend: as many as the code reaches come before its segment.
        const int segment = __popc(__ballot_sync(~0u, place - t.minus_input_zero >= knot[gate]));
        const int32_t line = __shfl_sync(~0u, slope[gate], segment) * place;
        return clamped(
            shifted(line, t.shift) + __shfl_sync(~0u, intercept[gate], segment) + t.minus_zero,
            t.low, t.high);
    }
};

__device__ uint32_t pack(const int32_t (&codes)[4]) {
    const uint32_t low = __byte_perm(uint32_t(codes[0]), uint32_t(codes[1]), 0x0040);
    const uint32_t high = __byte_perm(uint32_t(codes[2]), uint32_t(codes[3]), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

// Four codes of x; naturally aligned.
__device__ uint32_t load_x(const GruView &v, int64_t first) {
    const gru::Cell &cell = v.cell;
    int32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        codes[i] = v.x_is_float ? gru::real_to_code(static_cast<const float *>(v.x)[first + i],
                                                    v.x_factor, cell.x_zero, cell.x_min, cell.x_max)
                                : gru::clamp<int32_t>(static_cast<const int8_t *>(v.x)[first + i],
                                                      cell.x_min, cell.x_max);
    }
    return pack(codes);
}

// Four codes of h from both states, before it is known which of them is the current one.
struct BothStates {
    uint2 at[2];

    __device__ void load(const GruView &v, int64_t first) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const char *const from =
                static_cast<const char *>(v.h) + i * v.state_bytes + first * v.cell.h_bytes;
            at[i] = v.cell.h_bytes == 1 ? uint2{*reinterpret_cast<const uint32_t *>(from), 0}
                                        : *reinterpret_cast<const uint2 *>(from);
        }
    }
    __device__ uint32_t view(const GruView &v, const PlainCell &plain, uint32_t current) const {
        const uint2 words = current == 0 ? at[0] : at[1];
        if (v.cell.h_bytes == 1 && v.cell.view_shift == 0) return words.x;
        int32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t word = i < 2 ? words.x : words.y;
            const int32_t code =
                v.cell.h_bytes == 1 ? int8_t(words.x >> (i * 8)) : int16_t(word >> (i % 2 * 16));
            codes[i] = clamped(shifted(code, plain.h_to_view), plain.view_low, plain.view_high);
        }
        return pack(codes);
    }
};

struct Constants {  // of a unit's three rows; offsets hold the half of the shift, too
    int32_t ih_offset[3], hh_offset[3], ih_shift[3], hh_shift[3];

    __device__ void load(const gru::Cell &cell, int32_t unit) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int32_t row = gate * cell.hidden_size + unit;
            ih_shift[gate] = cell.w_shift[row] + cell.ih_shift;
            hh_shift[gate] = cell.r_shift[row] + cell.hh_shift;
            ih_offset[gate] = int32_t(cell.ih_offset[row]) + row_half(ih_shift[gate]);
            hh_offset[gate] = int32_t(cell.hh_offset[row]) + row_half(hh_shift[gate]);
        }
    }
};

template <class Rules>
__device__ int32_t next_h(const StepArgs &a, const Rules &rules, const Constants &constants,
                          const int32_t (&ih_sum)[3], const int32_t (&hh_sum)[3], int32_t h_old) {
    int32_t ih[3], hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
        ih[gate] =
            clamped(row_shifted(ih_sum[gate] + constants.ih_offset[gate], constants.ih_shift[gate]),
                    a.ih_low, a.ih_high);
        hh[gate] = rules.hidden(hh_sum[gate] + constants.hh_offset[gate], constants.hh_shift[gate]);
    }
    return a.plain.h_zero + rules.next(rules.input(ih), hh, h_old - a.plain.h_zero);
}

// kBatches: sequences of a block at most; the widest kernel has as many rows of blocks as it takes.
template <class Wide, class Tables, bool kSharesTables, int kBatches, int kChunks>
__global__ void __launch_bounds__(kThreads) advance_one(const __grid_constant__ StepArgs a) {
    __shared__ __align__(16) uint32_t x_codes[kBatches][kChunks * 64];
    __shared__ __align__(16) uint32_t h_codes[kBatches][kChunks * 64];
    __shared__ std::conditional_t<kSharesTables, Tables, int> shared_tables;
    const GruView &v = a.v;
    const gru::Cell &cell = v.cell;
    const int32_t c = cell.input_size, h = cell.hidden_size, lane = int32_t(threadIdx.x) % 32;
    const int32_t unit = int32_t(blockIdx.x) * kUnits + int32_t(threadIdx.x) / 32;
    const bool active = unit < h;
    const uint32_t turns = *static_cast<volatile uint32_t *>(v.turns);
    const int32_t first = kChunks == kStepChunks ? int32_t(blockIdx.y) * kBatches : 0;
    const int32_t count = int32_t(v.batch) - first;
    constexpr int kWords = ceil_div(kChunks * 64, kThreads);  // of four codes, a thread
    const int32_t at = int32_t(threadIdx.x) * 4;
    BothStates states[kBatches][kWords];
    int32_t h_old[kBatches][2];
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
        if (b >= count) break;
        const int64_t row = int64_t(first + b) * h;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if (at + i * kThreads * 4 < h) states[b][i].load(v, row + at + i * kThreads * 4);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            h_old[b][i] = active
                              ? gru::load_code(static_cast<const char *>(v.h) + i * v.state_bytes,
                                               cell.h_bytes, row + unit)
                              : 0;
        }
    }
    Rows<kChunks> w = {}, r = {};
    Constants constants = {};
    if (active) {
        w.load(static_cast<const int8_t *>(cell.w) + int64_t(unit) * c, int64_t(h) * c, c);
        r.load(static_cast<const int8_t *>(cell.r) + int64_t(unit) * h, int64_t(h) * h, h);
        constants.load(cell, unit);
    }
    Tables own_tables;
    if constexpr (kSharesTables) {
        shared_tables.fill(cell);
    } else {
        own_tables.fill(cell);
    }
    const uint32_t current = turns / kTurn % 2;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
        if (b >= count) break;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int32_t word = int32_t(threadIdx.x) + i * kThreads;
            if (word * 4 < c) x_codes[b][word] = load_x(v, int64_t(first + b) * c + word * 4);
        }
    }
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
        if (b >= count) break;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int32_t word = int32_t(threadIdx.x) + i * kThreads;
            if (word * 4 < h) h_codes[b][word] = states[b][i].view(v, a.plain, current);
        }
    }
    __syncthreads();
    // After this block has read what it needs of turns: the sum over the grid is kTurn.
    if (threadIdx.x == 0) atomicAdd(v.turns, kTurn / (gridDim.x * gridDim.y));
    if (!active) return;
    const Tables *tables = &own_tables;
    if constexpr (kSharesTables) tables = &shared_tables;
    const PlainRules<Wide, Tables> rules = {a.plain, *tables};
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
        if (b >= count) break;
        int32_t ih[3], hh[3];
        w.dot(x_codes[b], c, ih);
        r.dot(h_codes[b], h, hh);
        const int32_t code =
            next_h(a, rules, constants, ih, hh, current == 0 ? h_old[b][0] : h_old[b][1]);
        if (lane == 0) {
            gru::store_code(static_cast<char *>(v.h) + (current ^ 1) * v.state_bytes, cell.h_bytes,
                            int64_t(first + b) * h + unit, code);
            write_aligned_y(v, int64_t(first + b) * h + unit, code);
        }
    }
}

using Instance = void (*)(StepArgs);

template <int kChunks>
Instance instance(bool knots, bool one) {
    if (knots) {
        return one ? advance_one<int32_t, LaneTables, false, 1, kChunks>
                   : advance_one<int32_t, LaneTables, false, kStepBatch, kChunks>;
    }
    return one ? advance_one<int64_t, LineTables, true, 1, kChunks>
               : advance_one<int64_t, LineTables, true, kStepBatch, kChunks>;
}

bool can_run(const GruArgs &args, const Device &device) {
    return runs_by_steps(args, device.capability);
}

Status run(const GruArgs &args, const Launch &launch) {
    const gru::Cell &cell = *args.cell;
    const bool knots = has_lane_knots(cell);
    StepArgs a = {view_of(args), plain_cell(cell, knots ? TableForm::kKnots : TableForm::kLines),
                  cell.ih_min - cell.ih_zero, cell.ih_max - cell.ih_zero};
    const bool one = args.batch == 1;
    const int32_t columns = cell.input_size > cell.hidden_size ? cell.input_size : cell.hidden_size;
    const auto kernel = columns <= 256    ? instance<1>(knots, one)
                        : columns <= 512  ? instance<2>(knots, one)
                        : columns <= 1024 ? instance<4>(knots, one)
                        : knots           ? advance_one<int32_t, LaneTables, false, 4, kStepChunks>
                                          : advance_one<int64_t, LineTables, true, 4, kStepChunks>;
    uint32_t blocks = 1, rows = 1;  // powers of two, for their turn
    while (int64_t{blocks} * kUnits < cell.hidden_size) blocks *= 2;
    while (columns > 1024 && int64_t{rows} * kStepBatch < args.batch) rows *= 2;
    const int64_t x_step = args.batch * cell.input_size * (a.v.x_is_float ? 4 : 1);
    const int64_t y_step =
        args.batch * cell.hidden_size * (a.v.y_is_float ? 4 : int64_t{cell.h_bytes});
    for (int64_t t = 0; t < args.steps; ++t) {
        a.v.x = static_cast<const char *>(args.x) + t * x_step;
        a.v.y = static_cast<char *>(args.y) + t * y_step;
        QK_TRY(launch_kernel(launch, "gru step", kernel, {dim3(blocks, rows), kThreads}, a));
    }
    return QK_OK;
}

}  // namespace

const Kernel<GruArgs> kGruStep = {"step", can_run, nullptr, run};

}  // namespace qk::cuda

#include "cuda/gru/input.cuh"

#include "cuda/gru/input_wide.cuh"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "gru/split.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kPackThreads = 256;

// Four codes of x from column k on, zeros past the last. x is naturally aligned; 16-byte aligned
// floats are read four at a time.
__device__ int4 codes_of_x(const GruView &v, int64_t row, int32_t k, bool by_fours) {
    const gru::Cell &cell = v.cell;
    const int64_t first = row * cell.input_size + k;
    float4 real = {};
    int32_t codes[4] = {};
    if (by_fours && k < cell.input_size) {
        real = __ldcs(reinterpret_cast<const float4 *>(static_cast<const float *>(v.x) + first));
    }
    const float reals[4] = {real.x, real.y, real.z, real.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (k + i >= cell.input_size) continue;
        if (v.x_is_float) {
            const float value = by_fours ? reals[i] : static_cast<const float *>(v.x)[first + i];
            codes[i] = gru::real_to_code(value, v.x_factor, cell.x_zero, cell.x_min, cell.x_max);
        } else {
            codes[i] =
                gru::clamp(gru::load_code(v.x, cell.x_bytes, first + i), cell.x_min, cell.x_max);
        }
    }
    return {codes[0], codes[1], codes[2], codes[3]};
}

template <class Part>
__device__ char4 parts(const int4 &codes, const Part &part) {
    return {static_cast<signed char>(part(codes.x)), static_cast<signed char>(part(codes.y)),
            static_cast<signed char>(part(codes.z)), static_cast<signed char>(part(codes.w))};
}

// One warp a row: first the rows of x, then, where wanted, those of W.
__global__ void __launch_bounds__(kPackThreads)
    pack(const __grid_constant__ InputRun run, int64_t rows_of_w) {
    const gru::Cell &cell = run.v.cell;
    const int64_t row = int64_t(blockIdx.x) * (kPackThreads / 32) + threadIdx.x / 32;
    const int32_t lane = int32_t(threadIdx.x) % 32, c = cell.input_size;
    const int64_t columns = run.plan.columns;
    if (row < run.rows) {
        const bool by_fours =
            run.v.x_is_float && c % 4 == 0 && reinterpret_cast<uintptr_t>(run.v.x) % 16 == 0;
        int8_t *const to = run.x + row * columns;
        for (int32_t k = lane * 4; k < columns; k += 128) {
            const int4 codes = codes_of_x(run.v, row, k, by_fours);
            if (run.plan.limbs == 1) {
                *reinterpret_cast<char4 *>(to + k) = parts(codes, [](int32_t x) { return x; });
            } else {
                *reinterpret_cast<char4 *>(to + k) =
                    parts(codes, [](int32_t x) { return gru::split_high(x); });
                *reinterpret_cast<char4 *>(to + run.rows * columns + k) =
                    parts(codes, [](int32_t x) { return gru::split_low(x); });
            }
        }
    } else if (row < run.rows + rows_of_w) {
        const int64_t padded = row - run.rows, gate = padded / run.plan.units;
        const int64_t unit = padded % run.plan.units;
        const int8_t *const from =
            static_cast<const int8_t *>(cell.w) + (gate * cell.hidden_size + unit) * c;
        int32_t sum = 0;
        for (int32_t k = lane; k < columns; k += 32) {
            const int8_t code = k < c && unit < cell.hidden_size ? from[k] : int8_t(0);
            run.w[padded * columns + k] = code;
            sum += code;
        }
        sum = warp_sum(sum);
        if (lane == 0) run.w_sum[padded] = sum;
    }
}

// A block: 128 rows of x by 32 units of all three gates; a warp: 32 rows by 16 units.
constexpr int kThreads = 256, kStages = 4;
constexpr int kTileX = kInputRows * kInputColumns, kTileW = 3 * kInputUnits * kInputColumns;

template <int kLimbs>
__device__ void load_stage(const InputRun &run, uint32_t stage, int64_t column) {
    const int64_t columns = run.plan.columns;
    const int64_t first_row = int64_t(blockIdx.x) * kInputRows;
    constexpr int kPieces = kInputColumns / 16;
    for (int i = int(threadIdx.x); i < kLimbs * kInputRows * kPieces; i += kThreads) {
        const int limb = i / (kInputRows * kPieces), row = i / kPieces % kInputRows;
        const int64_t from = min64(first_row + row, run.rows - 1) + limb * run.rows;
        copy_16(stage + uint32_t(i) * 16, run.x + from * columns + column + i % kPieces * 16);
    }
    for (int i = int(threadIdx.x); i < 3 * kInputUnits * kPieces; i += kThreads) {
        const int gate = i / (kInputUnits * kPieces), unit = i / kPieces % kInputUnits;
        const int64_t from = gate * run.plan.units + int64_t(blockIdx.y) * kInputUnits + unit;
        copy_16(stage + uint32_t(kLimbs * kTileX + i * 16),
                run.w + from * columns + column + i % kPieces * 16);
    }
}

// Sums of one warp: [limb][16 rows of x][gate][8 units].
template <int kLimbs>
struct Sums {
    int32_t at[kLimbs][2][3][2][4];
};

template <int kLimbs>
__device__ void multiply_stage(uint32_t stage, Sums<kLimbs> *sums) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const uint32_t x_at =
        stage + uint32_t((warp / 2 * 32 + lane / 4) * kInputColumns + lane % 4 * 16);
    const uint32_t w_at = stage + uint32_t(kLimbs * kTileX) +
                          uint32_t((warp % 2 * 16 + lane / 4) * kInputColumns + lane % 4 * 16);
    uint4 w[3][2];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            w[gate][half] =
                shared_load_16(w_at + uint32_t((gate * kInputUnits + half * 8) * kInputColumns));
        }
    }
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint32_t at = x_at + uint32_t(limb * kTileX + m * 16 * kInputColumns);
            const uint4 top = shared_load_16(at), bottom = shared_load_16(at + 8 * kInputColumns);
            const uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y};
            const uint32_t second[4] = {top.z, bottom.z, top.w, bottom.w};
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    int32_t(&d)[4] = sums->at[limb][m][gate][half];
                    mma_16x8x32(d, first, w[gate][half].x, w[gate][half].y);
                    mma_16x8x32(d, second, w[gate][half].z, w[gate][half].w);
                }
            }
        }
    }
}

// Products of codes to ih, in 32 bits: two limbs are joined modulo 2^32, which the sum survives.
template <int kLimbs>
__device__ void store_sums(const InputRun &run, const Sums<kLimbs> &sums) {
    const gru::Cell &cell = run.v.cell;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int32_t h = cell.hidden_size;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int half = part / 2, column = part % 2;
        const int64_t unit =
            int64_t(blockIdx.y) * kInputUnits + warp % 2 * 16 + half * 8 + lane % 4 * 2 + column;
        if (unit >= h) continue;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const int64_t row = int64_t(blockIdx.x) * kInputRows + warp / 2 * 32 + m * 8 + lane / 4;
            if (row >= run.rows) continue;
            uint16_t codes[3];
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                const int element = m % 2 * 2 + column;
                int32_t sum = sums.at[0][m / 2][gate][half][element];
                if constexpr (kLimbs == 2) {
                    sum = int32_t(gru::split_join(sum, sums.at[1][m / 2][gate][half][element],
                                                  run.w_sum[gate * run.plan.units + unit]));
                }
                codes[gate] = uint16_t(gru::ih_code<int32_t>(cell, int32_t(gate * h + unit), sum) -
                                       cell.ih_min);
            }
            run.ih[row * h + unit] = {codes[0], codes[1], codes[2], 0};
        }
    }
}

template <int kLimbs>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ InputRun run) {
    extern __shared__ __align__(128) char shared[];
    constexpr uint32_t kStageBytes = uint32_t(kLimbs * kTileX + kTileW);
    const uint32_t base = shared_address(shared);
    const int64_t count = run.plan.columns / kInputColumns;
    Sums<kLimbs> sums = {};
    for (int s = 0; s < kStages - 1; ++s) {
        if (s < count) load_stage<kLimbs>(run, base + uint32_t(s) * kStageBytes, s * kInputColumns);
        copies_commit();
    }
    for (int64_t i = 0; i < count; ++i) {
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
#endif
        __syncthreads();
        const int64_t next = i + kStages - 1;
        if (next < count) {
            load_stage<kLimbs>(run, base + uint32_t(next % kStages) * kStageBytes,
                               next * kInputColumns);
        }
        copies_commit();
        multiply_stage<kLimbs>(base + uint32_t(i % kStages) * kStageBytes, &sums);
    }
    store_sums<kLimbs>(run, sums);
}

}  // namespace

Status run_input(const InputRun &run, bool with_weights, const Launch &launch) {
    const int64_t rows_of_w = with_weights ? 3 * run.plan.units : 0;
    const uint32_t blocks = uint32_t(ceil_div(run.rows + rows_of_w, kPackThreads / 32));
    QK_TRY(launch_kernel(launch, "gru input", pack, {dim3(blocks), kPackThreads}, run, rows_of_w));
    if (run.plan.wide) {
        const Shape3 shape = {
            dim3(uint32_t(ceil_div(run.rows, kWideRows)), uint32_t(run.plan.units / kWideUnits)),
            kWideThreads, sizeof(WideShared)};
        return launch_kernel(launch, "gru input", multiply_wide, shape, run);
    }
    const Shape3 shape = {
        dim3(uint32_t(ceil_div(run.rows, kInputRows)), uint32_t(run.plan.units / kInputUnits)),
        kThreads, size_t(kStages * (run.plan.limbs * kTileX + kTileW))};
    const auto kernel = run.plan.limbs == 1 ? multiply<1> : multiply<2>;
    return launch_kernel(launch, "gru input", kernel, shape, run);
}

}  // namespace qk::cuda

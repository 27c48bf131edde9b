// W x on the matrix units of sm_90: a warpgroup multiplies 64 rows of x with 64 units of all gates,
// both from shared memory, in rows of 128 bytes whose 16-byte pieces are exchanged by the row's
// number. Two blocks a multiprocessor: one multiplies while the other stores.
#pragma once
#include "cuda/gru/input.cuh"
#include "cuda/gru/rules.cuh"
#include "cuda/prim/copy.cuh"

namespace qk::cuda {
namespace {

constexpr int kWideThreads = 256, kWideStages = 2, kWideX = kWideRows * kWideColumns;
constexpr int kWideStage = kWideX + 3 * kWideUnits * kWideColumns;

struct WideShared {
    alignas(1024) uint8_t stages[kWideStages][kWideStage];
    alignas(16) int2 rows[3][kWideUnits];  // offset, with the half of the shift, and the shift
};

__device__ inline uint64_t rows_of_128(uint32_t address) {
    return uint64_t(1) << 62 | uint64_t(64) << 32 | uint64_t(1) << 16 | (address & 0x3ffff) >> 4;
}

// d[64 x 192] += x[64 x 32] . w[32 x 192]
__device__ inline void wgmma_64x192x32(int32_t (&d)[96], uint64_t x, uint64_t w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %98, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, add;\n\t}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
          "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]),
          "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), "+r"(d[32]), "+r"(d[33]), "+r"(d[34]),
          "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]),
          "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]), "+r"(d[48]),
          "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
          "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]),
          "+r"(d[63]), "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]),
          "+r"(d[70]), "+r"(d[71]), "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]),
          "+r"(d[77]), "+r"(d[78]), "+r"(d[79]), "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]),
          "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), "+r"(d[87]), "+r"(d[88]), "+r"(d[89]), "+r"(d[90]),
          "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95])
        : "l"(x), "l"(w), "r"(1));
#endif
}

// What the warpgroup issues from here on may read its registers; all that was issued is done.
__device__ inline void wgmma_begin() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void wgmma_end(int32_t (&d)[96]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 96; ++i) asm volatile("" : "+r"(d[i])::"memory");
#endif
}

__device__ inline void wide_load(const InputRun &run, uint32_t stage, int64_t column) {
    const int64_t columns = run.plan.columns, first_row = int64_t(blockIdx.x) * kWideRows;
    const int row = int(threadIdx.x) / 8, piece = int(threadIdx.x) % 8;
    constexpr int kRows = kWideThreads / 8;  // at a time; the exchange of pieces repeats with them
    const uint32_t to = stage + uint32_t(row * kWideColumns + (piece ^ (row & 7)) * 16);
    column += piece * 16;
#pragma unroll 1
    for (int i = 0; i < kWideRows; i += kRows) {
        copy_16(to + uint32_t(i * kWideColumns),
                run.x + min64(first_row + row + i, run.rows - 1) * columns + column);
    }
    const int8_t *w = run.w + (int64_t(blockIdx.y) * kWideUnits + row) * columns + column;
#pragma unroll 1
    for (int i = 0; i < 3 * kWideUnits; i += 2 * kRows, w += run.plan.units * columns) {
        static_assert(kWideUnits == 2 * kRows);
        copy_16(to + uint32_t(kWideX + i * kWideColumns), w);
        copy_16(to + uint32_t(kWideX + (i + kRows) * kWideColumns), w + kRows * columns);
    }
}

__device__ inline void wide_rows(const InputRun &run, int2 (&rows)[3][kWideUnits]) {
    const gru::Cell &cell = run.v.cell;
    const int i = int(threadIdx.x), gate = i / kWideUnits;
    const int32_t unit = int32_t(blockIdx.y) * kWideUnits + i % kWideUnits;
    if (i >= 3 * kWideUnits || unit >= cell.hidden_size) return;
    const int32_t row = gate * cell.hidden_size + unit;
    const int32_t shift = cell.w_shift[row] + cell.ih_shift;
    rows[gate][i % kWideUnits] = {int32_t(cell.ih_offset[row]) + row_half(shift), shift};
}

__device__ inline void wide_store(const InputRun &run, const int2 (&rows)[3][kWideUnits],
                                  const int32_t (&d)[96]) {
    const gru::Cell &cell = run.v.cell;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int32_t h = cell.hidden_size, up = cell.ih_zero - cell.ih_min;
    const int32_t most = cell.ih_max - cell.ih_min;
    const int64_t row = int64_t(blockIdx.x) * kWideRows + warp * 16 + lane / 4;
    const int32_t first_unit = int32_t(blockIdx.y) * kWideUnits + lane % 4 * 2;
    InputCodes *const to = run.ih + row * h + first_unit;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
        if (first_unit + eight * 8 >= h) break;  // h is a multiple of 8
        uint32_t codes[2][2][3];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
            const int4 of_two =
                *reinterpret_cast<const int4 *>(&rows[gate][eight * 8 + lane % 4 * 2]);
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const bool second = part % 2 != 0;
                const int32_t sum = d[(gate * 8 + eight) * 4 + part];
                const int32_t value =
                    row_shifted(sum + (second ? of_two.z : of_two.x), second ? of_two.w : of_two.y);
                codes[part / 2][part % 2][gate] = uint32_t(__viaddmin_s32_relu(value, up, most));
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (row + half * 8 >= run.rows) continue;
            const uint32_t(&two)[2][3] = codes[half];
            *reinterpret_cast<uint4 *>(to + int64_t(half * 8) * h + eight * 8) = {
                two[0][0] | two[0][1] << 16, two[0][2], two[1][0] | two[1][1] << 16, two[1][2]};
        }
    }
}

// A stage is loaded while the one before it is multiplied: all meet once the copy of a stage has
// arrived and the products of the one before are done.
__global__ void __launch_bounds__(kWideThreads, 2)
    multiply_wide(const __grid_constant__ InputRun run) {
    extern __shared__ __align__(1024) char memory[];
    WideShared &shared = *reinterpret_cast<WideShared *>(memory);
    const uint32_t base = shared_address(shared.stages);
    const uint32_t own_rows = threadIdx.x / 128 * 64 * kWideColumns;
    const int64_t count = run.plan.columns / kWideColumns;
    int32_t sums[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) sums[i] = 0;
    wide_load(run, base, 0);
    copies_commit();
    wide_rows(run, shared.rows);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t stage = base + uint32_t(i & 1) * uint32_t(kWideStage);
        copies_wait();
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads();
        if (i + 1 < count) {
            wide_load(run, base + uint32_t(~i & 1) * uint32_t(kWideStage), (i + 1) * kWideColumns);
        }
        copies_commit();
        wgmma_begin();
#pragma unroll
        for (uint32_t k = 0; k < kWideColumns; k += 32) {
            wgmma_64x192x32(sums, rows_of_128(stage + own_rows + k),
                            rows_of_128(stage + uint32_t(kWideX) + k));
        }
        wgmma_end(sums);
    }
    wide_store(run, shared.rows, sums);
}

}  // namespace
}  // namespace qk::cuda

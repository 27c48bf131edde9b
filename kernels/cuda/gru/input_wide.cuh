// W x on the matrix units of sm_90: a warpgroup multiplies 64 rows of x with 64 units of all gates,
// both from shared memory, in rows of 128 bytes whose 16-byte pieces are exchanged by the row's
// number.
#pragma once
#include "cuda/gru/input.cuh"
#include "cuda/prim/copy.cuh"

namespace qk::cuda {
namespace {

constexpr int kWideThreads = 256, kWideStages = 4, kWideX = kWideRows * kWideColumns;
constexpr int kWideStage = kWideX + 3 * kWideUnits * kWideColumns;

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

// What the warpgroup has ordered may run; all but the last order are done.
__device__ inline void wgmma_begin() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
template <int kPending>
__device__ inline void wgmma_end(int32_t (&d)[96]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < 96; ++i) asm volatile("" : "+r"(d[i])::"memory");
#endif
}

__device__ inline void wide_load(const InputRun &run, uint32_t stage, int64_t column) {
    const int64_t columns = run.plan.columns, first_row = int64_t(blockIdx.x) * kWideRows;
    const int64_t first_unit = int64_t(blockIdx.y) * kWideUnits;
    for (int i = int(threadIdx.x); i < kWideStage / 16; i += kWideThreads) {
        const int row = i / 8, piece = i % 8;
        const int8_t *from;
        if (row < kWideRows) {
            from = run.x + min64(first_row + row, run.rows - 1) * columns;
        } else {
            const int w_row = row - kWideRows;
            const int64_t unit = first_unit + w_row % kWideUnits;
            from = run.w + (w_row / kWideUnits * run.plan.units + unit) * columns;
        }
        copy_16(stage + uint32_t(row * kWideColumns + (piece ^ (row & 7)) * 16),
                from + column + piece * 16);
    }
}

__device__ inline void wide_store(const InputRun &run, const int32_t (&d)[96]) {
    const gru::Cell &cell = run.v.cell;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int32_t h = cell.hidden_size;
    const int64_t row = int64_t(blockIdx.x) * kWideRows + warp * 16 + lane / 4;
#pragma unroll
    for (int part = 0; part < 16; ++part) {
        const int eight = part / 2, column = part % 2;
        const int64_t unit = int64_t(blockIdx.y) * kWideUnits + eight * 8 + lane % 4 * 2 + column;
        if (unit >= h) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint16_t codes[3];
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                const int32_t sum = d[(gate * 8 + eight) * 4 + half * 2 + column];
                codes[gate] = uint16_t(gru::ih_code<int32_t>(cell, int32_t(gate * h + unit), sum) -
                                       cell.ih_min);
            }
            if (row + half * 8 >= run.rows) continue;
            run.ih[(row + half * 8) * h + unit] = {codes[0], codes[1], codes[2], 0};
        }
    }
}

// A stage is loaded two ahead of its use into the place of the one that all had finished with when
// they met: each waits for its products but the last, and meets after that.
__global__ void __launch_bounds__(kWideThreads, 1)
    multiply_wide(const __grid_constant__ InputRun run) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = shared_address(shared);
    const uint32_t own_rows = threadIdx.x / 128 * 64 * kWideColumns;
    const int64_t count = run.plan.columns / kWideColumns;
    const auto stage_at = [&](int64_t i) {
        return base + uint32_t(i % kWideStages) * uint32_t(kWideStage);
    };
    int32_t sums[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) sums[i] = 0;
    for (int64_t i = 0; i < 2; ++i) {
        if (i < count) wide_load(run, stage_at(i), i * kWideColumns);
        copies_commit();
    }
    for (int64_t i = 0; i < count; ++i) {
        copies_wait_but_one();
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads();
        if (i + 2 < count) wide_load(run, stage_at(i + 2), (i + 2) * kWideColumns);
        copies_commit();
        wgmma_begin();
        const uint32_t stage = stage_at(i);
#pragma unroll
        for (uint32_t k = 0; k < kWideColumns; k += 32) {
            wgmma_64x192x32(sums, rows_of_128(stage + own_rows + k),
                            rows_of_128(stage + uint32_t(kWideX) + k));
        }
        wgmma_end<1>(sums);
    }
    wgmma_end<0>(sums);
    wide_store(run, sums);
}

}  // namespace
}  // namespace qk::cuda

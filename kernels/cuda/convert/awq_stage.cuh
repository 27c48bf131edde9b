// Codes of AWQ_GEMM, words [k][n / 8], on their way through shared memory: a block copies 256 rows
// (a line of 128 bytes of every column) as they lie, and its threads read them in another order.
#pragma once
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kAwqRows = 256, kAwqThreads = 256;

struct AwqCodes {
    const uint8_t *codes;  // of the first row
    int64_t pitch;         // bytes from a column to the next
    uint32_t rows, k;      // rows: a multiple of 16
};

// Where word `word` (8 rows) of column `column` lies. Lanes that read the same words of columns
// 8 apart, 16 of them, or 8 neighbouring pairs of words of columns 16 apart, meet in no bank.
__device__ inline uint32_t awq_place(uint32_t column, uint32_t word) {
    const uint32_t eights = column >> 3;
    const uint32_t swap = (eights & 1) << 1 | (eights & 2) << 3 | (eights & 12);
    return column * (kAwqRows / 8) + (word ^ swap);
}

// Loads of 8 bytes, 16 rows; all are under way, and meanwhile() done, before the first is stored.
// Zeros past the last row and column.
template <uint32_t kColumns, class Meanwhile>
__device__ void stage_awq(const AwqCodes &from, uint32_t first_row, uint32_t first_column,
                          uint32_t *shared, const Meanwhile &meanwhile) {
    constexpr uint32_t kPieces = kAwqRows / 16, kStep = kAwqThreads / kPieces;
    constexpr uint32_t kLoads = kColumns / kStep;
    const uint32_t piece = threadIdx.x % kPieces, line = threadIdx.x / kPieces;
    const uint32_t row = first_row + piece * 16, column = first_column + line;
    const uint8_t *const at = from.codes + column * from.pitch + row / 2;
    uint2 pieces[kLoads] = {};
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        if (row >= from.rows || column + i * kStep >= from.k) continue;
        pieces[i] = __ldcs(reinterpret_cast<const uint2 *>(at + int64_t(i * kStep) * from.pitch));
    }
    meanwhile();
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        *reinterpret_cast<uint2 *>(shared + awq_place(line + i * kStep, piece * 2)) = pieces[i];
    }
    __syncthreads();
}

}  // namespace
}  // namespace qk::cuda

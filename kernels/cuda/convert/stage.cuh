// Codes of AWQ_GEMM and GPTQ on their way through shared memory: a block copies whole lines of
// global memory, and its threads read them transposed.
#pragma once
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// kLoads pieces, one of every kStep-th line from `from` on, to place(i). All loads are issued, and
// meanwhile() runs, before the first piece is stored. Zeros unless inside(i).
template <class Piece, uint32_t kLoads, uint32_t kStep, class Inside, class Place, class Meanwhile>
__device__ void load_lines(const uint8_t *from, int64_t pitch, const Inside &inside,
                           const Place &place, const Meanwhile &meanwhile) {
    Piece pieces[kLoads] = {};
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        if (!inside(i)) continue;
        pieces[i] = __ldcs(reinterpret_cast<const Piece *>(from + int64_t(i * kStep) * pitch));
    }
    meanwhile();
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) *reinterpret_cast<Piece *>(place(i)) = pieces[i];
    __syncthreads();
}

// AWQ_GEMM: words [k][n / 8]. A block copies 256 rows, a line of 128 bytes of every column.
constexpr uint32_t kAwqRows = 256, kAwqThreads = 256;

struct AwqCodes {
    const uint8_t *codes;  // of the first row
    int64_t pitch;         // bytes from a column to the next
    uint32_t rows, k;      // rows: a multiple of 16
};

// The place of word `word` (8 rows) of column `column`. Lanes that read the same words of columns
// 8 apart, 16 of them, or 8 neighbouring pairs of words of columns 16 apart, meet in no bank.
__device__ inline uint32_t awq_place(uint32_t column, uint32_t word) {
    const uint32_t eights = column >> 3;
    const uint32_t swap = (eights & 1) << 1 | (eights & 2) << 3 | (eights & 12);
    return column * (kAwqRows / 8) + (word ^ swap);
}

// Loads of 8 bytes, 16 rows; zeros past the last row and column.
template <uint32_t kColumns, class Meanwhile>
__device__ void stage_awq(const AwqCodes &from, uint32_t first_row, uint32_t first_column,
                          uint32_t *shared, const Meanwhile &meanwhile) {
    constexpr uint32_t kPieces = kAwqRows / 16, kStep = kAwqThreads / kPieces;
    constexpr uint32_t kLoads = kColumns / kStep;
    const uint32_t piece = threadIdx.x % kPieces, line = threadIdx.x / kPieces;
    const uint32_t row = first_row + piece * 16, column = first_column + line;
    const uint8_t *const at = from.codes + column * from.pitch + row / 2;
    load_lines<uint2, kLoads, kStep>(
        at, from.pitch, [&](uint32_t i) { return row < from.rows && column + i * kStep < from.k; },
        [&](uint32_t i) { return shared + awq_place(line + i * kStep, piece * 2); }, meanwhile);
}

// GPTQ: words [k / 8][n]. A block copies 128 rows, a line of 512 bytes, of 256 columns.
constexpr uint32_t kGptqRows = 128, kGptqLines = 32, kGptqThreads = 256;

struct GptqCodes {
    const uint8_t *codes;  // of the first row
    int64_t pitch;         // bytes from 8 columns to the next
    uint32_t rows, lines;  // of 8 columns
};

// The place of the word of row `row` and columns 8 line .. 8 line + 7. Neither lanes that read 16
// bytes of lines side by side meet in a bank, nor those that read 8 rows of every second line.
__device__ inline uint32_t gptq_place(uint32_t line, uint32_t row) {
    return line * kGptqRows + (row ^ (line & 7) * 4);
}

// Loads of Piece, uint4 where rows come in fours; zeros past the last row and line.
template <class Piece, class Meanwhile>
__device__ void stage_gptq(const GptqCodes &from, uint32_t first_row, uint32_t first_line,
                           uint32_t *shared, const Meanwhile &meanwhile) {
    constexpr uint32_t kWords = sizeof(Piece) / 4, kPieces = kGptqRows / kWords;
    constexpr uint32_t kStep = kGptqThreads / kPieces, kLoads = kGptqLines / kStep;
    const uint32_t piece = threadIdx.x % kPieces * kWords, line = threadIdx.x / kPieces;
    const bool there = first_row + piece < from.rows;
    const uint8_t *const at =
        from.codes + (first_line + line) * from.pitch + int64_t(first_row + piece) * 4;
    load_lines<Piece, kLoads, kStep>(
        at, from.pitch,
        [&](uint32_t i) { return there && first_line + line + i * kStep < from.lines; },
        [&](uint32_t i) { return shared + gptq_place(line + i * kStep, piece); }, meanwhile);
}

}  // namespace
}  // namespace qk::cuda

// Codes of GPTQ, words [k / 8][n], on their way through shared memory: a block copies 128 rows (a
// line of 512 bytes) of 256 columns as they lie, and its threads read them in another order.
#pragma once
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kGptqRows = 128, kGptqLines = 32, kGptqThreads = 256;

struct GptqCodes {
    const uint8_t *codes;  // of the first row
    int64_t pitch;         // bytes from 8 columns to the next
    uint32_t rows, lines;  // of 8 columns
};

// Where the word of row `row` and columns 8 line .. 8 line + 7 lies. Neither lanes that read 16
// bytes of lines side by side meet in a bank, nor those that read 8 rows of every second line.
__device__ inline uint32_t gptq_place(uint32_t line, uint32_t row) {
    return line * kGptqRows + (row ^ (line & 7) * 4);
}

// Loads of Piece, uint4 where rows come in fours; all are under way, and meanwhile() done, before
// the first is stored. Zeros past the last row and line.
template <class Piece, class Meanwhile>
__device__ void stage_gptq(const GptqCodes &from, uint32_t first_row, uint32_t first_line,
                           uint32_t *shared, const Meanwhile &meanwhile) {
    constexpr uint32_t kWords = sizeof(Piece) / 4, kPieces = kGptqRows / kWords;
    constexpr uint32_t kStep = kGptqThreads / kPieces, kLoads = kGptqLines / kStep;
    const uint32_t piece = threadIdx.x % kPieces * kWords, line = threadIdx.x / kPieces;
    const bool there = first_row + piece < from.rows;
    const uint8_t *const at =
        from.codes + (first_line + line) * from.pitch + int64_t(first_row + piece) * 4;
    Piece pieces[kLoads] = {};
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        if (!there || first_line + line + i * kStep >= from.lines) continue;
        pieces[i] = __ldcs(reinterpret_cast<const Piece *>(at + int64_t(i * kStep) * from.pitch));
    }
    meanwhile();
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        *reinterpret_cast<Piece *>(shared + gptq_place(line + i * kStep, piece)) = pieces[i];
    }
    __syncthreads();
}

}  // namespace
}  // namespace qk::cuda

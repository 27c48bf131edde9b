// What the kernels of this folder share: stores of 16 bytes, planes that every layout has alike,
// and codes of AWQ_GEMM and GPTQ on their way through shared memory, where a block copies whole
// lines of global memory and its threads read them transposed.
#pragma once
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"
#include "cuda/scale_tables.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

// What codes are: looked up in a table; numbers, of which 4-bit ones have zeros; numbers with
// minima.
enum class Entries { kTable, kNumbers, kLowered };

struct Span {
    int64_t first, last;  // elements, row-major
};

__device__ inline Span elements_of(const Geometry &s, GroupIndex group) {
    const int64_t first =
        s.flat ? group.group * s.group_size : group.row * s.k + group.group * s.group_size;
    const int64_t limit = s.flat ? s.n * s.k : (group.row + 1) * s.k;
    return {first, min64(first + s.group_size, limit)};
}

// x / size: of x up to 2^16 where size is kShort or less, of x below 2 * size else.
struct IndexDivisor {
    static constexpr uint32_t kShort = 1u << 15;  // what divides by a product
    uint32_t size, inverse;

    __device__ uint32_t divide(uint32_t x) const {
        return inverse == 0 ? uint32_t(x >= size) : __umulhi(x, inverse);
    }
};

inline IndexDivisor index_divisor(int64_t size) {
    const bool is_short = size <= IndexDivisor::kShort;
    return {uint32_t(size), is_short ? uint32_t(uint64_t{0xffffffffu} / size + 1) : 0};
}

// f32 values to 16 bytes of a narrower type, each rounded once.
template <class Out>
struct Store {
    static constexpr int kCodes = 8;
    static __device__ uint4 pack(const float (&v)[8]) {
        using T = std::conditional_t<std::is_same_v<Out, __half>, F16, BF16>;
        return {pack_pair(T{}, v[0], v[1]), pack_pair(T{}, v[2], v[3]), pack_pair(T{}, v[4], v[5]),
                pack_pair(T{}, v[6], v[7])};
    }
};

template <>
struct Store<float> {
    static constexpr int kCodes = 4;
    static __device__ uint4 pack(const float (&v)[4]) {
        return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3])};
    }
};

// 8 bytes of codes, of which the plane may have fewer; zeros behind them.
__device__ inline uint2 load_piece(const uint8_t *from, int32_t bytes) {
    if (bytes >= 8) return __ldcs(reinterpret_cast<const uint2 *>(from));
    uint2 piece = {0, 0};
    for (int32_t i = 0; i < bytes; ++i) {
        uint32_t *const word = i < 4 ? &piece.x : &piece.y;
        *word |= uint32_t(from[i]) << i % 4 * 8;
    }
    return piece;
}

// A thread's pieces, kStep bytes apart; bytes: from its first one to the end of the block. A whole
// block's loads stand side by side: code between them would be fetched before the last is issued.
template <int32_t kStep, uint32_t kPieces>
__device__ void load_pieces(const uint8_t *from, int32_t bytes, uint2 (&pieces)[kPieces]) {
    if (__builtin_expect(bytes > int32_t(kPieces - 1) * kStep + 7, 1)) {
#pragma unroll
        for (int32_t i = 0; i < int32_t(kPieces); ++i) {
            pieces[i] = __ldcs(reinterpret_cast<const uint2 *>(from + i * kStep));
        }
        return;
    }
    for (int32_t i = 0; i < int32_t(kPieces); ++i) {
        pieces[i] = load_piece(from + i * kStep, bytes - i * kStep);
    }
}

// `half`: 0 stores low nibbles, 1 adds high ones.
__device__ inline void store_nibble(uint8_t *plane, int64_t at, int value, int half) {
    if ((at & 1) != half) return;
    plane[at >> 1] = half == 0 ? uint8_t(value) : uint8_t(plane[at >> 1] | value << 4);
}

inline Status fill_zero(const Launch &launch, const char *what, void *plane, int64_t bytes) {
    return check(cudaMemsetAsync(plane, 0, size_t(bytes), stream_of(launch)), launch.error, what);
}

inline Status copy_plane(const Launch &launch, void *to, const void *from, int64_t bytes) {
    return check(
        cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(launch)),
        launch.error, "repack");
}

// What belongs to coded scales, the tables of look-ups, the order of columns. Codes of packed tiles
// that have been divided are made here from those that have not, and left behind on the way back.
inline Status copy_shared_planes(const RepackArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "repack"));
    const Weight &from = args.from, &to = args.to;
    const bool i8 = from.scale.format->id == QK_FORMAT_I8 && !is_records(from);
    if (i8 || is_nested(from)) {
        const int64_t bytes = ceil_div(from.geometry.group_count, from.scale.second_group) * 4;
        QK_TRY(copy_plane(launch, to.scale.second, from.scale.second, bytes));
        if (has_minimum(from)) {
            QK_TRY(copy_plane(launch, to.minimum.second, from.minimum.second, bytes));
        }
    }
    if (is_nested(from)) {
        QK_TRY(copy_plane(launch, to.scale.code, from.scale.code, 256 * 4));
        QK_TRY(copy_plane(launch, to.scale.bias, from.scale.bias, 4));
    } else if (to.scale.code != from.scale.code && !to.scale.divides) {
        QK_TRY(from.scale.divides ? fold_scale_code(from.scale, to.scale, launch)
                                  : copy_plane(launch, to.scale.code, from.scale.code, 256 * 4));
    }
    if (from.globals > 0) QK_TRY(copy_plane(launch, to.global, from.global, from.globals * 4));
    if (from.order != nullptr) {
        QK_TRY(copy_plane(launch, to.order, from.order, from.geometry.k * 4));
    }
    const int64_t entries = table_entries(*from.format);
    return entries == 0 ? QK_OK : copy_plane(launch, to.table, from.table, entries * 4);
}

// 2^23 + code as a float, so that one subtraction gives code - zero, exactly.
__device__ inline float biased(uint32_t code) { return __uint_as_float(0x4b000000u | (code & 15)); }

// The i-th of 8 values of f16 or bf16.
__device__ inline float half_in(uint4 eight, int i, qk_format format) {
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
    const uint32_t bits = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
    if (format == QK_FORMAT_BF16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half(uint16_t(bits)));
}

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

// 4-bit codes of any layout as words of 8 neighbouring columns of a row, the even column in the low
// nibble, in shared memory: what every layout is read into and written from. Threads move 16 bytes
// at a time (AWQ_GEMM: 8) where rows and addresses allow it.
//
//                      a thread has                     a warp moves lines of
//     ROW, ROW_HIGH,   32 columns of a row              a row's part of the block
//       WORD, AWQ_GEMV
//     GPTQ             32 columns of 4 rows             the block's rows, 512 bytes at most
//     AWQ_GEMM         8 columns of 16 rows             the block's rows, half a byte each
//     tiles            16 columns of rows r and r + 8   a tile, 512 bytes
#pragma once
#include "cuda/convert/nibbles.cuh"
#include "cuda/convert/parts.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {

// Where the codes of a weight are, for words.
struct WordPlane {
    uint8_t *data;
    qk_layout layout;
    uint32_t rows, words;  // words: of a row
    uint32_t tiles;        // of a row of tiles
};

// How the words of a layout follow one another.
enum class WordOrder { kRows, kColumns, kEights, kTiles };

inline WordOrder words_of(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return WordOrder::kColumns;
        case QK_LAYOUT_AWQ_GEMM: return WordOrder::kEights;
        case kLayoutTiles:
        case kLayoutTilesPairs: return WordOrder::kTiles;
        default: return WordOrder::kRows;
    }
}

inline WordPlane word_plane(const Weight &w) {
    const Geometry &s = w.geometry;
    return {static_cast<uint8_t *>(w.data), w.layout->id, uint32_t(s.n), uint32_t(s.k / 8),
            uint32_t(ceil_div(s.k, 64))};
}

// Whether words come in vectors: four of a row or a column, two of AWQ_GEMM.
inline bool has_vectors(const Weight &w) {
    const Geometry &s = w.geometry;
    switch (words_of(w)) {
        case WordOrder::kRows: return s.k % 32 == 0 && aligned(w.data);
        case WordOrder::kColumns: return s.n % 4 == 0 && aligned(w.data);
        case WordOrder::kEights: return s.n % 16 == 0 && aligned(w.data, 8);
        default: return true;
    }
}

// Whether a plane can be read and written by words and by the vectors of its layout.
inline bool has_words(const Weight &w) {
    const Geometry &s = w.geometry;
    const int64_t limit = int64_t{1} << 30;
    if (w.format->bits != 4 || is_records(w) || s.flat || s.k % 8 != 0) return false;
    if (s.n >= limit || s.k >= limit || !aligned(w.data, 4)) return false;
    switch (w.layout->id) {
        case QK_LAYOUT_ROW:
        case QK_LAYOUT_ROW_HIGH:
        case QK_LAYOUT_WORD:
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return true;
        case QK_LAYOUT_AWQ_GEMM: return s.n % 8 == 0;
        case kLayoutTiles:
        case kLayoutTilesPairs: return aligned(w.data);
        default: return false;
    }
}

#if defined(__CUDACC__)
namespace {

// What a block has of a weight.
template <uint32_t rows, uint32_t words, uint32_t threads = 256>
struct WordShape {
    static constexpr uint32_t kRows = rows, kWords = words, kAll = rows * words;
    static constexpr uint32_t kThreads = threads, kFours = kAll / 4 / threads;  // of a thread

    // The place of a word. Four words of a row stay together; eight lanes meet in no bank that have
    // four words of a row each side by side, or of rows 4 or 8 apart; nor do 32 lanes that have a
    // tile's pairs of words. Two may that have a word each of rows 16 apart.
    static __device__ uint32_t place(uint32_t row, uint32_t word) {
        constexpr uint32_t kLine = words == 16 ? 2 : 1;  // rows of 32 words
        const uint32_t swap = (row / 4 ^ row / 32 ^ row % 4 / kLine * 2) % 8;
        return row / kLine * (words * kLine) + ((row % kLine * 16 + word) ^ swap * 4);
    }
};

// Where a block is: its first row and word.
struct WordBlock {
    uint32_t row, word;
};

// ---- A vector of words side by side in memory, of which `there` are there or more. `whole`: all
// are or none, and addresses are a vector's.
template <class Vector>
constexpr int kWordsOf = sizeof(Vector) / 4;

template <class Vector, bool whole>
__device__ inline Vector load_vector(const uint32_t *from, int64_t there) {
    Vector vector = {};
    if constexpr (whole) {
        if (there > 0) vector = __ldcs(reinterpret_cast<const Vector *>(from));
    } else {
        uint32_t words[kWordsOf<Vector>];
#pragma unroll
        for (int i = 0; i < kWordsOf<Vector>; ++i) words[i] = there > i ? __ldcs(from + i) : 0;
        memcpy(&vector, words, sizeof(vector));
    }
    return vector;
}

template <bool whole, class Vector>
__device__ inline void store_vector(uint32_t *to, int64_t there, const Vector &vector) {
    if constexpr (whole) {
        if (there > 0) __stcs(reinterpret_cast<Vector *>(to), vector);
    } else {
        uint32_t words[kWordsOf<Vector>];
        memcpy(words, &vector, sizeof(vector));
#pragma unroll
        for (int i = 0; i < kWordsOf<Vector>; ++i) {
            if (there > i) __stcs(to + i, words[i]);
        }
    }
}

__device__ inline uint4 swap_four(bool swaps, uint4 v) {
    if (!swaps) return v;
    return {swap_nibbles(v.x), swap_nibbles(v.y), swap_nibbles(v.z), swap_nibbles(v.w)};
}

__device__ inline uint4 *four_at(uint32_t *shared, uint32_t place) {
    return reinterpret_cast<uint4 *>(shared + place);
}
__device__ inline uint4 four_at(const uint32_t *shared, uint32_t place) {
    return *reinterpret_cast<const uint4 *>(shared + place);
}

// What a thread has of a block, and where that is in memory.
struct Piece {
    uint32_t row, word;  // of the block
    uint32_t *at;
    int64_t there;  // words from there on; 0 or less past the last row or word
};

// ---- Rows
template <class B>
__device__ inline Piece row_four(const WordPlane &p, const WordBlock &b, uint32_t i) {
    const uint32_t at = threadIdx.x + i * B::kThreads;
    const uint32_t down = at / (B::kWords / 4), along = at % (B::kWords / 4) * 4;
    const uint32_t row = b.row + down, word = b.word + along;
    return {down, along, reinterpret_cast<uint32_t *>(p.data) + int64_t(row) * p.words + word,
            row < p.rows ? int64_t(p.words) - word : 0};
}

template <class B, bool whole>
__device__ inline void load_rows(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    uint4 fours[B::kFours];
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = row_four<B>(p, b, i);
        fours[i] = load_vector<uint4, whole>(f.at, f.there);
    }
    const bool swaps = p.layout == QK_LAYOUT_ROW_HIGH;
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = row_four<B>(p, b, i);
        *four_at(shared, B::place(f.row, f.word)) = swap_four(swaps, fours[i]);
    }
}

template <class B, bool whole>
__device__ inline void store_rows(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    const bool swaps = p.layout == QK_LAYOUT_ROW_HIGH;
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = row_four<B>(p, b, i);
        store_vector<whole>(f.at, f.there,
                            swap_four(swaps, four_at(shared, B::place(f.row, f.word))));
    }
}

// ---- GPTQ: words side by side are of rows side by side. A thread has four words of four rows.
template <class B>
__device__ inline Piece column_four(const WordPlane &p, const WordBlock &b, uint32_t i,
                                    uint32_t j) {
    const uint32_t at = threadIdx.x + i * B::kThreads;
    const uint32_t down = at % (B::kRows / 4) * 4, along = at / (B::kRows / 4) * 4 + j;
    const uint32_t row = b.row + down, word = b.word + along;
    return {down, along, reinterpret_cast<uint32_t *>(p.data) + int64_t(word) * p.rows + row,
            word < p.words ? int64_t(p.rows) - row : 0};
}

template <class B>
constexpr uint32_t kPatches = (B::kAll / 16 + B::kThreads - 1) / B::kThreads;  // of a thread

template <class B>
__device__ inline bool has_patch(uint32_t i) {
    return threadIdx.x + i * B::kThreads < B::kAll / 16;
}

__device__ inline void turn_fours(const uint4 (&v)[4], uint4 (&out)[4]) {
    out[0] = {v[0].x, v[1].x, v[2].x, v[3].x};
    out[1] = {v[0].y, v[1].y, v[2].y, v[3].y};
    out[2] = {v[0].z, v[1].z, v[2].z, v[3].z};
    out[3] = {v[0].w, v[1].w, v[2].w, v[3].w};
}

template <class B, bool whole>
__device__ inline void load_columns(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    uint4 fours[kPatches<B>][4];
#pragma unroll
    for (uint32_t i = 0; i < kPatches<B>; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
            const Piece f = column_four<B>(p, b, i, j);
            fours[i][j] = load_vector<uint4, whole>(f.at, has_patch<B>(i) ? f.there : 0);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kPatches<B>; ++i) {
        if (!has_patch<B>(i)) continue;
        const Piece f = column_four<B>(p, b, i, 0);
        uint4 rows[4];
        turn_fours(fours[i], rows);
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) *four_at(shared, B::place(f.row + r, f.word)) = rows[r];
    }
}

template <class B, bool whole>
__device__ inline void store_columns(const WordPlane &p, const WordBlock &b,
                                     const uint32_t *shared) {
#pragma unroll
    for (uint32_t i = 0; i < kPatches<B>; ++i) {
        if (!has_patch<B>(i)) continue;
        const Piece first = column_four<B>(p, b, i, 0);
        uint4 rows[4], fours[4];
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
            rows[r] = four_at(shared, B::place(first.row + r, first.word));
        }
        turn_fours(rows, fours);
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
            const Piece f = column_four<B>(p, b, i, j);
            store_vector<whole>(f.at, f.there, fours[j]);
        }
    }
}

// ---- AWQ_GEMM: words of 8 rows of a column. A thread has 16 rows of 8 columns.
template <class B>
constexpr uint32_t kTurns = (B::kAll / 16 + B::kThreads - 1) / B::kThreads;  // of a thread

template <class B>
__device__ inline Piece eight_two(const WordPlane &p, const WordBlock &b, uint32_t i, uint32_t c) {
    const uint32_t at = threadIdx.x + i * B::kThreads;
    const uint32_t down = at % (B::kRows / 16) * 16, along = at / (B::kRows / 16);
    const uint32_t row = b.row + down, word = b.word + along;
    const int64_t line = (int64_t(word) * 8 + c) * (p.rows / 8);
    return {down, along, reinterpret_cast<uint32_t *>(p.data) + line + row / 8,
            along < B::kWords && word < p.words ? int64_t(p.rows / 8) - row / 8 : 0};
}

template <class B, bool whole>
__device__ inline void load_eights(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    uint2 twos[kTurns<B>][8];
#pragma unroll
    for (uint32_t i = 0; i < kTurns<B>; ++i) {
#pragma unroll
        for (uint32_t c = 0; c < 8; ++c) {
            const Piece f = eight_two<B>(p, b, i, c);
            twos[i][c] = load_vector<uint2, whole>(f.at, f.there);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTurns<B>; ++i) {
        const Piece f = eight_two<B>(p, b, i, 0);
        if (f.word >= B::kWords) continue;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            uint32_t words[8], turned[8];
#pragma unroll
            for (int c = 0; c < 8; ++c) words[c] = half == 0 ? twos[i][c].x : twos[i][c].y;
            turn_nibbles(words, turned);
#pragma unroll
            for (uint32_t r = 0; r < 8; ++r) {
                shared[B::place(f.row + half * 8 + r, f.word)] = turned[awq_nibble(r)];
            }
        }
    }
}

template <class B, bool whole>
__device__ inline void store_eights(const WordPlane &p, const WordBlock &b,
                                    const uint32_t *shared) {
#pragma unroll
    for (uint32_t i = 0; i < kTurns<B>; ++i) {
        const Piece first = eight_two<B>(p, b, i, 0);
        if (first.word >= B::kWords) continue;
        uint32_t words[2][8], turned[2][8];
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
            for (uint32_t r = 0; r < 8; ++r) {
                words[half][awq_nibble(r)] = shared[B::place(first.row + half * 8 + r, first.word)];
            }
            turn_nibbles(words[half], turned[half]);
        }
#pragma unroll
        for (uint32_t c = 0; c < 8; ++c) {
            const Piece f = eight_two<B>(p, b, i, c);
            store_vector<whole>(f.at, f.there, uint2{turned[0][c], turned[1][c]});
        }
    }
}

// ---- Tiles

// 16 columns, the first of two words; row r, the first of two.
template <class B>
__device__ inline Piece tile_four(const WordPlane &p, const WordBlock &b, uint32_t i) {
    constexpr uint32_t kTiles = B::kWords / 8;
    const uint32_t at = threadIdx.x + i * B::kThreads, tile = at / 32, lane = at % 32;
    const uint32_t row = b.row / 16 + tile / kTiles, column = b.word / 8 + tile % kTiles;
    return {
        tile / kTiles * 16 + lane / 4, tile % kTiles * 8 + lane % 4 * 2,
        reinterpret_cast<uint32_t *>(p.data) + ((int64_t(row) * p.tiles + column) * 32 + lane) * 4,
        row * 16 < p.rows && column < p.tiles ? 4 : 0};
}

template <class B>
__device__ inline void load_tiles(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    const bool pairs = p.layout == kLayoutTilesPairs;
    uint4 fours[B::kFours];
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = tile_four<B>(p, b, i);
        fours[i] = load_vector<uint4, true>(f.at, f.there);
    }
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = tile_four<B>(p, b, i);
        const uint2 left = unweave_words(pairs, fours[i].x, fours[i].y);
        const uint2 right = unweave_words(pairs, fours[i].z, fours[i].w);
        *reinterpret_cast<uint2 *>(shared + B::place(f.row, f.word)) = {left.x, right.x};
        *reinterpret_cast<uint2 *>(shared + B::place(f.row + 8, f.word)) = {left.y, right.y};
    }
}

template <class B>
__device__ inline void store_tiles(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    const bool pairs = p.layout == kLayoutTilesPairs;
#pragma unroll
    for (uint32_t i = 0; i < B::kFours; ++i) {
        const Piece f = tile_four<B>(p, b, i);
        const auto words = [&](uint32_t row) {
            return *reinterpret_cast<const uint2 *>(shared + B::place(row, f.word));
        };
        const uint2 above = words(f.row), below = words(f.row + 8);
        const uint2 left = weave_words(pairs, above.x, below.x);
        const uint2 right = weave_words(pairs, above.y, below.y);
        store_vector<true>(f.at, f.there, uint4{left.x, left.y, right.x, right.y});
    }
}

// ---- Any of them. Zeros past the last row and column are read, and written where a layout pads.
template <class B, WordOrder words, bool whole>
__device__ inline void load_words(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    if constexpr (words == WordOrder::kRows) load_rows<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kColumns) load_columns<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kEights) load_eights<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kTiles) load_tiles<B>(p, b, shared);
}

template <class B, WordOrder words, bool whole>
__device__ inline void store_words(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    if constexpr (words == WordOrder::kRows) store_rows<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kColumns) store_columns<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kEights) store_eights<B, whole>(p, b, shared);
    if constexpr (words == WordOrder::kTiles) store_tiles<B>(p, b, shared);
}

}  // namespace
#endif

}  // namespace qk::cuda

// 4-bit codes of any layout as words of 8 neighbouring columns of a row, the even column in the low
// nibble, in shared memory: what every layout is read into and written from. A block has 128 rows x
// 256 columns, 16 KiB.
//
//                      a warp reads, and writes
//     ROW, ROW_HIGH,   a line of 128 bytes of a row
//       WORD, AWQ_GEMV
//     GPTQ             a line of 128 bytes, 8 columns of 32 rows
//     AWQ_GEMM         64 bytes of each of two times 8 columns; a thread transposes 8 words
//     tiles            a tile of 512 bytes; a thread has 16 columns of rows r and r + 8
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

inline WordPlane word_plane(const Weight &w) {
    const Geometry &s = w.geometry;
    return {static_cast<uint8_t *>(w.data), w.layout->id, uint32_t(s.n), uint32_t(s.k / 8),
            uint32_t(ceil_div(s.k, 64))};
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

constexpr uint32_t kWordRows = 128, kWordColumns = 256, kRowWords = kWordColumns / 8;
constexpr uint32_t kWordThreads = 256, kBlockWords = kWordRows * kRowWords;
constexpr uint32_t kThreadWords = kBlockWords / kWordThreads;

// Where a block is.
struct WordBlock {
    uint32_t row, word;  // its first ones
};

// The place of a word of the block. Neither the words of a row meet in a bank, nor those of 32 rows
// in sequence, of 16 rows 8 apart in two columns of words, of 8 rows in every second of 8.
__device__ inline uint32_t word_place(uint32_t row, uint32_t word) {
    const uint32_t swap = (row & 1) ^ (row >> 2 & 30) ^ (row << 2 & 24);
    return row * kRowWords + (word ^ swap);
}

// ---- Rows and GPTQ: a word is a word

__device__ inline bool is_along_n(qk_layout layout) {
    return layout == QK_LAYOUT_GPTQ || layout == QK_LAYOUT_GPTQ_V1;
}

struct WordPlace {
    uint32_t row, word;  // of the block
};

// Of a thread's i-th word.
__device__ inline WordPlace word_of(const WordPlane &p, uint32_t i) {
    const uint32_t at = threadIdx.x + i * kWordThreads;
    if (is_along_n(p.layout)) return {at % kWordRows, at / kWordRows};
    return {at / kRowWords, at % kRowWords};
}

__device__ inline uint32_t *word_at(const WordPlane &p, const WordBlock &b, WordPlace at) {
    const uint32_t row = b.row + at.row, word = b.word + at.word;
    if (row >= p.rows || word >= p.words) return nullptr;
    const int64_t number =
        is_along_n(p.layout) ? int64_t(word) * p.rows + row : int64_t(row) * p.words + word;
    return reinterpret_cast<uint32_t *>(p.data) + number;
}

__device__ inline void load_plain(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    uint32_t words[kThreadWords];
#pragma unroll
    for (uint32_t i = 0; i < kThreadWords; ++i) {
        const uint32_t *const from = word_at(p, b, word_of(p, i));
        words[i] = from != nullptr ? __ldcs(from) : 0;
    }
    const bool swaps = p.layout == QK_LAYOUT_ROW_HIGH;
#pragma unroll
    for (uint32_t i = 0; i < kThreadWords; ++i) {
        const WordPlace at = word_of(p, i);
        shared[word_place(at.row, at.word)] = swaps ? swap_nibbles(words[i]) : words[i];
    }
}

__device__ inline void store_plain(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    const bool swaps = p.layout == QK_LAYOUT_ROW_HIGH;
#pragma unroll
    for (uint32_t i = 0; i < kThreadWords; ++i) {
        const WordPlace at = word_of(p, i);
        uint32_t *const to = word_at(p, b, at);
        const uint32_t word = shared[word_place(at.row, at.word)];
        if (to != nullptr) __stcs(to, swaps ? swap_nibbles(word) : word);
    }
}

// ---- AWQ_GEMM: words of 8 rows of a column

constexpr uint32_t kTurns = kThreadWords / 8;

// A thread's i-th 8 rows x 8 columns.
__device__ inline WordPlace eights_of(uint32_t i) {
    const uint32_t at = threadIdx.x + i * kWordThreads;
    return {at % (kWordRows / 8) * 8, at / (kWordRows / 8)};
}

__device__ inline uint32_t *eights_at(const WordPlane &p, const WordBlock &b, WordPlace at) {
    const uint32_t row = b.row + at.row, word = b.word + at.word;
    if (row >= p.rows || word >= p.words) return nullptr;
    return reinterpret_cast<uint32_t *>(p.data) + int64_t(word) * p.rows + row / 8;
}

__device__ inline void load_turned(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    uint32_t words[kTurns][8] = {};
#pragma unroll
    for (uint32_t i = 0; i < kTurns; ++i) {
        const uint32_t *const from = eights_at(p, b, eights_of(i));
        if (from == nullptr) continue;
#pragma unroll
        for (int c = 0; c < 8; ++c) words[i][c] = __ldcs(from + int64_t(c) * (p.rows / 8));
    }
#pragma unroll
    for (uint32_t i = 0; i < kTurns; ++i) {
        const WordPlace at = eights_of(i);
        uint32_t turned[8];
        turn_nibbles(words[i], turned);
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) {
            shared[word_place(at.row + r, at.word)] = turned[awq_nibble(r)];
        }
    }
}

__device__ inline void store_turned(const WordPlane &p, const WordBlock &b,
                                    const uint32_t *shared) {
#pragma unroll
    for (uint32_t i = 0; i < kTurns; ++i) {
        const WordPlace at = eights_of(i);
        uint32_t words[8], turned[8];
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) {
            words[awq_nibble(r)] = shared[word_place(at.row + r, at.word)];
        }
        turn_nibbles(words, turned);
        uint32_t *const to = eights_at(p, b, at);
        if (to == nullptr) continue;
#pragma unroll
        for (int c = 0; c < 8; ++c) __stcs(to + int64_t(c) * (p.rows / 8), turned[c]);
    }
}

// ---- Tiles

constexpr uint32_t kThreadVectors = kThreadWords / 4, kBlockTiles = kWordColumns / 64;

// Row r and the first of two words of a thread's i-th vector of 16 bytes.
__device__ inline WordPlace vector_of(uint32_t i) {
    const uint32_t at = threadIdx.x + i * kWordThreads, tile = at / 32, lane = at % 32;
    return {tile / kBlockTiles * 16 + lane / 4, tile % kBlockTiles * 8 + lane % 4 * 2};
}

__device__ inline uint4 *vector_at(const WordPlane &p, const WordBlock &b, WordPlace at) {
    const uint32_t row = b.row + at.row, word = b.word + at.word;
    if ((row & ~15u) >= p.rows || word / 8 >= p.tiles) return nullptr;
    return reinterpret_cast<uint4 *>(p.data) + (int64_t(row / 16) * p.tiles + word / 8) * 32 +
           threadIdx.x % 32;
}

__device__ inline void load_tiles(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    const bool pairs = p.layout == kLayoutTilesPairs;
    uint4 vectors[kThreadVectors];
#pragma unroll
    for (uint32_t i = 0; i < kThreadVectors; ++i) {
        const uint4 *const from = vector_at(p, b, vector_of(i));
        vectors[i] = from != nullptr ? __ldcs(from) : uint4{};
    }
#pragma unroll
    for (uint32_t i = 0; i < kThreadVectors; ++i) {
        const WordPlace at = vector_of(i);
        const uint2 left = unweave_words(pairs, vectors[i].x, vectors[i].y);
        const uint2 right = unweave_words(pairs, vectors[i].z, vectors[i].w);
        shared[word_place(at.row, at.word)] = left.x;
        shared[word_place(at.row, at.word + 1)] = right.x;
        shared[word_place(at.row + 8, at.word)] = left.y;
        shared[word_place(at.row + 8, at.word + 1)] = right.y;
    }
}

__device__ inline void store_tiles(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    const bool pairs = p.layout == kLayoutTilesPairs;
#pragma unroll
    for (uint32_t i = 0; i < kThreadVectors; ++i) {
        const WordPlace at = vector_of(i);
        const auto word = [&](uint32_t down, uint32_t along) {
            return shared[word_place(at.row + down, at.word + along)];
        };
        const uint2 left = weave_words(pairs, word(0, 0), word(8, 0));
        const uint2 right = weave_words(pairs, word(0, 1), word(8, 1));
        uint4 *const to = vector_at(p, b, at);
        if (to != nullptr) __stcs(to, uint4{left.x, left.y, right.x, right.y});
    }
}

// ---- Any of them. Zeros past the last row and column are read, and written where a layout pads.

__device__ inline void load_words(const WordPlane &p, const WordBlock &b, uint32_t *shared) {
    switch (p.layout) {
        case QK_LAYOUT_AWQ_GEMM: load_turned(p, b, shared); break;
        case kLayoutTiles:
        case kLayoutTilesPairs: load_tiles(p, b, shared); break;
        default: load_plain(p, b, shared);
    }
}

__device__ inline void store_words(const WordPlane &p, const WordBlock &b, const uint32_t *shared) {
    switch (p.layout) {
        case QK_LAYOUT_AWQ_GEMM: store_turned(p, b, shared); break;
        case kLayoutTiles:
        case kLayoutTilesPairs: store_tiles(p, b, shared); break;
        default: store_plain(p, b, shared);
    }
}

}  // namespace
#endif

}  // namespace qk::cuda

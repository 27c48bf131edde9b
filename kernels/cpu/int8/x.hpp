// x of int8 mode: every row cut into blocks, rounded to integers (docs/formats.md, "int8
// activations") and laid out for the kernels that read it. Entries of weights are integers too.
#pragma once
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/panel.hpp"

namespace qk::cpu {
namespace {

// A block: the columns that share a group and one run of 128 columns.
constexpr int64_t kInt8Block = 128;

// Entries are integers times a unit: exactly for affine and signed codes and E2M1, else rounded.
inline float int8_steps(const Format &format) {
    switch (format.id) {
        case QK_FORMAT_NF4: return 127;
        case QK_FORMAT_FP4_BNB: return 96;  // all but 1/192 are integers then
        case QK_FORMAT_FP4_E2M1: return 2;
        default: return 1;
    }
}

// To the nearest integer, ties to even, as the low byte of the bits; |value| <= 127.5.
inline int8_t int8_nearest(float value) { return int8_t(uint8_t(f32_bits(value + 0x1.8p23f))); }

// The integers of 16 codes; affine codes stand for themselves (the zero is taken off the sum).
struct Int8Entries {
    int8_t value[16];

    explicit Int8Entries(const Weight &w) {
        const float steps = int8_steps(*w.format);
        for (int code = 0; code < 16; ++code) {
            const bool table = w.format->kind == FormatKind::kLut4;
            value[code] = table ? int8_nearest(w.format->value(code) * steps) : int8_t(code);
        }
    }
};

struct Int8Scale {
    float scale;  // of the block times the unit of entries
    int32_t sum;  // of the block's integers
};

constexpr uint32_t kNotFinite = 0x7f800000;
constexpr float kInt8Smallest = 0x1p-119f;  // below it 127 / largest or its inverse is not normal

// x to integers. A block with a NaN or an infinity has the scale NaN, one of tiny numbers is zero.
inline Int8Scale int8_block(const float *__restrict x, int64_t count, float unit,
                            int8_t *__restrict to) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t magnitude = f32_bits(x[i]) & 0x7fffffffu;
        bits = magnitude > bits ? magnitude : bits;
    }
    const float largest = f32_from_bits(bits);
    if (bits >= kNotFinite || largest < kInt8Smallest) {
        memset(to, 0, size_t(count));
        return {bits >= kNotFinite ? __builtin_nanf("") : 0.0f, 0};
    }
    const float inverse = 127.0f / largest;
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        to[i] = int8_nearest(x[i] * inverse);
        sum += to[i];
    }
    return {largest / 127.0f * unit, sum};
}

// The integers of a chunk of 128 columns to q; each(b, scale, size) has those of block b, which are
// `size` from q + b * size on.
template <class Each>
QK_INLINE inline void quantize_blocks(const float *x, int64_t blocks, float unit, int8_t *q,
                                      const Each &each) {
    const int64_t size = 128 / blocks;
    for (int64_t b = 0; b < blocks; ++b) {
        each(b, int8_block(x + b * size, size, unit, q + b * size), size);
    }
}

// Batches, and the tiles of each instruction set.
constexpr int64_t kTaskRows = 32;   // of w, four blocks of the packed layout
constexpr int64_t kInt8Batch = 64;  // rows of x whose sums a task keeps
constexpr int kTile = 8;            // rows of x side by side

// What batch.hpp asks of tiles of kTile rows, whose sets of instructions need nothing set up.
struct Tile8 {
    static constexpr int64_t kRows = kTile, kBatch = kInt8Batch, kStrips = 1;
    static constexpr int64_t kChunks = 1, kAtOnce = kTile, kKept = INT64_MAX;
    static constexpr bool kSumsInWorkspace = false;

    // Rows that products of `rows` of them read.
    static constexpr int64_t rows_read(int64_t rows) { return round_up(rows, kTile); }
};
// A tile's factors of 128 columns, by block of a group.
struct TileOfBlocks : Tile8 {
    float scale[8][kTile];    // the unit of entries is in it
    int32_t minus[8][kTile];  // minus a block's sum, times the zero where all have the same

    // What minima are multiplied by, where there are some.
    float of_minima(int64_t b, int64_t j) const { return scale[b][j] * -float(minus[b][j]); }
    void set_block(int64_t b, int64_t j, float of_entries, int32_t minus_sum) {
        scale[b][j] = of_entries;
        minus[b][j] = minus_sum;
    }
};
struct NoSession {};

// What makes signed codes and entries of tables unsigned: vpdpbusd multiplies unsigned by signed.
constexpr int32_t kZeroOfBytes = 128;

// Of one group of a task's rows. Zeros are 0 where all have the same, and Strip::kZeroOfMinima
// where there are minima.
struct TileFactors {
    alignas(64) float scale[kTaskRows];
    alignas(64) int32_t zero[kTaskRows];
    alignas(64) float minimum[kTaskRows];
};

// What a tile's sums of x are multiplied by where every zero is the same; else 1.
inline int32_t zero_of_all(const Weight &w) {
    if (w.zero != nullptr || has_minimum(w)) return 1;
    return w.format->kind == FormatKind::kS8 ? kZeroOfBytes : 8;
}

inline uintptr_t aligned_workspace(const Launch &launch) {
    return (uintptr_t(launch.workspace) + 63) / 64 * 64;
}

// 128 columns of a row of x as f32, zeros past its end.
template <class Isa>
QK_INLINE inline void load_chunk(const Dense &x, int64_t row, int64_t chunk, float (&to)[128]) {
    const int64_t column = chunk * 128, first = row * row_stride(x) + column;
    const int64_t count = min64(128, x.columns - column);
    const char *const from = static_cast<const char *>(x.data) + first * 4;
    if (x.format->id == QK_FORMAT_F32 && count == 128) {
        memcpy(to, from, sizeof(to));
    } else if (x.format->id == QK_FORMAT_F32) {
        memset(to, 0, sizeof(to));
        memcpy(to, from, size_t(count) * 4);
    } else {
        widen_x<Isa>(x, first, count, to);
        for (int64_t i = round_up(count, 16); i < 128; ++i) to[i] = 0;
    }
}

// body(chunk, x) for each chunk of a row of x.
template <class Isa, class Body>
QK_INLINE inline void for_each_chunk(const Dense &x, int64_t row, const Body &body) {
    for (int64_t chunk = 0; chunk * 128 < x.columns; ++chunk) {
        float values[128];
        load_chunk<Isa>(x, row, chunk, values);
        body(chunk, values);
    }
}

template <class Isa>
inline size_t int8_x_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, args.x.rows, sizeof(typename Isa::XChunk));
}

// Every row of x, on every thread where there are several.
template <class Isa>
inline const typename Isa::XChunk *quantize_x(const LinearArgs &args, const Launch &launch) {
    typename Isa::XChunk *const to =
        reinterpret_cast<typename Isa::XChunk *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const float unit = 1.0f / int8_steps(*args.w.format);
    parallel_ranges(launch.parallel, args.x.rows, 1, args.x.columns * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            for_each_chunk<Isa>(args.x, row, [&](int64_t chunk, const float *x) {
                Isa::quantize_chunk(x, blocks, unit, to + row * chunks + chunk);
            });
        }
    });
    return to;
}

// Scales of 8 rows for a chunk of kBlocks groups, as f32 in memory.
template <class Isa, int kBlocks>
class PanelScales : public ScalePanel<Isa> {
  public:
    using ScalePanel<Isa>::ScalePanel;
    static int64_t group_bytes() { return 32; }

    // `there` of the groups are.
    QK_INLINE static void widen(const char *from, int64_t, int64_t there,
                                typename Isa::Floats8 (&to)[kBlocks]) {
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            to[b] = b < there ? Isa::load_floats8(from + 32 * b) : Isa::zero_floats8();
        }
    }
};

// x of int8 mode in chunks of 128 columns, laid out as a chunk of packed codes is (rows8: a row in
// 64 bytes). Bytes 4 j .. 4 j + 3 of a chunk of codes hold columns 32 b + j in the low and
// 32 b + 16 + j in the high nibble of byte b:
//
//     one block    dword j: columns j, 32 + j, 64 + j, 96 + j       as codes are stored
//     else         dword 4 t + b: columns 32 b + 4 t + 0..3         after the bytes of four dwords
//                  changed places, so that dwords belong to one group of 32
struct PlainChunk {
    int8_t low[64], high[64];  // for the low and the high nibbles
    float scale[8];            // a block; the unit of entries is in it
    int32_t sum[8];            // of a block's integers
};

inline void transpose_bytes_of_x(int8_t *at) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    Bytes b;
    memcpy(&b, at, 16);
    b = __builtin_shufflevector(b, b, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    memcpy(at, &b, 16);
}

inline void quantize_plain(const float *x, int64_t blocks, float unit, PlainChunk *to) {
    alignas(64) int8_t q[128];
    quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t) {
        to->scale[b] = s.scale;
        to->sum[b] = s.sum;
    });
    for (int t = 0; t < 4; ++t) {
        for (int b = 0; b < 4; ++b) {
            memcpy(to->low + 16 * t + 4 * b, q + 32 * b + 4 * t, 4);
            memcpy(to->high + 16 * t + 4 * b, q + 32 * b + 16 + 4 * t, 4);
        }
    }
    if (blocks > 1) return;
    for (int i = 0; i < 64; i += 16) {  // transposing 4 x 4 is its own inverse
        transpose_bytes_of_x(to->low + i);
        transpose_bytes_of_x(to->high + i);
    }
}

}  // namespace
}  // namespace qk::cpu

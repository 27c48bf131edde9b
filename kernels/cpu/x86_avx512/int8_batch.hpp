// y = x . transpose(w) + bias in int8 mode for several rows of x: lanes are 16 rows of w, so that
// nothing is added across lanes. Included after int8_lanes.hpp and panel.hpp.
//
// A task owns 32 rows of w. For a slab of rows of x it walks along k in panels of 4 chunks: decodes
// a panel's codes once into dwords of 4 columns, [4 columns][32 rows] (16 KB), then multiplies them
// by 4 columns of x at a time in tiles of 32 rows of w and 8 rows of x.
#pragma once
#include "cpu/vector/int8_x.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kTaskRows = 32, kTaskBlocks = 4;  // blocks of 8 rows
constexpr int64_t kBatchChunks = 4;                 // of a panel
constexpr int64_t kSlab = 64;                       // rows of x whose sums a task keeps
constexpr int kTile = 8;                            // rows of x in a tile

// 128 columns of a tile's rows of x, so that a step reads one run of memory.
struct XTile {
    int32_t x[32][kTile];     // 4 columns each
    float scale[8][kTile];    // by block; the unit of entries is in it
    int32_t minus[8][kTile];  // minus a block's sum, times the zero where all have the same
};

class Int8Batch {
  public:
    Int8Batch(const LinearArgs &args, const XTile *x)
        : args_(args), x_(x), chunks_(chunk_count(args.w.geometry)),
          groups_(groups_of_chunk(args.w.geometry)), columns_(32 / groups_),
          is_table_(args.w.format->kind == FormatKind::kTable),
          table_(Int8Entries(args.w), is_table_),
          scales_{ScalePanel(args.w), ScalePanel(args.w), ScalePanel(args.w), ScalePanel(args.w)} {}

    void run(int64_t task) {
        first_block_ = task * kTaskBlocks;
        blocks_ = min64(kTaskBlocks, ceil_div(args_.w.geometry.n, 8) - first_block_);
        for (int64_t first = 0; first < args_.x.rows; first += kSlab) {
            x_first_ = first;
            x_rows_ = min64(kSlab, args_.x.rows - first);
            memset(acc_, 0, sizeof(acc_));
            for (int64_t chunk = 0; chunk < chunks_; chunk += kBatchChunks) {
                run_panel(chunk, min64(chunk + kBatchChunks, chunks_));
            }
            store();
        }
    }

  private:
    void run_panel(int64_t first, int64_t last) {
        load_scales(first, last);
        for (int64_t chunk = first; chunk < last; ++chunk) {
            decode(chunk, 0, entries_[chunk - first]);
            decode(chunk, 1, entries_[chunk - first]);
        }
        const Geometry &s = args_.w.geometry;
        int64_t group[kBatchChunks], blocks[kBatchChunks];
        for (int64_t chunk = first; chunk < last; ++chunk) {
            const int64_t at = chunk * 128 / s.group_size;
            group[chunk - first] = at - first_group_;
            blocks[chunk - first] = min64(groups_, s.groups_per_row - at);
        }
        for (int64_t row = 0; row < x_rows_; row += kTile) {
            const XTile *const x = x_ + (x_first_ + row) / kTile * chunks_ + first;
            for (int64_t i = 0; i < last - first; ++i) {
                add(x[i], entries_[i], group[i], blocks[i], acc_ + row);
            }
        }
    }

    // 16 of the task's rows: lane r of vector d gets columns 4 d .. 4 d + 3 of row r. A quarter of
    // the chunk at a time; 128 bits of a vector hold 4 rows. Rows past the last repeat others.
    void decode(int64_t chunk, int64_t half, __m512i (*to)[2]) const {
        const uint8_t *block[2];
        for (int64_t i = 0; i < 2; ++i) {
            const int64_t index = first_block_ + min64(half * 2 + i, blocks_ - 1);
            block[i] = static_cast<const uint8_t *>(args_.w.data) + (index * chunks_ + chunk) * 512;
        }
        for (int quarter = 0; quarter < 4; ++quarter) {
            __m512i v[4];
            for (int i = 0; i < 4; ++i) {
                prefetch(block[i & 1] + 64 * (2 * quarter + (i >> 1)) + 2048);
                const auto row = [&](int r) {
                    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(
                        block[r >> 3] + 64 * (r & 7) + 16 * quarter));
                };
                v[i] = _mm512_castsi128_si512(row(i));
                v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00f0, row(4 + i));
                v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0f00, row(8 + i));
                v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xf000, row(12 + i));
            }
            put_quarter(v, to + quarter, half);
        }
    }

    // Byte b of each of a row's four dwords belongs to columns 32 b + 4 quarter .. + 3 (low) and 16
    // further (high nibbles).
    QK_INLINE void put_quarter(const __m512i (&v)[4], __m512i (*to)[2], int64_t half) const {
        __m512i t[4];  // dwords [a b0, b b0, a b1, b b1], [a b2, b b2, a b3, b b3]
        for (int i = 0; i < 4; i += 2) {
            const __m512i a = turn_bytes<4>(v[i]), b = turn_bytes<4>(v[i + 1]);
            t[i] = _mm512_unpacklo_epi32(a, b);
            t[i + 1] = _mm512_unpackhi_epi32(a, b);
        }
        const __m512i by_byte[4] = {
            _mm512_unpacklo_epi64(t[0], t[2]), _mm512_unpackhi_epi64(t[0], t[2]),
            _mm512_unpacklo_epi64(t[1], t[3]), _mm512_unpackhi_epi64(t[1], t[3])};
        const __m512i mask = _mm512_set1_epi8(15);
        const bool table = is_table_;
        for (int b = 0; b < 4; ++b) {
            const __m512i low = by_byte[b], high = _mm512_srli_epi16(low, 4);
            to[8 * b][half] = table ? table_.look_up(low) : _mm512_and_si512(low, mask);
            to[8 * b + 4][half] = table ? table_.look_up(high) : _mm512_and_si512(high, mask);
        }
    }

    void load_scales(int64_t first, int64_t last) {
        const Geometry &s = args_.w.geometry;
        const int64_t group = first * 128 / s.group_size;
        const int64_t count = ceil_div(min64(last * 128, s.k), s.group_size) - group;
        first_group_ = group;
        for (int64_t block = 0; block < blocks_; ++block) {
            const char *const from = scales_[block].load(first_block_ + block, group, count);
            for (int64_t g = 0; g < count; ++g) {
                memcpy(&scale_[g][8 * block], from + 32 * g, 32);
                if (args_.w.zero == nullptr) continue;
                const uint8_t *const zeros =
                    static_cast<const uint8_t *>(args_.w.zero) +
                    ((first_block_ + block) * s.groups_per_row + group + g) * 4;
                const __m256i eight = load_zeros8(zeros).v;
                memcpy(&zero_[g][8 * block], &eight, 32);
            }
        }
    }

    // A tile of x times a chunk of 32 rows, whose groups start at `group` of the panel.
    QK_NOINLINE void add(const XTile &x, const __m512i (*entries)[2], int64_t group, int64_t blocks,
                         float (*acc)[kTaskRows]) const {
        const int64_t columns = columns_;
        for (int64_t b = 0; b < blocks; ++b, ++group) {
            __m512i sum[kTile][2];
            start(x.minus[b], zero_[group], sum);
            multiply(entries + b * columns, x.x + b * columns, columns, sum);
            const __m512 scale[2] = {_mm512_loadu_ps(scale_[group]),
                                     _mm512_loadu_ps(scale_[group] + 16)};
            asm volatile("" ::: "memory");  // or sums in acc would stay on the stack meanwhile
            QK_UNROLL
            for (int j = 0; j < kTile; ++j) {
                const __m512 x_scale = _mm512_set1_ps(x.scale[b][j]);
                for (int half = 0; half < 2; ++half) {
                    float *const to = acc[j] + 16 * half;
                    const __m512 factor = _mm512_mul_ps(x_scale, scale[half]);
                    const __m512 whole = _mm512_cvtepi32_ps(sum[j][half]);
                    _mm512_storeu_ps(to, _mm512_fmadd_ps(whole, factor, _mm512_loadu_ps(to)));
                }
            }
        }
    }

    // What zeros take off: minus the zero times the sum of x, both of which fit 16 bits.
    QK_INLINE void start(const int32_t *minus, const int32_t *zero,
                         __m512i (&sum)[kTile][2]) const {
        const bool zeros = args_.w.zero != nullptr;
        QK_UNROLL
        for (int j = 0; j < kTile; ++j) {
            const __m512i off = _mm512_set1_epi32(minus[j]);
            for (int half = 0; half < 2; ++half) {
                const __m512i each = _mm512_loadu_si512(zero + 16 * half);
                sum[j][half] = zeros ? _mm512_madd_epi16(each, off) : off;
            }
        }
    }

    QK_INLINE static void multiply(const __m512i (*w)[2], const int32_t (*x)[kTile],
                                   int64_t columns, __m512i (&sum)[kTile][2]) {
        __m512i total[kTile][2];
        QK_UNROLL
        for (int j = 0; j < kTile; ++j) total[j][0] = sum[j][0], total[j][1] = sum[j][1];
        for (int64_t i = 0; i < columns; i += 4) {  // a group has 4, 8, 16 or 32
            QK_UNROLL
            for (int64_t d = i; d < i + 4; ++d) {
                const __m512i low = w[d][0], high = w[d][1];
                QK_UNROLL
                for (int j = 0; j < kTile; ++j) {
                    const __m512i four = _mm512_set1_epi32(x[d][j]);
                    add_dots(total[j][0], low, four);
                    add_dots(total[j][1], high, four);
                }
            }
        }
        QK_UNROLL
        for (int j = 0; j < kTile; ++j) sum[j][0] = total[j][0], sum[j][1] = total[j][1];
    }

    void store() const {
        const int64_t first = first_block_ * 8;
        const int64_t rows = min64(kTaskRows, args_.w.geometry.n - first);
        for (int64_t j = 0; j < x_rows_; ++j) {
            const int64_t at = (x_first_ + j) * args_.y.columns + first;
            for (int64_t row = 0; row < rows; ++row) {
                float y = acc_[j][row];
                if (args_.bias != nullptr) {
                    y += load_float(args_.bias->format->id, args_.bias->data, first + row);
                }
                store_float(args_.y.format->id, args_.y.data, at + row, y);
            }
        }
    }

    const LinearArgs &args_;
    const XTile *const x_;
    const int64_t chunks_, groups_;
    const int64_t columns_;  // of 4, in a group
    const bool is_table_;
    const ByteTable table_;
    ScalePanel scales_[kTaskBlocks];
    int64_t first_block_ = 0, blocks_ = 0, x_first_ = 0, x_rows_ = 0, first_group_ = 0;
    __m512i entries_[kBatchChunks][32][2];          // [4 columns][16 rows]
    float scale_[kBatchChunks * 8][kTaskRows] = {};  // [group][row]
    int32_t zero_[kBatchChunks * 8][kTaskRows] = {};
    float acc_[kSlab][kTaskRows];
};

// The factor of sums of x where all zeros are the same.
inline int32_t one_zero(const Weight &w) {
    if (w.format->kind == FormatKind::kTable) return kTableOffset;
    return w.zero == nullptr ? 8 : 1;
}

// One row's share of a tile.
void put_row(const float *x, int64_t blocks, float unit, int32_t zero, int64_t j, XTile *to) {
    const ChunkQuantizer quantizer(x, blocks);
    float scale[8];
    int32_t sum[8];
    alignas(64) int32_t dwords[32];
    quantizer.store_scales(unit, scale);
    const XBytes bytes = quantizer.integers(sum);
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_store_si512(dwords, place(bytes, order));
    _mm512_store_si512(dwords + 16, place(bytes, _mm512_add_epi32(order, _mm512_set1_epi32(16))));
    for (int i = 0; i < 32; ++i) to->x[i][j] = dwords[i];
    for (int b = 0; b < 8; ++b) {
        to->scale[b][j] = scale[b];
        to->minus[b][j] = -zero * sum[b];
    }
}

size_t int8_tiles_bytes(const LinearArgs &args, int32_t) {
    return chunk_workspace(args.w.geometry, ceil_div(args.x.rows, kTile), sizeof(XTile));
}

// Rows that fill the last tile are read as the last row, and never stored.
const XTile *quantize_tiles(const LinearArgs &args, const Launch &launch) {
    XTile *const tiles = reinterpret_cast<XTile *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const float unit = 1.0f / int8_steps(*args.w.format);
    const int32_t zero = one_zero(args.w);
    parallel_ranges(launch.parallel, round_up(args.x.rows, kTile), 1,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            XTile *const to = tiles + row / kTile * chunks;
            for_each_chunk(args.x, min64(row, args.x.rows - 1), [&](int64_t chunk, const float *x) {
                put_row(x, blocks, unit, zero, row % kTile, to + chunk);
            });
        }
    });
    return tiles;
}

Status run_int8_batch(const LinearArgs &args, const Launch &launch) {
    const XTile *const x = quantize_tiles(args, launch);
    const int64_t tasks = ceil_div(args.w.geometry.n, kTaskRows);
    parallel_ranges(launch.parallel, tasks, 1, [&](int64_t first, int64_t last) {
        Int8Batch batch(args, x);
        for (int64_t task = first; task < last; ++task) batch.run(task);
    });
    return QK_OK;
}

bool can_run_int8_batch(const LinearArgs &args, int32_t device_index) {
    return args.x.rows >= 8 && can_run_int8_gemv(args, device_index);
}

}  // namespace
}  // namespace qk::cpu

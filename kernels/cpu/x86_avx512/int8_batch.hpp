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

// Dword i of 16 rows into vector i.
inline void transpose_dwords(__m512i (&v)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // v[i + d]: dword d of each 128 bits, rows i .. i + 3
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int d = 0; d < 4; ++d) {
        const __m512i a = _mm512_shuffle_i32x4(v[d], v[4 + d], 0x88);  // quarters 0, 2
        const __m512i b = _mm512_shuffle_i32x4(v[d], v[4 + d], 0xdd);  // quarters 1, 3
        const __m512i c = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0x88);
        const __m512i e = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0xdd);
        t[d] = _mm512_shuffle_i32x4(a, c, 0x88);
        t[8 + d] = _mm512_shuffle_i32x4(a, c, 0xdd);
        t[4 + d] = _mm512_shuffle_i32x4(b, e, 0x88);
        t[12 + d] = _mm512_shuffle_i32x4(b, e, 0xdd);
    }
    for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// In place: GCC 12 copies the sum before and after its intrinsic.
QK_INLINE inline void add_dots(__m512i &sum, __m512i w, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

class Int8Batch {
  public:
    Int8Batch(const LinearArgs &args, const XChunk *x)
        : args_(args), x_(x), chunks_(chunk_count(args.w.geometry)),
          groups_(groups_of_chunk(args.w.geometry)),
          is_table_(args.w.format->kind == FormatKind::kTable),
          scales_{ScalePanel(args.w), ScalePanel(args.w), ScalePanel(args.w), ScalePanel(args.w)} {
        const Int8Entries entries(args.w);
        uint8_t bytes[16];
        for (int i = 0; i < 16; ++i) {
            bytes[i] = uint8_t(entries.value[i] + (is_table_ ? kTableOffset : 0));
        }
        table_ = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
    }

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
        for (int64_t row = 0; row < x_rows_; row += kTile) {
            for (int64_t chunk = first; chunk < last; ++chunk) add(row, chunk, chunk - first);
        }
    }

    // 16 of the task's rows. Bytes of four dwords change places, so that a dword holds neighbours:
    // columns 32 b + 4 t .. + 3 in the low nibbles of dword 4 t + b, 16 further in the high ones.
    void decode(int64_t chunk, int64_t half, __m512i (*to)[2]) const {
        const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m512i turn = _mm512_broadcast_i32x4(order), mask = _mm512_set1_epi8(15);
        __m512i v[16];
        for (int64_t i = 0; i < 16; ++i) {
            const int64_t block = half * 2 + i / 8;
            const uint8_t *const codes = static_cast<const uint8_t *>(args_.w.data) +
                                         ((first_block_ + block) * chunks_ + chunk) * 512;
            v[i] = _mm512_setzero_si512();
            if (block >= blocks_) continue;
            prefetch(codes + 64 * (i % 8) + 2048);
            v[i] = _mm512_shuffle_epi8(load_words(codes + 64 * (i % 8)).v, turn);
        }
        transpose_dwords(v);
        for (int i = 0; i < 16; ++i) {
            const int at = i % 4 * 8 + i / 4;
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(v[i], 4), mask);
            to[at][half] = _mm512_shuffle_epi8(table_, _mm512_and_si512(v[i], mask));
            to[at + 4][half] = _mm512_shuffle_epi8(table_, high);
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
        if (args_.w.zero != nullptr) return;
        for (int64_t g = 0; g < count; ++g) {
            for (int32_t &zero : zero_[g]) zero = is_table_ ? kTableOffset : 8;
        }
    }

    // A tile: rows row .. row + 8 of the slab (the last one again where there are fewer).
    QK_NOINLINE void add(int64_t row, int64_t chunk, int64_t at) {
        const Geometry &s = args_.w.geometry;
        const XChunk *x[kTile];
        for (int j = 0; j < kTile; ++j) {
            x[j] = x_ + (x_first_ + min64(row + j, x_rows_ - 1)) * chunks_ + chunk;
        }
        const int64_t columns = 32 / groups_;  // of 4
        for (int64_t b = 0; b < groups_; ++b) {
            const int64_t column = chunk * 128 + b * 4 * columns;
            if (column >= s.k) return;
            __m512i sum[kTile][2];
            multiply(entries_[at] + b * columns, x, b * columns, columns, sum);
            const int64_t group = column / s.group_size - first_group_;
            for (int half = 0; half < 2; ++half) {
                const __m512i zero = _mm512_loadu_si512(zero_[group] + 16 * half);
                const __m512 scale = _mm512_loadu_ps(scale_[group] + 16 * half);
                QK_UNROLL
                for (int j = 0; j < kTile; ++j) {
                    float *const acc = acc_[row + j] + 16 * half;
                    const __m512i off = _mm512_madd_epi16(zero, _mm512_set1_epi32(x[j]->sum[b]));
                    const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[j][half], off));
                    const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x[j]->scale[b]), scale);
                    _mm512_storeu_ps(acc, _mm512_fmadd_ps(whole, factor, _mm512_loadu_ps(acc)));
                }
            }
        }
    }

    QK_INLINE static void multiply(const __m512i (*w)[2], const XChunk *const (&x)[kTile],
                                   int64_t first, int64_t columns, __m512i (&sum)[kTile][2]) {
        __m512i total[kTile][2];
        QK_UNROLL
        for (int j = 0; j < kTile; ++j) total[j][0] = total[j][1] = _mm512_setzero_si512();
        for (int64_t i = 0; i < columns; ++i) {
            const __m512i low = w[i][0], high = w[i][1];
            QK_UNROLL
            for (int j = 0; j < kTile; ++j) {
                const __m512i four = _mm512_set1_epi32(load_as<int32_t>(x[j]->low, first + i));
                add_dots(total[j][0], low, four);
                add_dots(total[j][1], high, four);
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
    const XChunk *const x_;
    const int64_t chunks_, groups_;
    const bool is_table_;
    ScalePanel scales_[kTaskBlocks];
    __m512i table_;
    int64_t first_block_ = 0, blocks_ = 0, x_first_ = 0, x_rows_ = 0, first_group_ = 0;
    __m512i entries_[kBatchChunks][32][2];          // [4 columns][16 rows]
    float scale_[kBatchChunks * 8][kTaskRows] = {};  // [group][row]
    int32_t zero_[kBatchChunks * 8][kTaskRows] = {};
    float acc_[kSlab][kTaskRows];
};

Status run_int8_batch(const LinearArgs &args, const Launch &launch) {
    const XChunk *const x = quantize_x(args, launch, XOrder::kColumns);
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
